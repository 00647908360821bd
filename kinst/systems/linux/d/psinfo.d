/*
 * A process (Dynamic Tracing Guide, "proc Provider").  BEGIN, END and timers fire in kinst's own
 * process, which no task of the traced kernel is: there the built-in variables tell.
 */

typedef struct psinfo {
    int pr_nlwp; pid_t pr_pid; pid_t pr_ppid; pid_t pr_pgid; pid_t pr_sid;
    uid_t pr_uid; uid_t pr_euid; gid_t pr_gid; gid_t pr_egid; uintptr_t pr_addr; size_t pr_size;
    string pr_fname; string pr_psargs;
    int pr_ttydev; char pr_dmodel; int pr_argc; uintptr_t pr_argv; uintptr_t pr_envp;
    int pr_taskid; int pr_projid; int pr_poolid; int pr_zoneid; int pr_contract; int pr_jailid;
} psinfo_t;

translator psinfo_t < struct task_struct *T > {
    pr_nlwp = curthread == NULL && T == NULL ? 1 : T->signal->nr_threads;
    pr_pid = curthread == NULL && T == NULL ? pid : T->tgid;
    pr_ppid = curthread == NULL && T == NULL ? ppid : T->real_parent->tgid;
    pr_pgid = curthread == NULL && T == NULL ? $pgid : T->signal->pids[PIDTYPE_PGID]->numbers[0].nr;
    pr_sid = curthread == NULL && T == NULL ? $sid : T->signal->pids[PIDTYPE_SID]->numbers[0].nr;
    pr_uid = curthread == NULL && T == NULL ? uid : T->real_cred->uid.val;
    pr_euid = curthread == NULL && T == NULL ? $euid : T->real_cred->euid.val;
    pr_gid = curthread == NULL && T == NULL ? gid : T->real_cred->gid.val;
    pr_egid = curthread == NULL && T == NULL ? $egid : T->real_cred->egid.val;
    pr_addr = (uintptr_t)T->group_leader;
    pr_size = T->mm == NULL ? 0 : T->mm->total_vm * 4;
    pr_fname = curthread == NULL && T == NULL ? execname : T->group_leader->comm;
    pr_psargs = curthread == NULL && T == NULL ? execargs :
        T->group_leader == curthread->group_leader ? execargs :
        stringof(T->group_leader->comm);
};

inline psinfo_t *curpsinfo = xlate < psinfo_t * > (curthread);
