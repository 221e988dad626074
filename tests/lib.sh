# Shared by tests/run.sh, tests/with.sh, tests/gpu and examples/quickstart.sh: finds the build folder,
# installs what is missing, fetches cuda.h. Sourced, never run; the caller has set `root` to the
# repository's folder. POSIX sh.
# shellcheck shell=sh disable=SC2154

# The oldest headers that the library is built with, for machines that have none; and the newest that
# there are, of which shim/known_names.txt knows every function.
cuda_wheel=nvidia-cuda-runtime-cu12==12.8.57
newest_cuda_wheel=nvidia-cuda-runtime==13.5.37

say()
{
    printf '%s\n' "$*"
}

# die MESSAGE: the cause, then the way out. Scripts whose last line means something define
# on_die, which gets the message and prints that line.
die()
{
    if command -v on_die >/dev/null; then
        on_die "$*"
    else
        printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    fi
    exit 1
}

have()
{
    command -v "$1" >/dev/null 2>&1
}

# try_again COMMAND…: up to three times; a download may fail once.
try_again()
{
    "$@" || { sleep 3 && "$@"; } || { sleep 10 && "$@"; }
}

# run_apt ARGS…: apt-get, as root where $as_root says how; it tries again what it cannot fetch at
# once, and waits for whoever else installs something.
run_apt()
{
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 \
        -o DPkg::Lock::Timeout=120 "$@" </dev/null
}

have_header()
{
    printf '#include <%s>\n' "$1" | cc -E -x c - >/dev/null 2>&1
}

# build_folder: where the build is. GPUSHIM_BUILD names it; relative names start here.
build_folder()
{
    case ${GPUSHIM_BUILD:-} in
        '') printf '%s\n' "$root/build" ;;
        /*) printf '%s\n' "$GPUSHIM_BUILD" ;;
        *) printf '%s\n' "$PWD/$GPUSHIM_BUILD" ;;
    esac
}

# check_folders FOLDER…: dies where the library could not be preloaded from there.
check_folders()
{
    for folder in "$@"; do
        case $folder in
            *[[:space:]:]*) die "the folder '$folder' has a space or a colon in its name, where the dynamic linker" \
                "splits LD_PRELOAD: use another one" ;;
        esac
    done
}

# cuda_headers_found [MESON-OPTION…]: is there a cuda.h that meson.build finds by itself?
cuda_headers_found()
{
    for option in "$@"; do
        case $option in -Dcuda=?*) return 0 ;; esac
    done
    sh "$root/shim/find_cuda.sh" >/dev/null 2>&1
}

# missing_for_build BUILD [MESON-OPTION…], missing_for_tests: the Debian packages that are not
# there, one a line. What counts is that the thing can be used, not which package brought it.
missing_for_build()
{
    headers=$1/cuda-headers
    shift
    { have gcc && have cc; } || say gcc
    { have cc && have_header stdlib.h; } || say libc6-dev
    have meson || say meson
    have ninja || say ninja-build
    have pkg-config || say pkg-config
    { have pkg-config && pkg-config --exists criterion; } || say libcriterion-dev
    { have cc && have_header uthash.h; } || say uthash-dev
    { have cc && have_header lzma.h; } || say liblzma-dev
    have python3 || say python3
    # Meson asks it where libraries go.
    ! have dpkg || have dpkg-architecture || say dpkg-dev
    for pair in libcurl:libcurl4-openssl-dev libsodium:libsodium-dev openssl:libssl-dev jansson:libjansson-dev; do
        { have pkg-config && pkg-config --exists "${pair%:*}"; } || say "${pair#*:}"
    done
    if ! cuda_headers_found "$@" && [ ! -e "$headers/include/cuda.h" ] &&
        ! python3 -m pip --version >/dev/null 2>&1; then
        say python3-pip
        say ca-certificates
    fi
}

missing_for_tests()
{
    python3 -m pip --version >/dev/null 2>&1 || { say python3-pip && say ca-certificates; }
    have xz || say xz-utils
    have valgrind || say valgrind
    have strace || say strace
    have clang || say clang
    have_header infiniband/verbs.h || say libibverbs-dev
    have aarch64-linux-gnu-gcc || say gcc-aarch64-linux-gnu
    { have aarch64-linux-gnu-gcc &&
        printf '#include <stdlib.h>\n' | aarch64-linux-gnu-gcc -E -x c - >/dev/null 2>&1; } ||
        say libc6-dev-arm64-cross
    have musl-gcc || say musl-tools
}

# useful_for_tests: packages without which single tests are skipped: the containers, another malloc,
# and libFuzzer for the clang that is here.
useful_for_tests()
{
    have bwrap || say bubblewrap
    { have runc || [ -x /usr/sbin/runc ]; } || say runc
    have busybox || say busybox-static
    have etcd || say etcd-server
    have etcdctl || say etcd-client
    have ip || say iproute2
    PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -q libjemalloc || say libjemalloc2
    if have clang; then
        resources=$(clang --print-resource-dir)
        version=$(clang -dumpversion | cut -d . -f 1)
        ls "$resources"/lib/*/libclang_rt.fuzzer* >/dev/null 2>&1 || say "libclang-rt-$version-dev"
    fi
}

# useful_for_rest: what the tests lack that CI skips, or leaves out (tests/packages).
useful_for_rest()
{
    (
        PATH=$PATH:/usr/sbin:/sbin
        while read -r program package; do
            have "$program" || say "$package"
        done <<'PROGRAMS'
podman podman
prometheus prometheus
man man-db
fish fish
zsh zsh
systemd-analyze systemd
chromium chromium
dpkg-buildpackage dpkg-dev
dh debhelper
lintian lintian
debootstrap debootstrap
gpgv gpgv
rpmbuild rpm
cpio cpio
qemu-aarch64 qemu-user
mpirun openmpi-bin
mpicc libopenmpi-dev
PROGRAMS
    )
    python3 -c 'import yaml' 2>/dev/null || say python3-yaml
    python3 -c 'import venv, ensurepip' 2>/dev/null || say python3-venv
}

# install_what_can_be_had NAME…: each by itself, as root or with a sudo that asks nothing; what
# cannot be installed is named and left out.
install_what_can_be_had()
{
    as_root=
    [ "$(id -u)" = 0 ] || as_root='sudo -n'
    [ $# = 0 ] || run_apt update >/dev/null 2>&1 || true
    for package in "$@"; do
        if have apt-get &&
            run_apt install -y --no-install-recommends "$package" >/dev/null 2>&1; then
            say "installed: $package"
        else
            say "cannot be installed here, its tests are skipped: $package"
        fi
    done
}

# missing_for_both BUILD [MESON-OPTION…]: what quickstart.sh and run.sh lack, and what tests are skipped without.
missing_for_both()
{
    { missing_for_build "$@"; missing_for_tests; useful_for_tests; } | sort -u
}

# install_packages ALL NAME…: with apt-get, as root or through sudo. Dies when that is not possible, and names ALL,
# so that who is no root has to be asked once.
install_packages()
{
    all=$1
    shift
    [ $# -gt 0 ] || return 0
    have apt-get || die "missing: $*; there is no apt-get here, install them (Debian's names)"
    as_root=
    if [ "$(id -u)" != 0 ]; then
        # shellcheck disable=SC2086 # a list of names
        have sudo || die "missing: $*; as root, for this and for all tests: apt-get update && apt-get install -y" \
            "--no-install-recommends" $all
        as_root=sudo
        [ -t 0 ] || as_root='sudo -n'
    fi
    say "installing: $*"
    apt_log=$(mktemp)
    # A list that cannot be refreshed (some third party's) matters only if the install then fails.
    run_apt update >"$apt_log" 2>&1 || true
    if ! run_apt install -y --no-install-recommends "$@" >>"$apt_log" 2>&1; then
        # What could not be fetched is why there is no candidate, and comes first.
        cause=$(grep -e '^[WE]: Failed to fetch' "$apt_log" | head -n 1)
        cause=${cause:-$(grep -e '^E:' -e '^sudo:' "$apt_log" | tail -n 1)}
        die "apt-get could not install $*: ${cause:-it gave no reason} (log: $apt_log)"
    fi
    rm -f "$apt_log"
}

check_meson()
{
    version=$(meson --version)
    case $version in
        0.*) die "meson $version is too old, 1.0 is needed: install a newer one (pip has it)" ;;
    esac
}

# fetch_wheel_headers FOLDER WHEEL: NVIDIA's headers into FOLDER/include, where they are not there
# yet. 1: they cannot be had, $cause says why.
fetch_wheel_headers()
{
    [ ! -e "$1/include/cuda.h" ] || return 0
    say "fetching the CUDA headers: $2 from PyPI"
    mkdir -p "$1"
    unpack=$(mktemp -d "$1/unpack.XXXXXX")
    if ! try_again python3 -m pip download -q --disable-pip-version-check --no-input --no-deps \
        --only-binary=:all: -d "$unpack" "$2" >"$unpack/log" 2>&1 </dev/null; then
        # Where no connection is made, pip warns of that, and ends by saying that there is no such thing.
        cause=$(sed -n 's/^WARNING: Retrying .* broken by //p' "$unpack/log" | tail -n 1)
        cause=${cause:-$(grep -v -e '^WARNING' "$unpack/log" | tail -n 1)}
        mv "$unpack/log" "$1.log"
        rm -rf "$unpack"
        cause="could not fetch $2: ${cause:-pip gave no reason} (log: $1.log)"
        return 1
    fi
    python3 -m zipfile -e "$unpack"/*.whl "$unpack/wheel" </dev/null
    for found in "$unpack"/wheel/nvidia/*/include; do
        if [ -e "$found/cuda.h" ]; then
            rm -rf "$1/include"
            mv "$found" "$1/include"
        fi
    done
    rm -rf "$unpack"
    cause="$2 has no cuda.h where it used to be"
    [ -e "$1/include/cuda.h" ]
}

# fetch_clang_format BUILD: the version that tests/check_format.py names, into BUILD/clang-format. Where it cannot be
# had that test is skipped.
fetch_clang_format()
{
    format_version=$(sed -n "s/^VERSION = '\\(.*\\)'/\\1/p" "$root/tests/check_format.py")
    [ ! -e "$1/clang-format/clang_format" ] || return 0
    try_again python3 -m pip install -q --disable-pip-version-check --no-input --no-deps --only-binary=:all: \
        --target "$1/clang-format" "clang-format==$format_version" >/dev/null 2>&1 </dev/null || true
}

# fetch_cuda_headers BUILD [MESON-OPTION…]: where no cuda.h is installed, the headers of NVIDIA's
# wheel into BUILD/cuda-headers, where meson.build looks last.
fetch_cuda_headers()
{
    headers=$1/cuda-headers
    shift
    cuda_headers_found "$@" || fetch_wheel_headers "$headers" "$cuda_wheel" ||
        die "$cause; give the headers with CUDA_HOME=DIR (DIR/include/cuda.h)"
}

# configure BUILD MESON-OPTION…: a new build folder, or one that is there as if it were new. Meson
# keeps in this file which options were given and what it looked for and did not find; without it,
# it looks again, and what was compiled stays. Warnings are errors in all of them, so that quickstart.sh and run.sh have
# one build in common.
configure()
{
    folder=$1
    shift
    rm -f "$folder/meson-private/coredata.dat"
    meson setup "$folder" "$root" -Dwerror=true "$@" </dev/null
}

# configured_libcuda: the path of the libcuda.so.1 that the loader finds by its configuration.
configured_libcuda()
{
    for ldconfig in ldconfig /sbin/ldconfig; do
        if have "$ldconfig"; then
            "$ldconfig" -p 2>/dev/null | sed -n 's/^[[:space:]]*libcuda\.so\.1 .*64.*=> //p' |
                head -n 1
            return 0
        fi
    done
}

# system_libcuda: the path of the installed driver's libcuda.so.1, where there is one. In containers
# it may lie where only LD_LIBRARY_PATH leads to, or where runtimes usually mount it.
system_libcuda()
{
    found=$(configured_libcuda)
    if [ -z "$found" ]; then
        for folder in $(printf '%s' "${LD_LIBRARY_PATH:-}" | tr : ' ') \
            /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/wsl/lib; do
            # The tests' driver is none.
            if [ -e "$folder/libcuda.so.1" ] && [ -e "$folder/libnvidia-ptxjitcompiler.so.1" ]; then
                found=$folder/libcuda.so.1
                break
            fi
        done
    fi
    [ -z "$found" ] || printf '%s\n' "$found"
}

# have_gpu: the driver's library and one of its device nodes. (Not nvidiactl or nvidia-uvm: they
# stay when the GPU was given to another container.)
have_gpu()
{
    for node in /dev/nvidia[0-9]*; do
        if [ -c "$node" ] && [ -n "$(system_libcuda)" ]; then
            return 0
        fi
    done
    return 1
}
