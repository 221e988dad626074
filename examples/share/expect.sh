#!/bin/sh
# Plays one story and looks at its end:
#
#   sh examples/share/expect.sh TEXT COMMAND ARGS…
#
# Prints the story's line. Exit status 0 when COMMAND succeeded and that line has TEXT in it;
# otherwise 1, with all that COMMAND said on stderr.
set -eu

text=$1
shift
status=0
output=$("$@" 2>&1) || status=$?
line=$(printf '%s\n' "$output" | grep '^story ' || true)
case $line in
    *"$text"*) [ "$status" != 0 ] || { printf '%s\n' "$line" && exit 0; } ;;
esac
{
    printf 'expected "%s", got (exit status %s):\n' "$text" "$status"
    printf '%s\n' "$output"
} >&2
exit 1
