"""Random addresses dereferenced in a jump-planted clause.

The value is right if the kernel can read the address, dtrace:::ERROR fires if not, and the guest's
log has nothing new.  The kernel itself is the authority, for the same address in the same system
call: a kprobe event on the calling function fetches the memory
(Documentation/trace/kprobetrace.rst) as a number, and as a string, which is "(fault)" if it cannot
be read.  On the way back to user mode it fetches the number again: memory that has changed
meanwhile, or may have (the thread's own stack, which both use), has no right value.  The kernel's
event reads user memory too; to D it is another address space, reached by copyin() only.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.vm.command import guest_script, kinst, warnings

pytestmark = pytest.mark.vm

# struct pt_regs of x86-64 has di at 0x70 and si at 0x68: a system call's first two arguments.
SETUP = """
dmesg -c > /dev/null
cd /sys/kernel/tracing || exit 1
echo 16384 > buffer_size_kb
want='__x64_sys_read f=+0x70(%di):s32 a=+0x68(%di):x64'
echo "p:number $want v=+0(+0x68(%di)):x64" > kprobe_events || exit 1
echo "p:string $want s=+0(+0x68(%di)):string" >> kprobe_events || exit 1
echo "p:after exit_to_user_mode_prepare ${want#* } v=+0(+0x68(%di)):x64" >> kprobe_events || exit 1
for event in number string after; do
    echo 'f == -1 && comm == "wild"' > events/kprobes/$event/filter || exit 1
    echo 1 > events/kprobes/$event/enable
done
"""
# One line for each event: address, and the value or whether it could be read.
SHOW = r"""
echo 0 > events/kprobes/enable
sed -n 's/.* \(number\|after\): .* a=\(0x[0-9a-f]*\) v=\(0x[0-9a-f]*\)$/\1 \2 \3/p;t
s/.* string: .* a=\(0x[0-9a-f]*\) s=(fault)$/string \1 fault/p;t
s/.* string: .* a=\(0x[0-9a-f]*\) s=".*/string \1 read/p' trace
dmesg -r > /tmp/log; echo log; cat /tmp/log
"""
PAGES = 4  # of a kernel stack, which vmalloc has mapped a second time
EACH_PAGE = "\n".join(
    f'printf("stack 0x%x\\n", `page_offset_base + 4096 * (((uint64_t)this->pages[{k}] -'
    " `vmemmap_base) / sizeof (struct page)));"
    for k in range(PAGES)
)
PROGRAM = f"""
fbt::ksys_read:entry
/execname == "wild" && !told++/
{{
    printf("stack 0x%x\\n", (uint64_t)curthread->stack);
    this->pages = curthread->stack_vm_area->pages;
    {EACH_PAGE}
}}
fbt::ksys_read:entry
/execname == "wild" && (int)arg0 == -1/
{{
    printf("at 0x%x\\n", arg1);
    printf("value 0x%x 0x%x\\n", arg1, *(uint64_t *)arg1);
}}
dtrace:::ERROR
{{
    printf("error 0x%x %d\\n", arg5, arg4);
}}
"""
BADADDR = 1  # DTRACEFLT_BADADDR, the Guide's "ERROR Probe"
FIXED = 4244  # the seed, except in make test-release


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_wild_pointers(count: int, guest_program: Callable[[str], Path], tmp_path: Path) -> None:
    drawn = random.SystemRandom().randrange(1 << 31) if os.environ.get("KINST_RANDOM") else FIXED
    seed = int(os.environ.get("KINST_SEED") or drawn)
    print(f"\nKINST_SEED={seed}")
    script = guest_script(tmp_path, "wild.sh", f"{SETUP}\nwild {count} {seed}\n{SHOW}")
    done = kinst(
        "-q", "-x", "plant=jump", "-n", PROGRAM, "-c", "wild.sh",
        copy=[guest_program("wild"), script],
    ).good()  # fmt: skip
    truth = {
        int(address, 16): int(value, 16)
        for address, value in re.findall(r"^number (\w+) (\w+)$", done.guest, re.M)
    }
    strings = {
        int(address, 16): how
        for address, how in re.findall(r"^string (\w+) (\w+)$", done.guest, re.M)
    }
    later = {
        int(address, 16): int(value, 16)
        for address, value in re.findall(r"^after (\w+) (\w+)$", done.guest, re.M)
    }
    stack, *pages = (int(word, 16) for word in re.findall(r"^stack (\w+)$", done.out, re.M))
    moving = [range(stack, stack + 4096 * PAGES), *(range(at, at + 4096) for at in pages)]
    changed = {a for a in truth if later[a] != truth[a] or any(a in part for part in moving)}
    assert len(changed) <= count // 50, changed
    values = {
        int(address, 16): int(value, 16)
        for address, value in re.findall(r"^value (\w+) (\w+)$", done.out, re.M)
    }
    errors = re.findall(r"^error (\w+) (\d+)$", done.out, re.M)
    faults = {int(address, 16) for address, _ in errors}
    assert set(truth) == set(values) | faults and not set(values) & faults
    assert count * 0.99 <= len(truth) <= count  # an address may come twice
    assert len(re.findall(r"^value ", done.out, re.M)) + len(errors) == count
    assert {kind for _, kind in errors} == {str(BADADDR)}
    said = re.findall(r"^dtrace: error on enabled probe .*\((0x\w+)\) in action", done.err, re.M)
    more = re.findall(r"^kinst: (\d+) more errors? on CPU \d+, before these$", done.err, re.M)
    assert len(said) + sum(map(int, more)) == len(errors)
    assert {int(address, 16) for address in said} <= faults
    for address, value in truth.items():
        # A string too long for the kernel's buffer leaves no event, so it was read.
        how = strings.get(address, "read")
        if address in values:
            same = values[address] == value or address in changed
            assert same and how == "read", (hex(address), values[address], value, seed)
        else:
            assert how == "fault" or address >> 47 == 0, (hex(address), value, seed)
    assert len(strings) > 0.9 * len(truth)
    assert min(len(values), len(faults)) > count // 5
    assert "drops" not in done.err
    assert warnings(done.guest.split("\nlog\n", 1)[1]) == []
