#!/bin/bash
# What `make trace` does: trace one instruction with registers, then all instructions of a function.
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
    printf '$ %s\n' "$line"
    .venv/bin/kinst "$@"
}

# At this instruction rdx still has the third argument of vfs_read(file, buffer, count, position).
one_instruction() {
    show -n "kinst::vfs_read:$1 { printf(\"%s reads %d bytes to %#x\", execname, regs[R_RDX], regs[R_RSI]); }" \
        -c 'wc -l /etc/passwd'
}

started=$SECONDS
printf '\nOne instruction: which programs reach vfs_read+19, and what is in two registers there.\n'
if ! one_instruction 19; then
    # In another build of the kernel no instruction may begin at +19; one always begins at +0.
    printf '\nNow the function'\''s first instruction, which every kernel has.\n'
    one_instruction 0
fi
printf '\nEvery instruction of a function: how often each one ran, sorted.\n'
show -n 'kinst::__fdget_pos: { @[probename] = count(); }' \
    -c 'cat /proc/[0-9]*/status | wc -l'
printf '\ntrace: done in %s s.  ". .venv/bin/activate" puts kinst into your path; README.md goes on.\n' \
    $((SECONDS - started))
