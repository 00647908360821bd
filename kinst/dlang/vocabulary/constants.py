"""Constants that every D program knows, and structures that the Dynamic Tracing Guide's programs
use and a kernel may not have.

The values are those of the traced system (Linux). libdtrace's libraries define them as inlines:
errno.d, signal.d, unistd.d, io.d and procfs.d (Dynamic Tracing Guide, "errno", "io Provider", "proc
Provider"; errno(3), signal(7) and open(2) for the values, which amd64, arm64 and riscv64 share).
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.dtypes import LONG, ArrayType, DType, Member, StructType
from kinst.dlang.vocabulary.type_names import typedef

# Numbered from 1; "-" is a number without a name.
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

_ALIASES = {
    "EWOULDBLOCK": "EAGAIN", "EDEADLOCK": "EDEADLK", "ENOTSUP": "EOPNOTSUPP",
    "SIGIOT": "SIGABRT", "SIGCLD": "SIGCHLD", "SIGPOLL": "SIGIO",
}  # fmt: skip

# dtrace:::ERROR's arg4 (unistd.d).
_FAULTS = "UNKNOWN BADADDR BADALIGN ILLOP DIVZERO NOSCRATCH KPRIV UPRIV TUPOFLOW BADSTACK"

# How a child ended (CLD_...) and which state a process is in (procfs.d).
_CHILDREN = "CLD_EXITED CLD_KILLED CLD_DUMPED CLD_TRAPPED CLD_STOPPED CLD_CONTINUED"

_STATES = "SSLEEP SRUN SZOMB SSTOP SIDL SONPROC"

_OTHERS = {
    # io.d of DTrace for Linux.
    "B_BUSY": 0x1, "B_DONE": 0x2, "B_ERROR": 0x4, "B_PAGEIO": 0x10, "B_PHYS": 0x20,
    "B_READ": 0x40, "B_WRITE": 0x100, "B_ASYNC": 0x400,
    "O_ACCMODE": 0o3, "O_RDONLY": 0, "O_WRONLY": 1, "O_RDWR": 2, "O_CREAT": 0o100,
    "O_EXCL": 0o200, "O_NOCTTY": 0o400, "O_TRUNC": 0o1000, "O_APPEND": 0o2000,
    "O_NONBLOCK": 0o4000, "O_NDELAY": 0o4000, "O_DSYNC": 0o10000, "O_SYNC": 0o4010000,
    "O_RSYNC": 0o4010000,
    # Families and protocols (socket.d, tcp.d).
    "AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10,
    "IPPROTO_IP": 0, "IPPROTO_ICMP": 1, "IPPROTO_TCP": 6, "IPPROTO_UDP": 17,
    "SOCK_STREAM": 1, "SOCK_DGRAM": 2, "SOCK_RAW": 3,
}  # fmt: skip


def _table() -> dict[str, int]:
    made = dict(_OTHERS)
    for words, first in (
        (_ERRORS, 1), (_SIGNALS, 1), (_CHILDREN, 1), (_STATES, 1),
    ):  # fmt: skip
        made.update((word, n) for n, word in enumerate(words.split(), first) if word != "-")
    made.update((f"DTRACEFLT_{word}", n) for n, word in enumerate(_FAULTS.split()))
    made.update((name, made[other]) for name, other in _ALIASES.items())
    return made


CONSTANTS = _table()

# Address families, for inet_ntop(): of Linux (include/linux/socket.h).
GUIDE_CONSTANTS = {"AF_INET": 2, "AF_INET6": 10}


def _bytes(name: str, count: int) -> Member:
    size = 16 // count
    return Member(name, ArrayType(typedef(f"uint{8 * size}_t"), count), 0)


class _Members:
    """See core.dtypes.MemberSource."""

    def members(self, struct: StructType) -> Sequence[Member]:
        return _MEMBERS.get(struct.name or struct.key, ())


_SOURCE = _Members()

_ADDRESS = StructType("union", "", 16, "in6_u", _SOURCE)

_MEMBERS = {
    # As Linux has it (include/uapi/linux/in6.h).
    "in6_u": (_bytes("u6_addr8", 16), _bytes("u6_addr16", 8), _bytes("u6_addr32", 4)),
    "in6_addr": (Member("in6_u", _ADDRESS, 0),),
    "timespec": (Member("tv_sec", typedef("time_t"), 0), Member("tv_nsec", LONG, 64)),
    "timeval": (Member("tv_sec", typedef("time_t"), 0), Member("tv_usec", LONG, 64)),
}


def guide_structure(kind: str, tag: str) -> DType | None:
    """The Guide's structure with this tag, or None."""
    if kind != "struct" or tag not in _MEMBERS or tag == "in6_u":
        return None
    return StructType(kind, tag, 16, tag, _SOURCE)
