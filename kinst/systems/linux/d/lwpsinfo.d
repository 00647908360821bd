/*
 * A thread (Dynamic Tracing Guide, "proc Provider").
 *
 * States and flags: include/linux/sched.h (__TASK_STOPPED | __TASK_TRACED, PF_KTHREAD).  The letters
 * are those of SVR4's ps(1), the classes those of Linux's.
 */

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
    pr_flag = curthread == NULL && T == NULL ? 0 :
        ((T->__state & 0xc) ? PR_STOPPED : 0) | (T->__state ? PR_ASLEEP : 0) |
        ((T->flags & 0x200000) ? PR_ISSYS : 0);
    pr_lwpid = curthread == NULL && T == NULL ? tid : T->pid;
    pr_addr = (uintptr_t)T;
    pr_state = T == curthread ? SONPROC : T->exit_state ? SZOMB : !T->__state ? SRUN :
        (T->__state & 0xc) ? SSTOP : SSLEEP;
    pr_sname = T == curthread ? 'O' : T->exit_state ? 'Z' : !T->__state ? 'R' :
        (T->__state & 0xc) ? 'T' : 'S';
    pr_nice = T->static_prio - 120;
    pr_pri = T->prio;
    pr_clname = T->policy == 0 ? "TS" : T->policy == 1 ? "FF" : T->policy == 2 ? "RR" :
        T->policy == 3 ? "B" : T->policy == 5 ? "IDL" : T->policy == 6 ? "DLN" : "?";
    pr_name = curthread == NULL && T == NULL ? execname : T->comm;
    pr_onpro = curthread == NULL && T == NULL ? cpu : T->thread_info.cpu;
};

inline lwpsinfo_t *curlwpsinfo = xlate < lwpsinfo_t * > (curthread);
