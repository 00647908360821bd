"""Linux's own part of D: constants, structures, libraries and encodings.

The values are those of errno(3), signal(7), open(2) and socket(2), which are equal on amd64, arm64
and riscv64. dtrace(1) defines these constants in its libraries errno.d, signal.d, unistd.d, io.d,
procfs.d and socket.d. The D libraries with types and translators are in the folder d, those with
providers in d/providers, one file for each provider.

Tested by tests/dlang/check/test_library.py.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kinst.core.dialect import (
    AddressFamilies,
    DeviceNumbers,
    Dialect,
    EncodedBits,
    MustSucceed,
    TrialFacts,
    libraries_in,
)
from kinst.core.dtypes import ArrayType, IntType, Member, StructType
from kinst.systems.linux.guest.boot import SIGNS

_LIBRARIES = Path(__file__).with_name("d")
_PROVIDERS = _LIBRARIES / "providers"

# Names of the numbers from 1 on; "-" for a number without a name.
_ERRORS = """
EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK
EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE
EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP - ENOMSG EIDRM
ECHRNG EL2NSYNC EL3HLT EL3RST ELNRNG EUNATCH ENOCSI EL2HLT EBADE EBADR EXFULL ENOANO EBADRQC
EBADSLT - EBFONT ENOSTR ENODATA ETIME ENOSR ENONET ENOPKG EREMOTE ENOLINK EADV ESRMNT ECOMM EPROTO
EMULTIHOP EDOTDOT EBADMSG EOVERFLOW ENOTUNIQ EBADFD EREMCHG ELIBACC ELIBBAD ELIBSCN ELIBMAX
ELIBEXEC EILSEQ ERESTART ESTRPIPE EUSERS ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT
EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL
ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN
ETOOMANYREFS ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE EUCLEAN
ENOTNAM ENAVAIL EISNAM EREMOTEIO EDQUOT ENOMEDIUM EMEDIUMTYPE ECANCELED ENOKEY EKEYEXPIRED
EKEYREVOKED EKEYREJECTED EOWNERDEAD ENOTRECOVERABLE ERFKILL EHWPOISON
"""

_SIGNALS = """
SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2 SIGPIPE
SIGALRM SIGTERM SIGSTKFLT SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGXCPU SIGXFSZ
SIGVTALRM SIGPROF SIGWINCH SIGIO SIGPWR SIGSYS
"""

# Reasons of SIGCHLD.
_CHILDREN = "CLD_EXITED CLD_KILLED CLD_DUMPED CLD_TRAPPED CLD_STOPPED CLD_CONTINUED"

_ALIASES = {
    "EWOULDBLOCK": "EAGAIN", "EDEADLOCK": "EDEADLK", "ENOTSUP": "EOPNOTSUPP",
    "SIGIOT": "SIGABRT", "SIGCLD": "SIGCHLD", "SIGPOLL": "SIGIO",
}  # fmt: skip

_FAMILIES = AddressFamilies(inet=2, inet6=10)  # include/linux/socket.h

_OTHERS = {
    # Flags of buffers, with the values of io.d of DTrace for Linux.
    "B_BUSY": 0x1, "B_DONE": 0x2, "B_ERROR": 0x4, "B_PAGEIO": 0x10, "B_PHYS": 0x20,
    "B_READ": 0x40, "B_WRITE": 0x100, "B_ASYNC": 0x400,
    "O_ACCMODE": 0o3, "O_RDONLY": 0, "O_WRONLY": 1, "O_RDWR": 2, "O_CREAT": 0o100,
    "O_EXCL": 0o200, "O_NOCTTY": 0o400, "O_TRUNC": 0o1000, "O_APPEND": 0o2000,
    "O_NONBLOCK": 0o4000, "O_NDELAY": 0o4000, "O_DSYNC": 0o10000, "O_SYNC": 0o4010000,
    "O_RSYNC": 0o4010000,
    "AF_UNIX": 1, "AF_INET": _FAMILIES.inet, "AF_INET6": _FAMILIES.inet6,
    "SOCK_STREAM": 1, "SOCK_DGRAM": 2, "SOCK_RAW": 3,
}  # fmt: skip

# Interrupt entry and exit outside of what preempt_count tells. Sources, of Linux 6.1 and 6.12:
# kernel/softirq.c, kernel/entry/common.c; arch/x86/include/asm/idtentry.h (DEFINE_IDTENTRY_SYSVEC,
# DEFINE_IDTENTRY_IRQ); arch/arm64/kernel/entry-common.c; arch/riscv/kernel/traps.c.
# The large steps of init/main.c and of what it calls.
_BOOT = (
    "setup_arch", "mm_init", "mm_core_init", "sched_init", "workqueue_init_early", "rcu_init",
    "init_IRQ", "time_init", "console_init", "late_time_init", "vfs_caches_init",
    "kernel_init_freeable", "smp_prepare_cpus", "workqueue_init", "smp_init", "sched_init_smp",
    "wait_for_initramfs", "async_synchronize_full", "free_initmem", "mark_rodata_ro",
    "pti_finalize",
)  # fmt: skip
_INTERRUPT_ENTRY = (
    "irq_enter", "irq_enter_rcu", "irq_exit", "irq_exit_rcu", "__irq_exit_rcu",
    "irqentry_enter", "irqentry_exit", "irqentry_exit_cond_resched",
    "raw_irqentry_exit_cond_resched", "irqentry_nmi_enter", "irqentry_nmi_exit",
    "sysvec_*", "common_interrupt", "spurious_interrupt", "exc_nmi",
    "asm_sysvec_*", "asm_common_interrupt", "asm_spurious_interrupt",
    "el1_interrupt", "el1h_64_irq_handler", "el1h_64_fiq_handler", "arm64_preempt_schedule_irq",
    "do_irq", "handle_riscv_irq",
)  # fmt: skip

_NO_ZONES = "it names a part of another kernel's system; Linux has namespaces"
_NO_LOCKS = "the locks of Linux are not what it asks about"
_NO_STREAMS = "Linux has no STREAMS messages"

_ABSENT = {
    "ipl": "Linux has no interrupt priority levels",
    **dict.fromkeys(("jailname", "jid", "zonename"), _NO_ZONES),
    **dict.fromkeys(("msgdsize", "msgsize"), _NO_STREAMS),
    **dict.fromkeys(
        (
            "mutex_owned", "mutex_owner", "mutex_type_adaptive", "mutex_type_spin",
            "rw_iswriter", "rw_read_held", "rw_write_held",
            "sx_exclusive_held", "sx_isexclusive", "sx_shared_held",
        ),
        _NO_LOCKS,
    ),
}  # fmt: skip

# kill(2) with signal 0 sends nothing; no process has such an id (PID_MAX_LIMIT, 4 million).
_TRIALS = TrialFacts(
    script=Path(__file__).parent / "guest" / "trials.sh",
    base=1_000_000_000,
    told="syscall::kill:entry",
    number="arg0",
    no_memory="ENOMEM",
    signs=SIGNS,
    # mm/debug.c, for "%pGg" of printk(); since Linux 4.6.
    must_succeed=MustSucceed("gfp_t", "__GFP_NOFAIL"),
)


def _constants() -> dict[str, int]:
    constants = dict(_OTHERS)
    for words in (_ERRORS, _SIGNALS, _CHILDREN):
        constants.update((word, n) for n, word in enumerate(words.split(), 1) if word != "-")
    constants.update((name, constants[other]) for name, other in _ALIASES.items())
    return constants


class _Members:
    """Members of struct in6_addr and of the union in it (include/uapi/linux/in6.h). Implements
    core.dtypes.MemberSource."""

    def members(self, struct: StructType) -> tuple[Member, ...]:
        if struct.kind == "struct":
            return (Member("in6_u", StructType("union", "", 16, "in6_u", self), 0),)
        return (_bytes("u6_addr8", 16), _bytes("u6_addr16", 8), _bytes("u6_addr32", 4))


def _bytes(name: str, count: int) -> Member:
    size = 16 // count
    return Member(name, ArrayType(IntType(size, False, f"uint{8 * size}_t"), count), 0)


@cache
def dialect() -> Dialect:
    """Return Linux's own part of D, with its library files."""
    return Dialect(
        system="Linux",
        constants=_constants(),
        structures={"in6_addr": StructType("struct", "in6_addr", 16, "in6_addr", _Members())},
        thread="task_struct",
        most_error=4095,  # MAX_ERRNO (include/linux/err.h)
        absent=_ABSENT,
        libraries=(*libraries_in(_LIBRARIES), *libraries_in(_PROVIDERS, by_provider=True)),
        # MAJOR() and MINOR() of a kernel's dev_t (include/linux/kdev_t.h): 12 and 20 bits.
        devices=DeviceNumbers(major=(EncodedBits(20, 0xFFF),), minor=(EncodedBits(0, 0xFFFFF),)),
        families=_FAMILIES,
        # include/linux/tracepoint.h (DEFINE_TRACE_FN), include/trace/bpf_probe.h.
        tracepoint_prototypes=("__traceiter_{}", "btf_trace_{}"),
        interrupt_entry=_INTERRUPT_ENTRY,
        boot_calls=("do_one_initcall",),
        boot_functions=_BOOT,
        trials=_TRIALS,
    )
