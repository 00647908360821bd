#!/bin/bash
# What `make setup` does: system packages, .venv, kinst in it, the kernel.  Each step is skipped
# in milliseconds when it is done already.
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

system_packages() {
    local missing started=$SECONDS
    missing=$(missing_packages | tr '\n' ' ')
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

started=$SECONDS
system_packages
environment
# Asked of the cache folder itself, offline; prints only when there was something to fetch.
$venv/bin/python setup/fetch_kernel.py $isa
took=$((SECONDS - started))
[ $took -lt 2 ] || say "done ($took s)"
