#!/bin/sh
# Builds packages for this machine's distribution, or a wheel for Python on any with glibc 2.28 or newer (and its
# sources as Python has them, without the library):
#
#   sh examples/packages/build.sh [deb|rpm|wheel] [FOLDER]
#
# Where nothing is said, Debian's where dpkg-buildpackage is, else RPM's, into build/packages. All are built
# in a temporary copy of the tree as it is, with the version of meson.build. Their maintainer is the project, which has
# no address by itself: Debian's packages have that of DEBFULLNAME and DEBEMAIL, else one that can be nobody's. Their
# home page is GPUSHIM_HOMEPAGE, else where the tree was cloned from, if that is a page. Nothing is installed; the exit
# status is 77 where something is missing that would have to be. cuda.h is found as by every build, or fetched (into the
# build folder).
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/lib.sh
. "$root/tests/lib.sh"

missing()
{
    printf '%s: missing: %s\n' "$(basename "$0")" "$*" >&2
    exit 77
}

kind=
case ${1:-} in
    deb | rpm | wheel) kind=$1 && shift ;;
esac
case ${1:-} in
    -*) die 'usage: sh examples/packages/build.sh [deb|rpm|wheel] [FOLDER]' ;;
esac
if [ -z "$kind" ]; then
    kind=rpm
    ! have dpkg-buildpackage || kind=deb
fi
build=$(build_folder)
unset GPUSHIM_BUILD
result=${1:-$build/packages}
mkdir -p "$result"
result=$(cd "$result" && pwd)

version=$(sed -n "s/^ *version: '\(.*\)',$/\1/p" "$root/meson.build" | head -n 1)
[ -n "$version" ] || die "no version in $root/meson.build"
maintainer="${DEBFULLNAME:-libgpushim maintainers} <${DEBEMAIL:-maintainers@libgpushim.invalid}>"
# https://user:password@forge/owner/name.git and git@forge:owner/name.git are pages without those parts.
homepage=${GPUSHIM_HOMEPAGE-$(git -C "$root" remote get-url origin 2>/dev/null | sed -n \
    -e 's|\.git$||' -e 's|^git@\([^:/]*\):|https://\1/|' -e 's|^https://\([^/@]*@\)*|https://|p')}
# with_fields FILE: the file, with what is known filled in; a line whose field is not known is left out.
with_fields()
{
    awk -v version="$version" -v by="$maintainer" -v homepage="$homepage" '
        function fill(word, text) {
            if (at = index($0, word)) $0 = substr($0, 1, at - 1) text substr($0, at + length(word))
        }
        /@HOMEPAGE@/ && homepage == "" { next }
        { fill("@VERSION@", version); fill("@MAINTAINER@", by); fill("@HOMEPAGE@", homepage); print }' "$1"
}
# The same tree makes the same packages: their time is that of the last thing that users were told.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(stat -c %Y "$root/CHANGELOG.md")}
export SOURCE_DATE_EPOCH

# The headers, named so that a build in another folder finds them.
if [ -z "${CUDA_HOME:-}" ]; then
    fetch_cuda_headers "$build"
    if found=$(sh "$root/shim/find_cuda.sh" 2>/dev/null); then
        CUDA_HOME=$(dirname "$found")
    else
        CUDA_HOME=$build/cuda-headers
    fi
    export CUDA_HOME
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
copy=$work/gpushim-$version
mkdir "$copy"
(cd "$root" && tar -cf - --exclude='./build*' --exclude=./.git --exclude=./.cache --exclude=__pycache__ .) |
    tar -xf - -C "$copy" --no-same-owner

build_deb()
{
    have dpkg-buildpackage || missing 'dpkg-buildpackage (package dpkg-dev)'
    cp -R "$copy/examples/packages/debian" "$copy/debian"
    with_fields "$root/examples/packages/debian/control" >"$copy/debian/control"
    cat >"$copy/debian/changelog" <<CHANGES
gpushim ($version) unstable; urgency=medium

  * What a user can notice is in CHANGELOG.md.

 -- $maintainer  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
CHANGES
    cd "$copy"
    lacking=$(dpkg-checkbuilddeps 2>&1) || missing "${lacking##*: }"
    dpkg-buildpackage -b -us -uc >"$work/log" 2>&1 </dev/null || {
        tail -n 60 "$work/log"
        die 'dpkg-buildpackage failed, see above'
    }
    cp "$work"/*.deb "$work"/*.changes "$work"/*.buildinfo "$result"
    ls "$work"/*.deb | sed "s|^$work|$result|"
}

build_rpm()
{
    have rpmbuild || missing 'rpmbuild (package rpm-build, or rpm)'
    mkdir -p "$work/SOURCES" "$work/SPECS"
    with_fields "$copy/examples/packages/gpushim.spec" >"$work/SPECS/gpushim.spec"
    tar -czf "$work/SOURCES/gpushim-$version.tar.gz" -C "$work" "gpushim-$version"
    # What is required is named as RPM's distributions name it; elsewhere rpm knows of no package.
    depends=
    [ -e /etc/debian_version ] && depends=--nodeps
    # shellcheck disable=SC2086 # one option, or none
    rpmbuild -bb $depends --define "_topdir $work" "$work/SPECS/gpushim.spec" >"$work/log" 2>&1 </dev/null || {
        tail -n 60 "$work/log"
        die 'rpmbuild failed, see above'
    }
    find "$work/RPMS" -name '*.rpm' -exec cp {} "$result" ';'
    find "$work/RPMS" -name '*.rpm' -printf "$result/%f\n"
}

# The build is the ordinary one: it needs no newer libc than that by itself (shim/meson.build).
build_wheel()
{
    { have meson && have ninja; } || missing 'meson and ninja (packages meson and ninja-build)'
    {
        meson setup "$work/build" "$copy" --prefix="$work/installed" --libdir=lib --buildtype=debugoptimized \
            -Dtests=false -Dexamples=false -Dsystemd=disabled -Dagent=disabled &&
            meson compile -C "$work/build" &&
            meson install -C "$work/build" --no-rebuild --strip
    } >"$work/log" 2>&1 </dev/null || {
        tail -n 60 "$work/log"
        die 'the build failed, see above'
    }
    package=$copy/examples/packages/wheel
    printf '"""Of the build: made by build.sh from meson.build."""\nVERSION = '"'%s'"'\n' "$version" \
        >"$package/gpushim/_built.py"
    cp "$copy/LICENSE" "$package"
    with_fields "$root/examples/packages/wheel/pyproject.toml" >"$package/pyproject.toml"
    # hatchling makes the files; where it is not installed, one that pip fetches for this alone.
    python=python3
    python3 -c 'import importlib.metadata as m
assert tuple(map(int, m.version("hatchling").split(".")[:2])) >= (1, 27)' \
        2>/dev/null || {
        { python3 -m venv "$work/python" && "$work/python/bin/pip" install -q hatchling; } \
            >"$work/log" 2>&1 </dev/null ||
            missing 'hatchling, of 1.27 or newer (package python3-hatchling)'
        python=$work/python/bin/python
    }
    chmod a+x "$package/gpushim-broker"
    (cd "$package" && GPUSHIM_INSTALLED=$work/installed GPUSHIM_TAG=py3-none-manylinux_2_28_$(uname -m) \
        "$python" -m hatchling build -d "$work/made" -t sdist -t wheel) >"$work/log" 2>&1 </dev/null || {
        tail -n 60 "$work/log"
        die 'hatchling failed, see above'
    }
    cp "$work"/made/* "$result"
    for made in "$work"/made/*.tar.gz "$work"/made/*.whl; do
        echo "$result/${made##*/}"
    done
}

umask 022
"build_$kind"
