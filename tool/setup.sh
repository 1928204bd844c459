#!/bin/sh
# tool/setup.sh run|test|fuzz|picture: makes sure that the commands to build aura, to test it, to fuzz it, or to draw doc/demo.png,
# are there. On Debian and its relatives what is missing gets installed, if this user may; otherwise one line says what is missing.
set -u

# A command, and the Debian packages it comes from.
run_needs='cc:gcc,libc6-dev make:make cmake:cmake'
run_wants='libedit:libedit2' # which `aura run` loads by its name: without it a conversation's line has neither editing nor history
test_needs="$run_needs gcc:gcc,libc6-dev g++:g++ clang:clang pkg-config:pkg-config nm:binutils
    python3:python3 aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu,libc6-dev-arm64-cross
    qemu-aarch64:qemu-user qemu-x86_64:qemu-user"
test_wants='mpicc:libopenmpi-dev mpirun:openmpi-bin UCX:libucx-dev' # tests of many processes, which are skipped without them

fuzz_needs="$run_needs clang:clang libFuzzer:libclang-rt-14-dev"
picture_needs="$run_needs chromium:chromium,fonts-dejavu-core"

wants= lost=
case ${1-} in
run) needs=$run_needs wants=$run_wants lost='a conversation with aura run has no editing of its line' ;;
test) needs=$test_needs wants="$run_wants $test_wants" lost='some tests are skipped' ;;
fuzz) needs=$fuzz_needs ;;
picture) needs=$picture_needs ;;
*) echo 'usage: tool/setup.sh run|test|fuzz|picture' >&2; exit 2 ;;
esac

# A C compiler without its C library's headers is as good as none. libFuzzer is no command, but a library of clang's; UCX is a header,
# libedit a library.
have() {
    if [ "$1" = libedit ]; then
        PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null | grep -q 'libedit\.so'
        return
    fi
    if [ "$1" = UCX ]; then
        echo '#include <ucp/api/ucp.h>' | cc -E -x c - >/dev/null 2>&1
        return
    fi
    if [ "$1" = libFuzzer ]; then
        echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return !d && n; }' |
            clang -fsanitize=fuzzer,address -x c - -o /dev/null >/dev/null 2>&1
        return
    fi
    command -v "$1" >/dev/null 2>&1 || return 1
    case $1 in
    cc | gcc | clang | *-gcc) echo '#include <math.h>' | "$1" -E -x c - >/dev/null 2>&1 ;;
    esac
}

# missing NEED...: those that are not there.
missing() {
    for need in "$@"; do
        have "${need%%:*}" || echo "$need"
    done
}

# install NEED...: their packages, where this user may.
install() {
    packages=$(for need in "$@"; do echo "${need#*:}" | tr ',' '\n'; done | sort -u | tr '\n' ' ')
    command -v apt-get >/dev/null 2>&1 && [ "$as_root" != no ] || return
    echo "aura: installing $packages"
    apt="$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq"
    output=$($apt update 2>&1 && $apt install -y --no-install-recommends $packages 2>&1) || echo "$output" >&2
}

# listed NEED...: in words.
listed() {
    for need in "$@"; do echo "${need%%:*} (package ${need#*:})"; done | sed 's/,/ and /; $!s/$/,/' | tr '\n' ' ' | sed 's/ $//'
}

if [ "$(id -u)" = 0 ]; then
    as_root=
elif sudo -n true >/dev/null 2>&1; then
    as_root='sudo -n'
else
    as_root=no
fi
lacking=$(missing $needs)
[ -z "$lacking" ] || install $lacking
wanted=$(missing $wants)
[ -z "$wanted" ] || install $wanted

lacking=$(missing $needs)
wanted=$(missing $wants)
[ -z "$wanted" ] || echo "aura: without $(listed $wanted) $lost" >&2
[ -n "$lacking" ] || exit 0
echo "aura: missing: $(listed $lacking) — install them and try again" >&2
exit 1
