#!/bin/bash
# What `make setup` does: system packages, .venv, kinst in it, the kernel.  Each step is skipped
# in milliseconds when it is done already.  `setup.sh test` also gets what only tests need.
set -euo pipefail
cd "$(dirname "$0")/.."

isa=amd64
venv=.venv
# What was installed into .venv: when any of it changes, it is installed again.
stamp=$venv/.kinst-installed

say() {
    printf 'setup: %s\n' "$*"
}

# The first Python that is new enough; with "venv", only one that can make environments.
find_python() {
    local python
    for python in python3.11 python3 python3.12 python3.13 python3.14; do
        if "$python" -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null &&
            { [ "${1:-}" != venv ] || "$python" -c "import ensurepip, venv" 2>/dev/null; }; then
            echo "$python"
            return
        fi
    done
    return 1
}

missing_packages() {
    command -v qemu-system-x86_64 >/dev/null || echo qemu-system-x86
    command -v gdb >/dev/null || echo gdb
    # gcc answers with a path where it has the file, and with the bare name where it has not.
    if ! command -v gcc >/dev/null; then
        echo gcc libc6-dev
    elif [ "$(gcc -print-file-name=libc.a)" = libc.a ]; then
        echo libc6-dev
    fi
    if [ ! -x $venv/bin/python ] && ! find_python venv >/dev/null; then
        find_python >/dev/null || echo python3
        echo python3-venv
    fi
}

# Compilers and readers of debug information that tests compare kinst with.
missing_test_packages() {
    command -v clang >/dev/null || echo clang
    command -v dwz >/dev/null || echo dwz
    command -v llvm-dwarfdump >/dev/null || echo llvm
    command -v addr2line >/dev/null || echo binutils
    command -v qemu-system-aarch64 >/dev/null || echo qemu-system-arm
    command -v qemu-system-riscv64 >/dev/null || echo qemu-system-misc
    command -v aarch64-linux-gnu-gcc >/dev/null || echo gcc-aarch64-linux-gnu
    command -v riscv64-linux-gnu-gcc >/dev/null || echo gcc-riscv64-linux-gnu
    [ -e /usr/include/elfutils/libdw.h ] || echo libdw-dev
}

system_packages() {
    local missing started=$SECONDS
    missing=$({ missing_packages; [ "${1:-}" != test ] || missing_test_packages; } | tr '\n' ' ')
    [ -n "$missing" ] || return 0
    if ! command -v apt-get >/dev/null; then
        say "this machine has no apt; install by its own means what Debian calls: $missing"
        exit 1
    fi
    if [ "$(id -u)" != 0 ]; then
        say "these packages are missing, and only root can install them; run this, then again make:"
        say "    sudo apt-get install --no-install-recommends $missing"
        exit 1
    fi
    say "installing packages: $missing"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # a list of words
    if ! { apt-get update -q && apt-get install -q -y --no-install-recommends $missing; } \
        >/tmp/kinst-setup.$$ 2>&1; then
        tail -n 15 /tmp/kinst-setup.$$
        rm -f /tmp/kinst-setup.$$
        say "apt-get could not install: $missing"
        exit 1
    fi
    rm -f /tmp/kinst-setup.$$
    say "packages installed ($((SECONDS - started)) s)"
}

environment() {
    local wanted python started=$SECONDS
    wanted="$PWD $(cat requirements.lock pyproject.toml | sha256sum)"
    [ "$(cat $stamp 2>/dev/null)" = "$wanted" ] && [ -x $venv/bin/kinst ] && return 0
    # An interrupted run may have left one without pip.
    if ! $venv/bin/python -m pip --version >/dev/null 2>&1; then
        if ! python=$(find_python venv); then
            say "no Python 3.11 or newer with its venv module was found"
            say "on Debian 12: apt-get install python3 python3-venv"
            exit 1
        fi
        say "making $venv with $("$python" --version)"
        "$python" -m venv $venv
    fi
    say "installing $(grep -c == requirements.lock) Python packages into $venv"
    $venv/bin/python -m pip install -qq --disable-pip-version-check -r requirements.lock
    $venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps \
        --no-build-isolation -e .
    echo "$wanted" >$stamp
    say "$venv is ready ($((SECONDS - started)) s)"
}

# The first index compiles the code that makes it, which is then kept; so does nobody's first trace.
debug_index() {
    local vmlinux started=$SECONDS
    vmlinux=$(ls "${XDG_CACHE_HOME:-$HOME/.cache}"/kinst/kernels/$isa/*/usr/lib/debug/boot/vmlinux-* |
        sort -V | tail -n 1)
    [ "$(cat $venv/.kinst-indexed 2>/dev/null)" = "$vmlinux" ] && return 0
    say "indexing the kernel's debug information"
    $venv/bin/inlinecall fdget "$vmlinux" >/dev/null
    echo "$vmlinux" >$venv/.kinst-indexed
    say "index is ready ($((SECONDS - started)) s)"
}

started=$SECONDS
system_packages "${1:-}"
environment
# Asked of the cache folder itself, offline; prints only when there was something to fetch.
$venv/bin/python setup/fetch_kernel.py $isa
debug_index
# The other kernels that kinst can boot are fetched when they are first used, and for tests.
if [ "${1:-}" = test ]; then
    $venv/bin/python setup/fetch_kernel.py arm64
    $venv/bin/python setup/fetch_kernel.py riscv64
fi
took=$((SECONDS - started))
[ $took -lt 2 ] || say "done ($took s)"
