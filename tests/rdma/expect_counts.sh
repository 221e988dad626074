#!/bin/sh
# Runs a program with the stand-in libibverbs and checks what that counted.
#
#   sh tests/rdma/expect_counts.sh REGISTERED REPORT COMMAND…
#
# REGISTERED is how many registrations there are to be in all, a number or LOW-HIGH; whatever their
# number, all are undone in the end, and none was wrong.
set -eu

registered=$1
report=$2
shift 2
rm -f "$report"
STAND_IN_REPORT=$report "$@"
cat "$report"
# registered N deregistered N live N killed N sent N wrong N
read -r _ all _ undone _ live _ killed _ _ _ wrong <"$report"
if [ "$all" -lt "${registered%-*}" ] || [ "$all" -gt "${registered#*-}" ]; then
    echo "registrations: $all, expected $registered"
    exit 1
fi
[ "$undone" = "$all" ] && [ "$live" = 0 ] && [ "$killed" = 0 ] && [ "$wrong" = 0 ]
