/*
 * Processes, threads and signals (Dynamic Tracing Guide, "proc Provider").
 *
 * As in the Guide, lwp-create, lwp-start and lwp-exit fire for the first thread of a process too.
 * Sources, of Linux 5.10 to 7.3: kernel/fork.c, kernel/exit.c, kernel/signal.c, fs/exec.c,
 * include/trace/events/sched.h, include/trace/events/signal.h.
 */

#pragma D depends_on library psinfo.d
#pragma D depends_on library lwpsinfo.d

provider proc {
	probe create(struct task_struct *parent, struct task_struct *child) : (psinfo_t *child) =
	    sdt:sched::sched_process_fork / child->group_leader == child /;
	probe lwp__create(struct task_struct *parent, struct task_struct *child) :
	    (lwpsinfo_t *child, psinfo_t *child) = sdt:sched::sched_process_fork;

	/* schedule_tail() is the first function that a new thread calls. */
	probe start() = fbt::schedule_tail:entry / curthread->group_leader == curthread /;
	probe lwp__start() = fbt::schedule_tail:entry;

	probe exec(int fd, struct filename *filename) : (char * = filename->name) =
	    fbt::alloc_bprm:entry;
	probe exec__success() = sdt:sched::sched_process_exec;
	probe exec__failure() : (int = errno) =
	    syscall::execve:return, syscall::execveat:return / errno != 0 /;

	/* The last thread of the process; the reason is CLD_EXITED, CLD_KILLED or CLD_DUMPED. */
	probe exit(long code, int last) :
	    (int = (code & 0x7f) == 0 ? CLD_EXITED : code & 0x80 ? CLD_DUMPED : CLD_KILLED) =
	    fbt::acct_collect:entry / last != 0 /;
	probe lwp__exit() = sdt:sched::sched_process_exit;

	probe signal__send(int sig, struct kernel_siginfo *info, struct task_struct *task) :
	    (lwpsinfo_t *task, psinfo_t *task, int sig) = sdt:signal::signal_generate;
	/* 1 is TRACE_SIGNAL_IGNORED. */
	probe signal__discard(int sig, struct kernel_siginfo *info, struct task_struct *task,
	    int group, int result) : (lwpsinfo_t *task, psinfo_t *task, int sig) =
	    sdt:signal::signal_generate / result == 1 /;
	probe signal__handle(int sig, struct kernel_siginfo *info, struct k_sigaction *action) :
	    (int sig, struct kernel_siginfo *info, uintptr_t = (uintptr_t)action->sa.sa_handler) =
	    sdt:signal::signal_deliver;

	probe signal__clear() = refuse("sigtimedwait(2) takes a signal out of its queue without a probe there");
	probe fault() = refuse("Linux turns a fault into a signal: proc:::signal-send");
};
