"""kinst's own translators: the structures of the Dynamic Tracing Guide ("Translators", "proc
Provider", "io Provider") that mean something in Linux, as D text.

A part is compiled only if a program uses one of its names, and a member's expression only if the
member is used, because kernels differ. Members without a counterpart in Linux are declared but have
no conversion (D_XLATE_NOCONV).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from kinst.dlang.check.expansions import define_inline, define_translator
from kinst.dlang.check.scope import Check, Scope
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.program_parser import parse
from kinst.dlang.vocabulary.type_names import words
from kinst.dlang.walk import walk

_PSINFO = """
typedef struct psinfo {
    int pr_nlwp; pid_t pr_pid; pid_t pr_ppid; pid_t pr_pgid; pid_t pr_sid;
    uid_t pr_uid; uid_t pr_euid; gid_t pr_gid; gid_t pr_egid; uintptr_t pr_addr; size_t pr_size;
    string pr_fname; string pr_psargs;
    int pr_ttydev; char pr_dmodel; int pr_argc; uintptr_t pr_argv; uintptr_t pr_envp;
    int pr_taskid; int pr_projid; int pr_poolid; int pr_zoneid; int pr_contract; int pr_jailid;
} psinfo_t;
translator psinfo_t < struct task_struct *T > {
    pr_nlwp = T->signal->nr_threads;
    pr_pid = T->tgid;
    pr_ppid = T->real_parent->tgid;
    pr_pgid = T->signal->pids[PIDTYPE_PGID]->numbers[0].nr;
    pr_sid = T->signal->pids[PIDTYPE_SID]->numbers[0].nr;
    pr_uid = T->real_cred->uid.val;
    pr_euid = T->real_cred->euid.val;
    pr_gid = T->real_cred->gid.val;
    pr_egid = T->real_cred->egid.val;
    pr_addr = (uintptr_t)T->group_leader;
    pr_size = T->mm == NULL ? 0 : T->mm->total_vm * 4;
    pr_fname = T->group_leader->comm;
    pr_psargs = T->group_leader == curthread->group_leader ? execargs :
        stringof(T->group_leader->comm);
};
inline psinfo_t *curpsinfo = xlate < psinfo_t * > (curthread);
"""

# States and flags of include/linux/sched.h (__TASK_STOPPED | __TASK_TRACED, PF_KTHREAD); the
# letters are those of SVR4's ps(1), the classes those of Linux's.
_LWPSINFO = """
inline int PR_STOPPED = 0x1;
inline int PR_ASLEEP = 0x10;
inline int PR_ISSYS = 0x1000;
typedef struct lwpsinfo {
    int pr_flag; id_t pr_lwpid; uintptr_t pr_addr; char pr_state; char pr_sname; char pr_nice;
    int pr_pri; string pr_clname; string pr_name; processorid_t pr_onpro;
    uintptr_t pr_wchan; char pr_stype; short pr_syscall; processorid_t pr_bindpro;
    int pr_bindpset; int pr_lgrp;
} lwpsinfo_t;
translator lwpsinfo_t < struct task_struct *T > {
    pr_flag = ((T->__state & 0xc) ? PR_STOPPED : 0) | (T->__state ? PR_ASLEEP : 0) |
        ((T->flags & 0x200000) ? PR_ISSYS : 0);
    pr_lwpid = T->pid;
    pr_addr = (uintptr_t)T;
    pr_state = T == curthread ? SONPROC : T->exit_state ? SZOMB : !T->__state ? SRUN :
        (T->__state & 0xc) ? SSTOP : SSLEEP;
    pr_sname = T == curthread ? 'O' : T->exit_state ? 'Z' : !T->__state ? 'R' :
        (T->__state & 0xc) ? 'T' : 'S';
    pr_nice = T->static_prio - 120;
    pr_pri = T->prio;
    pr_clname = T->policy == 0 ? "TS" : T->policy == 1 ? "FF" : T->policy == 2 ? "RR" :
        T->policy == 3 ? "B" : T->policy == 5 ? "IDL" : T->policy == 6 ? "DLN" : "?";
    pr_name = T->comm;
    pr_onpro = T->thread_info.cpu;
};
inline lwpsinfo_t *curlwpsinfo = xlate < lwpsinfo_t * > (curthread);
"""

_CPUINFO = """
typedef struct cpuinfo {
    processorid_t cpu_id; psetid_t cpu_pset; chipid_t cpu_chip; lgrp_id_t cpu_lgrp;
} cpuinfo_t;
translator cpuinfo_t < int C > { cpu_id = C; };
inline cpuinfo_t *curcpu = xlate < cpuinfo_t * > (cpu);
"""

# A path would take a loop over the directories above.
_FILEINFO = """
typedef struct fileinfo {
    string fi_name; string fi_fs; off_t fi_offset; int fi_oflags;
    string fi_dirname; string fi_pathname; string fi_mount;
} fileinfo_t;
translator fileinfo_t < struct file *F > {
    fi_name = F == NULL ? "<none>" : stringof(F->f_path.dentry->d_name.name);
    fi_fs = F == NULL ? "<none>" : stringof(F->f_inode->i_sb->s_type->name);
    fi_offset = F == NULL ? 0 : F->f_pos;
    fi_oflags = F == NULL ? 0 : F->f_flags;
};
inline fileinfo_t fds[int fd] = xlate < fileinfo_t > (
    fd >= 0 && fd < curthread->files->fdt->max_fds ?
    curthread->files->fdt->fd[fd] : (struct file *)0);
"""


@dataclass(frozen=True, slots=True)
class _Part:
    """text: the D text. types: the typedefs that it declares. names: the names that call for it."""

    text: str
    types: frozenset[str]
    names: frozenset[str]


_PARTS = (
    _Part(_PSINFO, words("psinfo_t"), words("psinfo_t psinfo curpsinfo")),
    _Part(
        _LWPSINFO,
        words("lwpsinfo_t"),
        words("lwpsinfo_t lwpsinfo curlwpsinfo PR_STOPPED PR_ASLEEP PR_ISSYS"),
    ),
    _Part(_CPUINFO, words("cpuinfo_t"), words("cpuinfo_t cpuinfo curcpu")),
    _Part(
        _FILEINFO,
        words("fileinfo_t"),
        words("fileinfo_t fileinfo fds"),
    ),
)


@cache
def _items(text: str) -> tuple[tree.Item, ...]:
    program = parse(text + "BEGIN { }", "kinst's library")
    return tuple(item for item in program.items if not isinstance(item, tree.Clause))


def _names(program: tree.Program) -> set[str]:
    """Every name and every word of a type in a program."""
    found: set[str] = set()
    for node in walk(program):
        if isinstance(node, tree.Name):
            found.add(node.name)
        elif isinstance(node, tree.TypeName):
            found.update(node.words)
    return found


def use(program: tree.Program, scope: Scope, check: Check) -> None:
    """Declare what the program uses of the library, except what it defines itself."""
    used = _names(program)
    own = {i.name for i in program.items if isinstance(i, tree.TypeDeclaration | tree.Inline)}
    for part in _PARTS:
        if not part.names & used or part.names & own:
            continue
        for item in _items(part.text):
            if isinstance(item, tree.TypeDeclaration):
                scope.types.declare(item)
            elif isinstance(item, tree.Inline):
                define_inline(item, scope, check)
            elif isinstance(item, tree.Translator):
                define_translator(item, scope, check, lazily=True)
