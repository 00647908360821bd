#!/bin/bash
# What `make setup` does: install system packages, make .venv with kinst in it, and fetch the kernel.  A step
# that has been done before takes milliseconds.  `setup.sh test` also installs what `make test` needs,
# `setup.sh all` what all tests need.  If HOME is not set, it is taken from the system's entry for this user.
set -euo pipefail
cd "$(dirname "$0")/.."

isa=amd64
venv=.venv
export HOME=${HOME:-~}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kinst
# Checksum of the requirements that were installed into .venv: if it changes, all are installed again.
stamp=$venv/.kinst-installed

say() {
    printf 'setup: %s\n' "$*"
}

# shellcheck source=setup/tools.sh
. setup/tools.sh
# shellcheck source=setup/packages.sh
. setup/packages.sh

environment() {
    local wanted python started=$SECONDS
    wanted="$PWD $(cat requirements.lock pyproject.toml | sha256sum)"
    [ "$(cat $stamp 2>/dev/null)" = "$wanted" ] && [ -x $venv/bin/python ] &&
        [ -x $venv/bin/kinst ] && return 0
    if [ ! -w . ] || { [ -e $venv ] && [ ! -w $venv ]; }; then
        say "$PWD cannot be written to, and $venv is made in it: copy the checkout elsewhere"
        exit 1
    fi
    # An interrupted run may have left a .venv without pip.
    if ! $venv/bin/python -m pip --version >/dev/null 2>&1; then
        if ! python=$(find_python venv); then
            say "no Python 3.11 or newer with its venv module was found"
            say "on Debian 12: apt-get install python3-venv"
            exit 1
        fi
        say "making $venv with $("$python" --version)"
        "$python" -m venv $venv
    fi
    say "installing $(grep -c == requirements.lock) Python packages into $venv"
    $venv/bin/python -m pip install -qq --disable-pip-version-check --no-compile -r requirements.lock
    $venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps \
        --no-build-isolation -e .
    compile_packages
    echo "$wanted" >$stamp
    say "$venv is ready ($((SECONDS - started)) s)"
}

# Compile the packages that kinst runs with to bytecode, for users who may not write to .venv.  pip would
# also compile the packages that only tests use, and the packages' own tests: 50 of 67 MB of source.
compile_packages() {
    $venv/bin/python -m compileall -q -j 0 \
        -x 'site-packages/(.*/)?(tests|pandas|mypy|mypyc|pip|setuptools|hypothesis|_pytest|pygments)/' \
        $venv/lib/python*/site-packages >/dev/null || true
}

# Index the kernel's debug information.  The first index also compiles the code that makes indexes and saves
# it in the cache, so that the user's first trace need not wait for that.
debug_index() {
    local vmlinux started=$SECONDS
    # shellcheck disable=SC2012 # kinst chooses these names
    vmlinux=$(ls "$cache"/kernels/$isa/*/usr/lib/debug/boot/vmlinux-* | sort -V | tail -n 1)
    [ "$(cat $venv/.kinst-indexed 2>/dev/null)" = "$vmlinux" ] && return 0
    say "indexing the kernel's debug information"
    $venv/bin/inlinecall fdget "$vmlinux" >/dev/null
    # Also index the kernel's names, for completion by TAB.
    $venv/bin/kinst --complete zsh kinst::vfs_ kinst -n >/dev/null
    echo "$vmlinux" >$venv/.kinst-indexed
    say "index is ready ($((SECONDS - started)) s)"
}

# kernel ISA [VERSION]: fetch the kernel to boot.  Skipped if the kernel's files are unchanged since the last
# time.
kernel() {
    local of_last_time=$venv/.kinst-kernel-$1${2:+-$2}
    ! is_unchanged "$of_last_time" "$(kernel_key "$1")" || return 0
    # Prints only if there was something to fetch.
    $venv/bin/python setup/fetch_kernel.py "$@" || return
    kernel_key "$1" >"$of_last_time"
}

# is_unchanged FILE KEY: true if KEY names at least one file and is what FILE has from the last time.
is_unchanged() {
    [ -n "$2" ] && [ "$(cat "$1" 2>/dev/null)" = "$2" ]
}

kernel_key() {
    stat -L -c '%n %i %s %Y' \
        "$cache/kernels/$1"/*/{manifest.json,boot/*,bin/*,usr/lib/debug/boot/*} 2>/dev/null || true
}

# Fetch Debian 13's QEMU into the cache, and try each of its programs once: it must start a machine.
newer_qemu() {
    local folder program machine proof=$venv/.kinst-newer-qemu
    folder=$cache/tests/qemu-10/bin
    ! is_unchanged "$proof" "$(newer_qemu_key)" || return 0
    [ -d "$folder" ] || say "fetching Debian 13's QEMU"
    PYTHONPATH=. $venv/bin/python tools/newer_qemu.py || return
    for program in "$folder"/qemu-system-*; do
        machine=virt
        [ "${program##*/}" != qemu-system-x86_64 ] || machine=q35
        if ! starts_qemu "$program" -machine $machine >/dev/null; then
            say "$program starts no machine; delete $cache/tests/qemu-10 to fetch it again"
            return 1
        fi
    done
    newer_qemu_key >"$proof"
}

newer_qemu_key() {
    stat -L -c '%n %i %s %Y' "$cache"/tests/qemu-10/bin/* "$cache"/tests/qemu-10/usr/bin/* 2>/dev/null || true
}

# Boot a guest once in each boot of this machine: kinst finds out by it whether KVM works here, which it says
# only then, and saves the state from which later guests start.
first_guest() {
    local key stamp=$venv/.kinst-first-guest began=$SECONDS
    key="$(cat /proc/sys/kernel/random/boot_id) $(kernel_key $isa)"
    ! is_unchanged $stamp "$key" || return 0
    $venv/bin/kinst -q -n 'kinst::vfs_read:0 { exit(0); }' -c 'cat /etc/passwd >/dev/null'
    echo "$key" >$stamp
    say "a first guest has booted ($((SECONDS - began)) s)"
}

started=$SECONDS
level=${1:-basic}
system_packages "$level"
environment
kernel $isa
debug_index
[ "$level" = basic ] || first_guest
# The other kernels that kinst can boot are fetched on first use, and for tests.
if [ "$level" = all ]; then
    # A mirror may lack a kernel for a day; the other tests can run without it.
    kernel arm64 || say "without it the tests of arm64 fail"
    kernel riscv64 || say "without it the tests of riscv64 fail"
    # To build kinst's kernel module, for tests/vm/live/test_live_module.py.
    PYTHONPATH=. $venv/bin/python setup/fetch_headers.py
    # For tests/vm/guests/test_kernels.py, whose other kernels `make test-release` fetches.
    kernel amd64 6.12
    newer_qemu || say "without it the tests of CPUs that are newer than this QEMU fail"
fi
took=$((SECONDS - started))
[ $took -lt 2 ] || say "done ($took s)"
