"""Shares CUDA tensors with a second process through torch.multiprocessing, both ways.

Prints one "RESULT tensor outcome" line each. The consumer checks what it got, writes its own
values, and the producer checks those. Tensors of several sizes share one of PyTorch's segments, so
offsets matter; one is dropped by the producer while the consumer still reads it.
"""

import sys

import torch
import torch.multiprocessing as mp

SECONDS = 60
SIZES = {"tiny": 5, "small": 1000, "odd": 123457, "million": 1 << 20, "large": 40 << 20}


def pattern(count, start):
    return torch.arange(start, start + count, dtype=torch.int32, device="cuda")


def consumer(offers, answers):
    kept = None
    while (offer := offers.get(timeout=SECONDS)) is not None:
        name, tensor, start = offer
        good = torch.equal(tensor, pattern(tensor.numel(), start))
        if name == "dropped":
            kept = tensor
        else:
            tensor.copy_(pattern(tensor.numel(), start + 7))
        torch.cuda.synchronize()
        answers.put(good)
        if name == "recheck":
            answers.put(torch.equal(kept, pattern(kept.numel(), 5000)))
            kept = None
        del tensor, offer


def share(name, offers, answers, start):
    tensor = pattern(SIZES[name], start)
    torch.cuda.synchronize()
    offers.put((name, tensor, start))
    seen = answers.get(timeout=SECONDS)
    back = torch.equal(tensor, pattern(SIZES[name], start + 7))
    return "ok" if seen and back else f"WRONG consumer saw it {seen} producer saw the answer {back}"


def drop(offers, answers):
    """The producer forgets a tensor and fills new memory; the consumer's stays what it was."""
    tensor = pattern(1 << 18, 5000)
    torch.cuda.synchronize()
    offers.put(("dropped", tensor, 5000))
    seen = answers.get(timeout=SECONDS)
    del tensor
    torch.cuda.empty_cache()
    others = [torch.full((1 << 18,), i, dtype=torch.int32, device="cuda") for i in range(16)]
    torch.cuda.synchronize()
    recheck = pattern(10, 1)
    offers.put(("recheck", recheck, 1))
    again = answers.get(timeout=SECONDS) and answers.get(timeout=SECONDS)
    del others
    return "ok" if seen and again else f"WRONG at first {seen} after the drop {again}"


def main():
    mp.set_start_method("spawn")
    offers, answers = mp.Queue(), mp.Queue()
    process = mp.Process(target=consumer, args=(offers, answers), daemon=True)
    process.start()
    failed = False
    for i, name in enumerate([*SIZES, "dropped"]):
        try:
            if name == "dropped":
                outcome = drop(offers, answers)
            else:
                outcome = share(name, offers, answers, 1000 * i)
        except Exception as error:  # the outcome is what this program is for
            outcome = f"{type(error).__name__} {str(error).splitlines()[:1]}"
        failed = failed or outcome != "ok"
        print(f"RESULT {name} {outcome}", flush=True)
        if failed and not process.is_alive():
            break
    try:
        offers.put(None)
        process.join(20)
    finally:
        process.kill()
    print(f"RESULT consumer exit {process.exitcode}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
