/*
 * CPU scheduling (Dynamic Tracing Guide, "sched Provider").
 *
 * Sources, of Linux 5.10 to 7.3: kernel/sched/core.c, include/trace/events/sched.h.  The functions
 * enqueue_task_*() and dequeue_task_*() are those of the scheduling classes (struct sched_class).
 * A switch from a thread that is not to run again at once is a sleep: 0x80 is TASK_DEAD.
 */

#pragma D depends_on library psinfo.d
#pragma D depends_on library lwpsinfo.d
#pragma D depends_on library cpuinfo.d

provider sched {
	/* finish_task_switch() is the first function that the next thread calls. */
	probe on__cpu() = fbt::finish_task_switch*:entry;

	probe off__cpu(bool preempt, struct task_struct *prev, struct task_struct *next) :
	    (lwpsinfo_t *next, psinfo_t *next) = sdt:sched::sched_switch;

	probe preempt(bool preempt) : () = sdt:sched::sched_switch / preempt /;

	/* Since Linux 5.18 the state is an argument; another CPU may wake the thread meanwhile. */
	probe sleep(bool preempt, struct task_struct *prev, struct task_struct *next,
	    unsigned int state) : () =
	    sdt:sched::sched_switch / !preempt && state != 0 && !(state & 0x80) /;
	probe sleep(bool preempt, struct task_struct *prev) : () =
	    sdt:sched::sched_switch / !preempt && prev->on_rq == 0 && prev->exit_state == 0 /;

	probe wakeup(struct task_struct *p) : (lwpsinfo_t *p, psinfo_t *p) =
	    sdt:sched::sched_waking;

	/* enqueue_task_scx(): since Linux 6.12.  The last argument: 1 for the tail of the queue. */
	probe enqueue(struct rq *rq, struct task_struct *p, int flags) :
	    (lwpsinfo_t *p, psinfo_t *p, cpuinfo_t * = rq->cpu, int = !(flags & 0x10)) =
	    fbt::enqueue_task_fair:entry, fbt::enqueue_task_rt:entry,
	    fbt::enqueue_task_dl:entry, fbt::enqueue_task_stop:entry,
	    fbt::enqueue_task_scx:entry;
	probe enqueue(struct rq *rq, struct task_struct *p, int flags) :
	    (lwpsinfo_t *p, psinfo_t *p, cpuinfo_t * = rq->cpu, int = !(flags & 0x10)) =
	    fbt::enqueue_task_fair:entry, fbt::enqueue_task_rt:entry,
	    fbt::enqueue_task_dl:entry, fbt::enqueue_task_stop:entry;

	/* TODO: since Linux 6.12 one call of dequeue_task_dl() is inlined, and not seen. */
	probe dequeue(struct rq *rq, struct task_struct *p) :
	    (lwpsinfo_t *p, psinfo_t *p, cpuinfo_t * = rq->cpu) =
	    fbt::dequeue_task_fair:entry, fbt::dequeue_task_rt:entry,
	    fbt::dequeue_task_dl:entry, fbt::dequeue_task_stop:entry,
	    fbt::dequeue_task_scx:entry;
	probe dequeue(struct rq *rq, struct task_struct *p) :
	    (lwpsinfo_t *p, psinfo_t *p, cpuinfo_t * = rq->cpu) =
	    fbt::dequeue_task_fair:entry, fbt::dequeue_task_rt:entry,
	    fbt::dequeue_task_dl:entry, fbt::dequeue_task_stop:entry;

	/* The timer interrupt's; scheduler_tick() until Linux 6.9. */
	probe tick() : (lwpsinfo_t * = curthread, psinfo_t * = curthread) = fbt::scheduler_tick:entry;
	probe tick() : (lwpsinfo_t * = curthread, psinfo_t * = curthread) = fbt::sched_tick:entry;

	probe change__pri() = refuse("Linux changes priorities in several functions; fbt::set_user_nice:entry is that of nice(2)");
	probe remain__cpu() = refuse("Linux has no function or tracepoint for a decision that changes nothing");
	probe surrender() = refuse("which interrupt asks a CPU to schedule differs by the machine's processor");
	probe cpucaps__sleep() = refuse("Linux limits CPU time by cgroups, without a probe there");
	probe cpucaps__wakeup() = refuse("Linux limits CPU time by cgroups, without a probe there");
	probe schedctl__nopreempt() = refuse("Linux has no schedctl_start(3)");
	probe schedctl__preempt() = refuse("Linux has no schedctl_start(3)");
	probe schedctl__yield() = refuse("Linux has no schedctl_start(3)");
};
