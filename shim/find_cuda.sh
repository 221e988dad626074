#!/bin/sh
# Where there is a cuda.h that the project can be built with, asked by meson.build and tests/lib.sh:
#
#   sh shim/find_cuda.sh [FOLDER]
#
# Looks at FOLDER/include, or without one in $CUDA_HOME, in /usr/local/cuda and where pkg-config
# knows one, the newest first. Prints the folder that the header is in; exit status 1 where there is
# none, and on stderr what is too old. POSIX sh.
set -eu

oldest=12080 # as CUDA_VERSION has it; the library built with it runs with older drivers too
oldest_text=12.8

# is_fit FOLDER: whether its cuda.h is new enough. What is there and too old is named.
is_fit()
{
    [ -e "$1/cuda.h" ] || return 1
    version=$(sed -n 's/^#define CUDA_VERSION \([0-9]*\).*/\1/p' "$1/cuda.h")
    if [ "${version:-0}" -lt $oldest ]; then
        printf '%s/cuda.h is of CUDA %s; %s or newer is needed\n' "$1" \
            "$((${version:-0} / 1000)).$((${version:-0} % 1000 / 10))" $oldest_text >&2
        return 1
    fi
}

# folders: where to look, one a line. pkg-config leaves out what the compiler looks at anyway.
folders()
{
    if [ -n "${CUDA_HOME:-}" ]; then
        printf '%s/include\n' "$CUDA_HOME"
    fi
    printf '/usr/local/cuda/include\n'
    command -v pkg-config >/dev/null 2>&1 || return 0
    pkg-config --list-all 2>/dev/null | sed -n 's/^\(cuda\(-[0-9.]*\)\{0,1\}\) .*/\1/p' | sort -Vr |
        while read -r module; do
            PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 pkg-config --cflags-only-I "$module" 2>/dev/null |
                tr ' ' '\n' | sed -n 's/^-I//p'
        done
}

if [ $# -gt 0 ]; then
    is_fit "$1/include" || exit 1
    printf '%s\n' "$1/include"
    exit 0
fi
folders | while read -r folder; do
    if is_fit "$folder"; then
        printf '%s\n' "$folder"
        break
    fi
done | grep .
