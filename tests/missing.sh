#!/bin/sh
# In the place of tests that could not be built: fails, and says what they lack.
#
# usage: missing.sh WHAT PACKAGE
echo "not built: there is no $1 here: install $2, then configure the build folder anew"
exit 1
