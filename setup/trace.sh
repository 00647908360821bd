#!/bin/bash
# What `make trace` shows: one instruction with registers, then all instructions of a function.
set -euo pipefail
cd "$(dirname "$0")/.."

show() {
    local word line='.venv/bin/kinst'
    for word; do
        case $word in
        -*) line+=" $word" ;;
        *) line+=" '$word'" ;;
        esac
    done
    printf '\n$ %s\n' "$line"
    .venv/bin/kinst "$@"
}

started=$SECONDS
show -n 'kinst::vfs_read:19 { printf("%s reads %d bytes to %#x", execname, regs[R_RDX], regs[R_RSI]); }' \
    -c 'wc -l /etc/passwd'
show -n 'kinst::vfs_read: { @[probename] = count(); }' -c 'cat /proc/[0-9]*/status | wc -l'
printf '\ntrace: two kernels booted and traced in %s s\n' $((SECONDS - started))
