"""The chaos program must catch libraries that are known to be wrong (tests/chaos/meson.build).

    mutants.py make SOURCE OUTPUT BUG     writes SOURCE with the named bug in it to OUTPUT
    mutants.py catch CHAOS MUTANT BUG     runs CHAOS with that library: it must say what is wrong

A bug is a text of the source and what stands there instead. Where the source has changed so that
the text is no longer there exactly once, the library has no bug, and the test that is to catch it
fails.
"""

import re
import shutil
import subprocess
import sys

# name: (text, wrong text, chaos's arguments, what it must find)
BUGS = {
    "hang-up": (
        "    gs_client_close_socket(share, client);\n    client->due_ns = gs_now_ns()",
        "    client_free(share, client);\n    return;\n    client->due_ns = gs_now_ns()",
        ["--scribble", "30"],
        r"a killed consumer's kernel: changed \d+ words of memory that was handed out again"),
    "lease": (
        "    held = export->references > 0 || export->pins > 0;\n",
        "    held = export->pins > 0;\n   if (!held && export->references > 0)\n"
        "        return gs_lock_release(&share->lock), true;\n",
        ["--seconds", "100", "--processes", "12"],
        r"holds a block of .* and sees [0-9a-f]{8} in word|its own block of .* has [0-9a-f]{8} in "
        r"word|keeps it, but opening it gives"),  # who looks first, or opens what lies there now, is chance
    "fence": (
        "        passed &= use_passed(share, &opened->uses[i]);\n",
        "        passed |= use_passed(share, &opened->uses[i]);\n",
        ["--seconds", "100", "--processes", "12"],
        r"its own block of .* has [0-9a-f]{8} in word|sees [0-9a-f]{8} in word|ILLEGAL_ADDRESS"),
}


def make(source, output, bug):
    with open(source, encoding="utf-8") as file:
        text = file.read()
    good, bad = BUGS[bug][:2]
    if text.count(good) != 1:
        print(f"mutants: the text for the bug \"{bug}\" is {text.count(good)} times in {source}",
              file=sys.stderr)
        good = bad = text
    with open(output, "w", encoding="utf-8") as file:
        file.write(text.replace(good, bad))


def catch(chaos, mutant, bug):
    arguments, finding = BUGS[bug][2:]
    done = subprocess.run([chaos, "--shim", mutant] + arguments, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout, end="")
    for folder in re.findall(r"everything is in (/\S*chaos-\w+)", done.stdout):
        shutil.rmtree(folder, ignore_errors=True)
    if done.returncode != 1 or not re.search(finding, done.stdout):
        sys.exit(f"mutants: the bug \"{bug}\" was not caught (status {done.returncode}); is the text "
                 "that it replaces still in the source?")


if __name__ == "__main__":
    {"make": make, "catch": catch}[sys.argv[1]](*sys.argv[2:])
