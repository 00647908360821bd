// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * What kinst needs inside of the kernel that it runs on: to read its memory,
 * to have memory in reach of its text, and to plant sites while it runs.
 *
 * Text is changed by the kernel's own text_poke(), in the three steps of its
 * text_poke_bp_batch(), which let every CPU see either the old instruction or
 * the new one, while others are kept out by ftrace_lock and text_mutex.  That
 * function itself writes site by site; here, all that is in a page is written
 * at once.  A site is a jump, or a breakpoint at an instruction's first byte;
 * breakpoints come here by the kernel's die notifier or, while there are such
 * sites, straight from exc_int3(), one call of which leads here.  A jump over
 * several instructions is written as the kernel writes those of its own
 * kprobes: the breakpoint first, then nothing until every thread and every CPU
 * that may have been in the middle has left, then the rest.  Whatever ends the
 * owner, release() restores all.
 */
#define pr_fmt(fmt) "kinst: " fmt

#include <linux/bitmap.h>
#include <linux/capability.h>
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/ftrace.h>
#include <linux/fs.h>
#include <linux/hardirq.h>
#include <linux/hrtimer.h>
#include <linux/jump_label.h>
#include <linux/kallsyms.h>
#include <linux/kdebug.h>
#include <linux/kprobes.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/sched/clock.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include <linux/static_call_types.h>
#include <linux/stop_machine.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>
#include <asm/hypervisor.h>
#include <asm/insn.h>
#include <asm/irq_regs.h>
#include <asm/processor.h>
#include <asm/text-patching.h>

#include "kinst.h"

#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 13, 0)
#define NEW_DECODER
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
#define NEW_TIMERS
#endif
#define INT3 0xcc
#define JUMP 0xe9
#define CALL 0xe8
#define MOST_SITES (1 << 20)
#define MOST_SCRATCH (768UL << 20)
#define TOGETHER 128 /* sites between two chances for others */
#define WRITTEN 1024 /* sites that are written between two, likewise */
#define GAP 512 /* bytes that are sooner written anew than left out */
#define PAGES 256 /* of scratch, likewise */
#define MOST_MODULES 256
#define MOST_READ (1UL << 30)
#define MOST_SECONDS 86400
#define MOST_TIMERS 32
#define MOST_COUNTERS 4096UL /* bytes of each CPU's: modules have 8 KB in all */
#define LEAST_COUNTERS 256
#define FIRST_CALL 32 /* bytes of exc_int3() in which it asks */
#define SHORTEST 100000 /* ns between two calls of a timer's code */

struct site {
	unsigned long address;
	u8 size;
	bool stuck; /* somebody else's bytes are there */
	bool near; /* perhaps at what the kernel rewrites */
	bool early; /* a breakpoint there does not get as far as on_die() */
	bool several; /* its jump is over several instructions */
	bool begun; /* its breakpoint may be there, and the rest may not */
	u8 old[KINST_JUMP];
	u8 new[KINST_JUMP];
};

typedef int (*handler_t)(struct pt_regs *regs);
typedef void (*sampler_t)(struct pt_regs *regs);

/* One CPU's part of a timer. */
struct ticker {
	struct hrtimer timer;
	unsigned int cpu;
	ktime_t period;
	sampler_t call;
};

/*
 * Functions and locks of the kernel that modules cannot link to.  The second
 * name is what later kernels call it.
 */
static struct {
	unsigned long (*lookup)(const char *name);
	void *(*text_poke)(void *addr, const void *opcode, size_t len);
	void (*queue)(void *addr, const void *opcode, size_t len,
		      const void *emulate);
	void (*finish)(void);
	void (*sync)(void); /* every CPU forgets what it has decoded */
	void (*tell_perf)(const void *addr, const void *old_bytes,
			  size_t old_len, const void *new_bytes,
			  size_t new_len);
	struct mutex *text_mutex; /* of all changes of text */
	struct mutex *ftrace_lock; /* of its records */
	void *(*allocate)(unsigned long size, unsigned long align,
			  unsigned long start, unsigned long end, gfp_t gfp,
			  pgprot_t prot, unsigned long flags, int node,
			  const void *caller);
	void __percpu *(*reserve)(size_t size, size_t align, bool reserved,
				  gfp_t gfp);
	int (*everywhere)(work_func_t call);
	int (*stop)(cpu_stop_fn_t call, void *data, const struct cpumask *cpus);
	const u8 *int3; /* the first function of C that a breakpoint reaches */
	int (*own_int3)(struct pt_regs *regs); /* what it asks first */
	int (*set_ro)(unsigned long addr, int pages);
	int (*set_rw)(unsigned long addr, int pages);
	int (*set_x)(unsigned long addr, int pages);
	int (*set_nx)(unsigned long addr, int pages);
	bool (*forbidden)(unsigned long addr);
	int (*jump_labels)(void *start, void *end);
	int (*static_calls)(void *start, void *end);
	const void *(*fixup)(unsigned long addr);
	struct jump_entry *first_jump, *end_jump;
	struct static_call_site *first_call, *end_call;
	void (*jump_label_lock)(void);
	void (*jump_label_unlock)(void);
	int (*is_text)(unsigned long addr);
	struct module *(*module_of)(unsigned long addr);
	int (*size_of)(unsigned long addr, unsigned long *size,
		       unsigned long *offset);
#ifdef NEW_DECODER
	int (*decode)(struct insn *insn, const void *code, int size,
		      enum insn_mode mode);
#else
	void (*begin)(struct insn *insn, const void *code, int size, int x64);
	void (*decode)(struct insn *insn);
#endif
	unsigned long (*recover)(u8 *buffer, unsigned long addr);
	struct atomic_notifier_head *die_chain;
	void **ftrace_ops, *ftrace_end;
	struct ftrace_rec_iter *(*first_record)(void);
	struct ftrace_rec_iter *(*next_record)(struct ftrace_rec_iter *iter);
	struct dyn_ftrace *(*record)(struct ftrace_rec_iter *iter);
} kernel;

static const struct {
	void *where;
	const char *name, *later;
	bool optional;
} wanted[] = {
	{ &kernel.text_poke, "text_poke" },
	{ &kernel.queue, "text_poke_queue", "smp_text_poke_batch_add" },
	{ &kernel.finish, "text_poke_finish", "smp_text_poke_batch_finish" },
	{ &kernel.sync, "text_poke_sync", "smp_text_poke_sync_each_cpu" },
	{ &kernel.tell_perf, "perf_event_text_poke", NULL, true },
	{ &kernel.text_mutex, "text_mutex" },
	{ &kernel.ftrace_lock, "ftrace_lock", NULL, true },
	{ &kernel.allocate, "__vmalloc_node_range",
	  "__vmalloc_node_range_noprof" },
	{ &kernel.reserve, "pcpu_alloc", "pcpu_alloc_noprof", true },
	{ &kernel.everywhere, "schedule_on_each_cpu" },
	{ &kernel.stop, "stop_machine_cpuslocked", NULL, true },
	{ &kernel.int3, "exc_int3", NULL, true },
	{ &kernel.own_int3, "poke_int3_handler", "smp_text_poke_int3_handler",
	  true },
	{ &kernel.set_ro, "set_memory_ro" },
	{ &kernel.set_rw, "set_memory_rw" },
	{ &kernel.set_x, "set_memory_x" },
	{ &kernel.set_nx, "set_memory_nx" },
	{ &kernel.forbidden, "within_kprobe_blacklist" },
	{ &kernel.jump_labels, "jump_label_text_reserved", NULL, true },
	{ &kernel.static_calls, "static_call_text_reserved", NULL, true },
	{ &kernel.fixup, "search_exception_tables", NULL, true },
	{ &kernel.first_jump, "__start___jump_table", NULL, true },
	{ &kernel.end_jump, "__stop___jump_table", NULL, true },
	{ &kernel.first_call, "__start_static_call_sites", NULL, true },
	{ &kernel.end_call, "__stop_static_call_sites", NULL, true },
	{ &kernel.jump_label_lock, "jump_label_lock", NULL, true },
	{ &kernel.jump_label_unlock, "jump_label_unlock", NULL, true },
	{ &kernel.is_text, "core_kernel_text" },
	{ &kernel.module_of, "__module_text_address" },
	{ &kernel.size_of, "kallsyms_lookup_size_offset" },
#ifdef NEW_DECODER
	{ &kernel.decode, "insn_decode" },
#else
	{ &kernel.begin, "insn_init" },
	{ &kernel.decode, "insn_get_length" },
#endif
	{ &kernel.recover, "recover_probed_instruction", NULL, true },
	{ &kernel.die_chain, "die_chain" },
	{ &kernel.ftrace_ops, "ftrace_ops_list", NULL, true },
	{ &kernel.ftrace_end, "ftrace_list_end", NULL, true },
	{ &kernel.first_record, "ftrace_rec_iter_start", NULL, true },
	{ &kernel.next_record, "ftrace_rec_iter_next", NULL, true },
	{ &kernel.record, "ftrace_rec_iter_record", NULL, true },
};

/*
 * Functions that a breakpoint runs through before it reaches on_die() and that
 * the kernel itself allows probes in: a breakpoint there would meet itself.
 */
static const char *const before_us[] = {
	"__rcu_read_lock",
	"__rcu_read_unlock",
	"rcu_read_unlock_special",
	"kgdb_ll_trap",
};

static DEFINE_MUTEX(lock); /* of all below */
static unsigned long way[ARRAY_SIZE(before_us)]; /* their addresses */
static bool owned;
static u8 *scratch;
static unsigned long scratch_size;
static unsigned long *sealed; /* a bit for each page of scratch */
static bool fresh; /* it is this owner's */
static u8 __percpu *counters;
static unsigned long counters_size;
static bool counting; /* they are this owner's */
static bool used; /* a thread may be in scratch */
static struct site *sites; /* planted, by address */
static unsigned long planted;
static struct site *exits; /* from chains, to be written behind the sites */
static unsigned long exiting;
static struct module *held[MOST_MODULES]; /* that have sites */
static unsigned int holding;
static unsigned long *marks; /* call sites whose ftrace records are marked */
static unsigned long marked;
static bool kept; /* by itself, because of sites that are stuck */
static bool lifted; /* by the dead man's switch */
static bool silenced; /* likewise, at first: the owner's clauses do not run */
static u64 *active; /* whether they do; in scratch */
static struct hrtimer silence; /* looks whether the owner is heard of */
static unsigned long heard; /* jiffies when the owner was last heard of */
static unsigned long patience; /* jiffies */
static bool twice; /* QEMU's translator keeps breakpoints that are gone */
static handler_t handler;
static unsigned long asks; /* address of the call of kernel.own_int3, or 0 */
static bool asked_first; /* that call leads to on_int3() */
static struct site *changing; /* among which some are begun, by address */
static unsigned long changed; /* how many */
static u8 image[PAGE_SIZE]; /* of what is written at once */
static struct ticker __percpu *tickers; /* MOST_TIMERS for each CPU */
static unsigned int timers; /* that run; CPUs that come read it */
static int coming; /* what calls on_cpu_up() */

static int look_up(void)
{
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };
	int error = register_kprobe(&probe);
	int i;

	if (error)
		return error;
	kernel.lookup = (void *)probe.addr;
	unregister_kprobe(&probe);
	for (i = 0; i < ARRAY_SIZE(wanted); i++) {
		unsigned long found = kernel.lookup(wanted[i].name);

		if (!found && wanted[i].later)
			found = kernel.lookup(wanted[i].later);
		if (!found && !wanted[i].optional) {
			pr_err("this kernel has no %s\n", wanted[i].name);
			return -EOPNOTSUPP;
		}
		*(unsigned long *)wanted[i].where = found;
	}
	for (i = 0; i < ARRAY_SIZE(before_us); i++)
		way[i] = kernel.lookup(before_us[i]);
	return 0;
}

/* Breakpoints. */

/*
 * Send who has met the breakpoint of a jump that is being written to where it
 * leads.  They are not forgotten before every CPU is out of here.
 */
static noinstr bool send_on(struct pt_regs *regs)
{
	struct site *all = smp_load_acquire(&changing);
	unsigned long low = 0, high = READ_ONCE(changed), mid;
	unsigned long address = regs->ip - 1;
	s32 by;

	if (!all)
		return false;
	while (low < high) {
		mid = (low + high) / 2;
		if (all[mid].address < address)
			low = mid + 1;
		else
			high = mid;
	}
	if (low == READ_ONCE(changed) || all[low].address != address ||
	    all[low].size != KINST_JUMP || !READ_ONCE(all[low].begun))
		return false;
	__builtin_memcpy(&by, all[low].new + 1, sizeof(by));
	regs->ip = address + KINST_JUMP + by;
	return true;
}

/*
 * A breakpoint of whoever's, before anything else is done about it: what was
 * interrupted goes on at the probe, when this has returned.
 */
static noinstr int on_int3(struct pt_regs *regs)
{
	handler_t call = READ_ONCE(handler);

	if (!user_mode(regs) && (send_on(regs) || (call && call(regs))))
		return 1;
	return kernel.own_int3(regs);
}

static int on_die(struct notifier_block *self, unsigned long event, void *data)
{
	struct die_args *args = data;
	handler_t call = READ_ONCE(handler);
	int ours;

	if (event != DIE_INT3 || user_mode(args->regs))
		return NOTIFY_DONE;
	if (send_on(args->regs))
		return NOTIFY_STOP;
	if (!call)
		return NOTIFY_DONE;
	/*
	 * The way here counts as an NMI's.  The probe is where the breakpoint
	 * is, and sees what it would see there.
	 */
	__preempt_count_sub(NMI_OFFSET + HARDIRQ_OFFSET);
	ours = call(args->regs);
	__preempt_count_add(NMI_OFFSET + HARDIRQ_OFFSET);
	return ours ? NOTIFY_STOP : NOTIFY_DONE;
}
NOKPROBE_SYMBOL(on_die);

static struct notifier_block die_block = {
	.notifier_call = on_die,
	.priority = INT_MAX,
};

static void watch(struct work_struct *work);
static DECLARE_DELAYED_WORK(dead_man, watch);

static bool is_overdue(void)
{
	return time_after(jiffies, READ_ONCE(heard) + READ_ONCE(patience));
}

/*
 * Probes may leave the kernel no time for watch(), nor the owner for a sign of
 * life: they end here, in an interrupt, and watch() does the rest.
 */
static enum hrtimer_restart on_silence(struct hrtimer *timer)
{
	if (is_overdue()) {
		WRITE_ONCE(silenced, true);
		if (active)
			WRITE_ONCE(*active, 0);
		return HRTIMER_NORESTART;
	}
	hrtimer_forward_now(timer, NSEC_PER_SEC);
	return HRTIMER_RESTART;
}

/* Something of the owner's runs now: see to it that he is alive. */
static void await(u64 flag, u32 seconds)
{
	/* It may be of a timer's, and stands where this one is. */
	hrtimer_cancel(&silence);
	lifted = false;
	silenced = false;
	heard = jiffies;
	patience = seconds * HZ;
	active = (u64 *)flag;
	hrtimer_start(&silence, NSEC_PER_SEC, HRTIMER_MODE_REL_HARD);
	schedule_delayed_work(&dead_man, HZ);
}

/* Timers: code of the owner's, called with what a CPU was at. */

static enum hrtimer_restart on_tick(struct hrtimer *timer)
{
	struct ticker *ticker = container_of(timer, struct ticker, timer);
	struct pt_regs *regs = get_irq_regs();

	/* A CPU that is turned off hands its timers on. */
	if (ticker->cpu != smp_processor_id())
		return HRTIMER_NORESTART;
	if (regs) {
		/* As if whatever was interrupted had called it. */
		__preempt_count_sub(HARDIRQ_OFFSET);
		ticker->call(regs);
		__preempt_count_add(HARDIRQ_OFFSET);
	}
	hrtimer_forward_now(timer, ticker->period);
	return HRTIMER_RESTART;
}

static void start_ticker(void *data)
{
	struct ticker *ticker = this_cpu_ptr(tickers) + *(unsigned int *)data;

	ticker->cpu = smp_processor_id();
	hrtimer_start(&ticker->timer, ticker->period,
		      HRTIMER_MODE_REL_PINNED_HARD);
}

/* Without the lock, whose holders wait for CPUs that come. */
static int on_cpu_up(unsigned int cpu)
{
	unsigned int i;

	for (i = 0; i < timers; i++)
		start_ticker(&i);
	return 0;
}

static void set_up_timer(struct hrtimer *timer,
			 enum hrtimer_restart (*call)(struct hrtimer *),
			 enum hrtimer_mode mode)
{
#ifdef NEW_TIMERS
	hrtimer_setup(timer, call, CLOCK_MONOTONIC, mode);
#else
	hrtimer_init(timer, CLOCK_MONOTONIC, mode);
	timer->function = call;
#endif
}

static bool is_sealed(unsigned long address)
{
	unsigned long offset = address - (unsigned long)scratch;

	/* What an earlier owner has sealed is none of this one's. */
	return fresh && offset < scratch_size &&
	       test_bit(offset >> PAGE_SHIFT, sealed);
}

/* Whether there is a word that stays writable, or none is asked for. */
static bool is_flag(unsigned long address)
{
	unsigned long offset = address - (unsigned long)scratch;

	return !address || (fresh && offset < scratch_size &&
			    !(address % sizeof(u64)) &&
			    !test_bit(offset >> PAGE_SHIFT, sealed));
}

static int start_timer(const struct kinst_timer *ask)
{
	struct ticker *ticker;
	int cpu;

	if (!ask->seconds || ask->seconds > MOST_SECONDS ||
	    ask->period < SHORTEST ||
	    ask->period > MOST_SECONDS * (u64)NSEC_PER_SEC ||
	    !is_sealed(ask->code) || !is_flag(ask->active) ||
	    timers == MOST_TIMERS)
		return -EINVAL;
	for_each_possible_cpu(cpu) {
		ticker = per_cpu_ptr(tickers, cpu) + timers;
		set_up_timer(&ticker->timer, on_tick,
			     HRTIMER_MODE_REL_PINNED_HARD);
		ticker->period = ns_to_ktime(ask->period);
		ticker->call = (sampler_t)ask->code;
	}
	used = true;
	cpus_read_lock();
	on_each_cpu(start_ticker, &timers, 1);
	timers++;
	cpus_read_unlock();
	await(ask->active, ask->seconds);
	return 0;
}

static void stop_timers(void)
{
	unsigned int i, some = timers;
	int cpu;

	hrtimer_cancel(&silence);
	active = NULL;
	cpus_read_lock();
	timers = 0;
	cpus_read_unlock();
	for (i = 0; i < some; i++)
		for_each_possible_cpu(cpu)
			hrtimer_cancel(&per_cpu_ptr(tickers, cpu)[i].timer);
}

/* Text. */

static void lock_text(void)
{
	if (kernel.ftrace_lock)
		mutex_lock(kernel.ftrace_lock);
	cpus_read_lock();
	mutex_lock(kernel.text_mutex);
}

static void unlock_text(void)
{
	mutex_unlock(kernel.text_mutex);
	cpus_read_unlock();
	if (kernel.ftrace_lock)
		mutex_unlock(kernel.ftrace_lock);
}

/* Let others have the locks, and the CPU. */
static void pause_text(void)
{
	unlock_text();
	cond_resched();
	lock_text();
}

static bool is_there(const struct site *site, const u8 *bytes)
{
	u8 now[KINST_JUMP];

	if (copy_from_kernel_nofault(now, (void *)site->address, site->size))
		return false;
	return !memcmp(now, bytes, site->size);
}

/* Whether there is what was there before, or the breakpoint over it. */
static bool is_unplanted(const struct site *site)
{
	u8 bytes[KINST_JUMP];

	memcpy(bytes, site->old, sizeof(bytes));
	if (site->begun)
		bytes[0] = INT3;
	return is_there(site, bytes);
}

/* The steps in which an instruction becomes another one. */
enum step {
	OPEN, /* a breakpoint at its first byte, where it is the first of several */
	BREAK, /* the same everywhere */
	TAIL, /* what is behind it */
	HEAD, /* the first byte */
};

/* Whether a step writes something at a site. */
static bool is_for(const struct site *site, enum step step, bool plant)
{
	if (site->stuck || site->early || (step == OPEN && !site->several))
		return false;
	if (site->size == KINST_JUMP)
		return true;
	return step == (plant ? BREAK : HEAD);
}

/* Make a step at some of a table's sites: all of a page are one write. */
static void make_step(struct site *sites, unsigned long n, enum step step,
		      bool plant)
{
	unsigned long i, next, start, end, last;

	for (i = 0; i < n; i = next) {
		struct site *site = sites + i;

		next = i + 1;
		if (!is_for(site, step, plant))
			continue;
		start = site->address;
		end = start + site->size;
		for (; next < n; next++) {
			site = sites + next;
			last = site->address + site->size - 1;
			if (site->address - end > GAP ||
			    (last ^ start) & PAGE_MASK)
				break;
			if (is_for(site, step, plant))
				end = last + 1;
		}
		memcpy(image, (void *)start, end - start);
		for (site = sites + i; site < sites + next; site++) {
			u8 *at = image + (site->address - start);
			const u8 *bytes = plant ? site->new : site->old;

			if (!is_for(site, step, plant))
				continue;
			if (step == OPEN || step == BREAK)
				*at = INT3;
			else if (step == HEAD)
				*at = *bytes;
			else
				memcpy(at + 1, bytes + 1, site->size - 1);
		}
		kernel.text_poke((void *)start, image, end - start);
		cond_resched();
	}
}

/* For who follows what processors do by what is in the text. */
static void tell_perf(const struct site *sites, unsigned long n, bool plant)
{
	unsigned long i;

	for (i = 0; kernel.tell_perf && i < n; i++) {
		const struct site *site = sites + i;

		if (is_for(site, HEAD, plant))
			kernel.tell_perf((void *)site->address,
					 plant ? site->old : site->new,
					 site->size,
					 plant ? site->new : site->old,
					 site->size);
	}
}

/*
 * The same for sites at which the kernel itself has to see to breakpoints,
 * and for code in scratch that such a site may lead to.
 */
static void write_early(struct site *sites, unsigned long n, bool plant)
{
	unsigned long i;
	int some = 0;

	/* In between, who comes by goes where the jump leads. */
	for (i = 0; i < n; i++) {
		struct site *site = sites + i;

		if (!site->early || site->stuck)
			continue;
		kernel.queue((void *)site->address,
			     plant ? site->new : site->old, site->size,
			     site->new);
		some++;
	}
	if (!some)
		return;
	kernel.finish();
	for (i = 0; twice && i < n; i++)
		if (sites[i].early && !sites[i].stuck)
			kernel.text_poke((void *)sites[i].address,
					 plant ? sites[i].new : sites[i].old,
					 sites[i].size);
}

/* Put breakpoints at n sites, and send on who meets them.  Locked. */
static void begin(struct site *sites, unsigned long n, enum step step,
		  bool plant)
{
	unsigned long i;

	for (i = 0; i < n; i++)
		if (sites[i].size == KINST_JUMP && is_for(sites + i, step, plant))
			WRITE_ONCE(sites[i].begun, true);
	make_step(sites, n, step, plant);
	kernel.sync();
}

/* Write those of n sites that are not stuck.  Locked. */
static void write_sites(struct site *sites, unsigned long n, bool plant)
{
	unsigned long i;

	begin(sites, n, BREAK, plant);
	make_step(sites, n, TAIL, plant);
	tell_perf(sites, n, plant);
	kernel.sync();
	make_step(sites, n, HEAD, plant);
	kernel.sync();
	if (twice) {
		make_step(sites, n, HEAD, plant);
		kernel.sync();
	}
	/* None that has met a breakpoint which is gone is here any more. */
	for (i = 0; i < n; i++)
		WRITE_ONCE(sites[i].begun, false);
	write_early(sites, n, plant);
}

static int lead_call(void *to)
{
	s32 by = (unsigned long)to - (asks + KINST_JUMP);

	kernel.text_poke((void *)(asks + 1), &by, sizeof(by));
	return 0;
}

/*
 * Have exc_int3() ask here first, or not any more.  No breakpoint can be put
 * there to write it, so every CPU waits elsewhere for as long as that takes;
 * there are no sites then.  Locked.
 */
static void ask_first(bool here)
{
	if (!asks || !kernel.stop || asked_first == here)
		return;
	kernel.stop(lead_call, here ? on_int3 : kernel.own_int3, NULL);
	/* And none is in on_int3() that has come by the old way. */
	kernel.sync();
	asked_first = here;
}

static void watch_breakpoints(struct site *sites, unsigned long n)
{
	WRITE_ONCE(changed, n);
	smp_store_release(&changing, sites);
}

/* No breakpoint is left: nobody looks through the sites any more. */
static void ignore_breakpoints(void)
{
	WRITE_ONCE(changing, NULL);
	kernel.sync();
}

/* The first of n addresses that is not below one. */
static unsigned long first_from(const unsigned long *all, unsigned long n,
				unsigned long address)
{
	unsigned long low = 0, mid;

	while (low < n) {
		mid = (low + n) / 2;
		if (all[mid] < address)
			low = mid + 1;
		else
			n = mid;
	}
	return low;
}

static bool reaches(const struct site *site, unsigned long address)
{
	return site->address + site->size > address;
}

/*
 * Keep ftrace away from the call sites under the sites, of which these are the
 * n addresses: a record that is marked as not ready is none of its concern.
 * The marked call sites are added to marks, which has room.  Returns the index
 * of the first that ftrace uses, and marks none then; n if all is well.  Locked.
 */
static unsigned long mark(const unsigned long *all, unsigned long n)
{
	struct ftrace_rec_iter *at;
	struct dyn_ftrace *record;
	unsigned long found;
	int pass;

	if (!kernel.record || !kernel.first_record || !kernel.next_record)
		return n;
	for (pass = 0; pass < 2; pass++) {
		for (at = kernel.first_record(); at;
		     at = kernel.next_record(at)) {
			cond_resched();
			record = kernel.record(at);
			found = first_from(all, n, record->ip);
			if (found && reaches(sites + found - 1, record->ip))
				found--;
			if (found == n ||
			    all[found] >= record->ip + MCOUNT_INSN_SIZE ||
			    record->flags & FTRACE_FL_DISABLED)
				continue;
			if (pass) {
				record->flags |= FTRACE_FL_DISABLED;
				marks[marked++] = record->ip;
			} else if (ftrace_rec_count(record) ||
				   record->flags & FTRACE_FL_ENABLED) {
				return found;
			}
		}
	}
	return n;
}

static int compare(const void *a, const void *b)
{
	unsigned long one = *(const unsigned long *)a;
	unsigned long other = *(const unsigned long *)b;

	return one < other ? -1 : one > other;
}

/*
 * Take the marks off, if ftrace has no user: one that has come meanwhile was
 * not counted in the records, and ftrace would warn when it goes.  Locked.
 */
static void unmark(void)
{
	struct ftrace_rec_iter *at;
	struct dyn_ftrace *record;
	unsigned long found;

	if (!marked || *kernel.ftrace_ops != kernel.ftrace_end)
		return;
	sort(marks, marked, sizeof(*marks), compare, NULL);
	for (at = kernel.first_record(); at; at = kernel.next_record(at)) {
		cond_resched();
		record = kernel.record(at);
		found = first_from(marks, marked, record->ip);
		if (found < marked && marks[found] == record->ip)
			record->flags &= ~FTRACE_FL_DISABLED;
	}
	marked = 0;
	kvfree(marks);
	marks = NULL;
}

/*
 * Let threads out of chains, in which trampolines lead to each other: no site
 * leads there any more, but a loop would go on in one for ever.  Locked.
 */
static void leave(void)
{
	unsigned long from, to, i;

	for (from = 0; from < exiting; from = to) {
		to = min(from + TOGETHER, exiting);
		for (i = from; i < to; i++) {
			exits[i].early = true;
			exits[i].stuck = !is_there(exits + i, exits[i].old);
		}
		write_early(exits + from, to - from, true);
		if (to < exiting)
			pause_text();
	}
	exiting = 0;
}

/* None of them is in the text any more. */
static void forget_sites(void)
{
	if (handler) {
		/* Who has met a breakpoint has interrupts off until then. */
		synchronize_rcu();
		WRITE_ONCE(handler, NULL);
		synchronize_rcu();
	}
	kvfree(sites);
	sites = NULL;
	kvfree(exits);
	exits = NULL;
	exiting = 0;
	while (holding)
		module_put(held[--holding]);
}

static void retry(struct work_struct *work);
static DECLARE_DELAYED_WORK(again, retry);

/*
 * Restore every site at which our bytes are.  The others are stuck: somebody
 * has put his own over ours, and puts ours back when he goes.
 */
static void unplant(void)
{
	unsigned long from, to, left = 0;

	stop_timers();
	if (!planted && !marked)
		return;
	lock_text();
	watch_breakpoints(sites, planted);
	for (from = 0; from < planted; from = to) {
		to = min(from + WRITTEN, planted);
		for (left = from; left < to; left++) {
			struct site *site = sites + left;

			site->stuck = !is_there(site, site->new) &&
				      !(site->begun && is_unplanted(site));
		}
		write_sites(sites + from, to - from, false);
		if (to < planted)
			pause_text();
	}
	ignore_breakpoints();
	for (left = from = 0; from < planted; from++) {
		if (!(from % TOGETHER))
			cond_resched();
		if (is_there(sites + from, sites[from].old))
			continue;
		sites[left++] = sites[from];
	}
	if (!left) {
		leave();
		unmark();
		ask_first(false);
	}
	unlock_text();
	if (planted && !left)
		forget_sites();
	planted = left;
	if (planted && !kept) {
		pr_warn("%lu sites are somebody else's now, the first at %pS; kinst stays until they can be restored\n",
			planted, (void *)sites[0].address);
		__module_get(THIS_MODULE);
	} else if (!planted && kept) {
		pr_info("all sites are restored\n");
		module_put(THIS_MODULE);
	}
	kept = planted;
	if (planted || marked)
		schedule_delayed_work(&again, HZ);
}

static void retry(struct work_struct *work)
{
	mutex_lock(&lock);
	/* A new owner's sites are not to be taken out. */
	if (!owned || kept)
		unplant();
	mutex_unlock(&lock);
}

/* Planting. */

static int decode(struct insn *insn, const u8 *code)
{
#ifdef NEW_DECODER
	return kernel.decode(insn, code, MAX_INSN_SIZE, INSN_MODE_64) < 0 ?
		       0 : insn->length;
#else
	kernel.begin(insn, code, MAX_INSN_SIZE, 1);
	kernel.decode(insn);
	return insn->length;
#endif
}

/* Find the call by which exc_int3() asks kernel.own_int3. */
static void find_call(void)
{
	u8 code[FIRST_CALL + MAX_INSN_SIZE];
	struct insn insn;
	int at, length;
	s32 by;

	if (!kernel.int3 || !kernel.own_int3 ||
	    copy_from_kernel_nofault(code, kernel.int3, sizeof(code)))
		return;
	for (at = 0; at < FIRST_CALL; at += length) {
		length = decode(&insn, code + at);
		if (length <= 0)
			return;
		memcpy(&by, code + at + 1, sizeof(by));
		if (code[at] == CALL &&
		    kernel.int3 + at + length + by == (u8 *)kernel.own_int3) {
			asks = (unsigned long)kernel.int3 + at;
			return;
		}
	}
}

/*
 * Where the walk of a function has come to.  What must not be probed are whole
 * functions; to find out is slow for those whose name has a suffix.
 */
struct walk {
	unsigned long start, at;
	bool forbidden, early;
};

/*
 * The instruction at an address, as it is without kprobes.  Returns its
 * length, or an enum kinst_why below 0; code has what is there.
 */
static int plain_instruction(unsigned long at, u8 *code, u8 *plain)
{
	unsigned long from = at;
	struct insn insn;
	int length;

	if (copy_from_kernel_nofault(code, (void *)at, MAX_INSN_SIZE))
		return -KINST_NO_TEXT;
	if (kernel.recover) {
		/* It looks at kprobes, which stay that long. */
		preempt_disable();
		from = kernel.recover(plain, at);
		preempt_enable();
	}
	if (!from)
		return -KINST_RESERVED;
	if (from == at)
		memcpy(plain, code, MAX_INSN_SIZE);
	length = decode(&insn, plain);
	return length > 0 ? length : -KINST_BOUNDARY;
}

/*
 * Of a jump over several instructions, those that it is not at: a kprobe or a
 * fix-up of one would lead there.  length: of the first.
 */
static enum kinst_why check_others(const struct site *site, int length)
{
	u8 code[MAX_INSN_SIZE + 1] = {}, plain[MAX_INSN_SIZE + 1] = {};
	unsigned long size, offset, at = site->address + length;

	if (site->early)
		return KINST_RESERVED;
	if (!kernel.size_of(site->address, &size, &offset) ||
	    size - offset < site->size)
		return KINST_BOUNDARY;
	for (; at < site->address + site->size; at += length) {
		length = plain_instruction(at, code, plain);
		if (length <= 0)
			return -length;
		if (memcmp(plain, code, length) ||
		    (kernel.fixup && kernel.fixup(at)))
			return KINST_RESERVED;
	}
	return KINST_FINE;
}

/* Why no instruction of enough bytes starts at a site, as far as it goes. */
static enum kinst_why check_instruction(struct walk *walk,
					const struct site *site)
{
	u8 code[MAX_INSN_SIZE + 1] = {}, plain[MAX_INSN_SIZE + 1] = {};
	int length;

	for (;;) {
		length = plain_instruction(walk->at, code, plain);
		if (length <= 0)
			return -length;
		if (walk->at == site->address)
			break;
		walk->at += length;
		if (walk->at > site->address)
			return KINST_BOUNDARY;
	}
	if (memcmp(plain, code, length))
		return KINST_RESERVED; /* a kprobe is there */
	if (site->size <= length)
		return site->several ? KINST_BOUNDARY : KINST_FINE;
	return site->several ? check_others(site, length) : KINST_BOUNDARY;
}

static bool same_function(unsigned long one, unsigned long other)
{
	unsigned long size, offset;

	return other && kernel.size_of(other, &size, &offset) &&
	       one - (other - offset) < size;
}

static bool is_before_us(unsigned long address)
{
	struct notifier_block *block;
	bool found = false;
	int i;

	for (i = 0; i < ARRAY_SIZE(before_us) && !found; i++)
		found = same_function(address, way[i]);
	rcu_read_lock();
	block = rcu_dereference(kernel.die_chain->head);
	while (block && block != &die_block && !found) {
		found = same_function(address,
				      (unsigned long)block->notifier_call);
		block = rcu_dereference(block->next);
	}
	rcu_read_unlock();
	return found;
}

static enum kinst_why hold_module(unsigned long address)
{
	struct module *module;
	unsigned int i;

	/* Under RCU's read lock, as of 6.15, or with preemption off. */
	rcu_read_lock();
	preempt_disable();
	module = kernel.module_of(address);
	for (i = 0; module && i < holding; i++)
		if (held[i] == module)
			goto fine;
	if (!module || module == THIS_MODULE || holding == MOST_MODULES ||
	    module->state != MODULE_STATE_LIVE || !try_module_get(module)) {
		preempt_enable();
		rcu_read_unlock();
		return KINST_NO_TEXT;
	}
	held[holding++] = module;
fine:
	preempt_enable();
	rcu_read_unlock();
	return KINST_FINE;
}

static enum kinst_why hold_text(unsigned long first, unsigned long last)
{
	enum kinst_why why;

	if (kernel.is_text(first) && kernel.is_text(last))
		return KINST_FINE;
	why = hold_module(first);
	return why == KINST_FINE ? hold_module(last) : why;
}

/* Tell the sites of which a byte may be in what is rewritten at an address. */
static void tell_near(unsigned long n, unsigned long rewritten)
{
	unsigned long low = 0, high = n, mid;

	while (low < high) {
		mid = (low + high) / 2;
		if (sites[mid].address + KINST_JUMP <= rewritten)
			low = mid + 1;
		else
			high = mid;
	}
	for (; low < n && sites[low].address < rewritten + KINST_JUMP; low++)
		sites[low].near = true;
}

static void tell_near_jumps(unsigned long n, struct jump_entry *from,
			    struct jump_entry *end)
{
	unsigned long i = 0;

	for (; from < end; from++, i++) {
		tell_near(n, jump_entry_code(from));
		if (!(i % TOGETHER))
			cond_resched();
	}
}

static void tell_near_calls(unsigned long n, struct static_call_site *from,
			    struct static_call_site *end)
{
	unsigned long i = 0;

	for (; from < end; from++, i++) {
		tell_near(n, (unsigned long)&from->addr + from->addr);
		if (!(i % TOGETHER))
			cond_resched();
	}
}

/*
 * jump_label_text_reserved() and static_call_text_reserved() look through all
 * that there is: they are asked only of sites that are near to some of it.
 * The modules that have sites are held.  Jump labels are locked.
 */
static void tell_all_near(unsigned long n)
{
	unsigned long i;

	for (i = 0; i < n; i++) {
		sites[i].near = (kernel.jump_labels && !kernel.first_jump) ||
				(kernel.static_calls && !kernel.first_call);
		if (!(i % TOGETHER))
			cond_resched();
	}
	if (kernel.first_jump && kernel.end_jump)
		tell_near_jumps(n, kernel.first_jump, kernel.end_jump);
	if (kernel.first_call && kernel.end_call)
		tell_near_calls(n, kernel.first_call, kernel.end_call);
	for (i = 0; i < holding; i++) {
#ifdef CONFIG_JUMP_LABEL
		tell_near_jumps(n, held[i]->jump_entries,
				held[i]->jump_entries +
					held[i]->num_jump_entries);
#endif
#ifdef CONFIG_HAVE_STATIC_CALL_INLINE
		tell_near_calls(n, held[i]->static_call_sites,
				held[i]->static_call_sites +
					held[i]->num_static_call_sites);
#endif
	}
}

static enum kinst_why check_site(struct site *site, struct walk *walk,
				 unsigned long call)
{
	unsigned long first = site->address, last = first + site->size - 1;
	unsigned long size, offset;
	s32 to;

	if (site->size == 1) {
		if (site->new[0] != INT3 || !call)
			return KINST_MALFORMED;
	} else {
		memcpy(&to, site->new + 1, sizeof(to));
		if (site->size != KINST_JUMP || site->new[0] != JUMP ||
		    !is_sealed(first + KINST_JUMP + to))
			return KINST_MALFORMED;
	}
	if (!is_there(site, site->old))
		return KINST_CHANGED;
	if (!kernel.size_of(first, &size, &offset))
		return KINST_NO_TEXT;
	if (first - offset != walk->start || walk->at > first) {
		walk->start = first - offset;
		walk->at = walk->start;
		walk->forbidden = kernel.forbidden(first);
		walk->early = is_before_us(first);
	}
	site->early = walk->early;
	if (site->several && site->size == 1)
		return KINST_MALFORMED;
	if (walk->forbidden || (site->size == 1 && site->early))
		return KINST_RESERVED;
	if (site->near && kernel.jump_labels &&
	    kernel.jump_labels((void *)first, (void *)last))
		return KINST_RESERVED;
	if (site->near && kernel.static_calls &&
	    kernel.static_calls((void *)first, (void *)last))
		return KINST_RESERVED;
	return check_instruction(walk, site);
}

/* The first site that is refused, or n; why says why. */
static unsigned long check_sites(unsigned long n, unsigned long call,
				 enum kinst_why *why)
{
	struct walk walk = {};
	unsigned long i, last;

	for (i = 0; i < n; i++) {
		last = sites[i].address + sites[i].size - 1;
		*why = last < sites[i].address ?
			       KINST_NO_TEXT :
			       hold_text(sites[i].address, last);
		if (*why != KINST_FINE)
			return i;
		if (!(i % TOGETHER))
			cond_resched();
	}
	tell_all_near(n);
	for (i = 0; i < n; i++) {
		*why = check_site(sites + i, &walk, call);
		if (*why == KINST_FINE && i &&
		    sites[i - 1].address + sites[i - 1].size >
			    sites[i].address)
			*why = KINST_TWICE;
		if (*why != KINST_FINE)
			break;
		if (!(i % TOGETHER))
			cond_resched();
	}
	return i;
}

static void nothing(struct work_struct *work)
{
}

/*
 * Until all who were in some code have left it, wherever they were preempted.
 * Nobody comes there meanwhile.
 */
static void wait_outside(void)
{
	synchronize_rcu_tasks();
	synchronize_rcu();
	/* Idle CPUs are none of RCU's concern: they come out of it here. */
	kernel.everywhere(nothing);
}

/* Whether all of n sites from one on are what they are to be; else i is one. */
static bool are_unplanted(unsigned long *i, unsigned long n)
{
	for (n += *i; *i < n; ++*i)
		if (!is_unplanted(sites + *i))
			return false;
	return true;
}

/*
 * Put the breakpoints at sites over several instructions, and wait until
 * nobody is behind them any more.  Others may have the locks meanwhile: who
 * finds a breakpoint that is not his keeps away.  Returns the index of a site
 * that was changed, or n.  Locked.
 */
static unsigned long open_several(unsigned long n)
{
	unsigned long from, to, i;
	bool some = false;

	for (i = 0; i < n && !some; i++)
		some = sites[i].several;
	for (from = 0; some && from < n; from = to) {
		to = min(from + WRITTEN, n);
		i = from;
		if (!are_unplanted(&i, to - from))
			return i;
		begin(sites + from, to - from, OPEN, true);
		pause_text();
	}
	if (some) {
		unlock_text();
		wait_outside();
		lock_text();
	}
	return n;
}

/* Write n sites that were looked at, if they are still what they were. */
static unsigned long write_all(unsigned long n, enum kinst_why *why)
{
	unsigned long *all = kvmalloc_array(2 * n + marked, sizeof(*all),
					    GFP_KERNEL);
	unsigned long *old = marks;
	unsigned long i, from, to;

	if (!all) {
		*why = KINST_MALFORMED;
		return 0;
	}
	for (i = 0; i < n; i++)
		all[i] = sites[i].address;
	lock_text();
	for (i = 0; i < n; i++) {
		if (!(i % TOGETHER))
			cond_resched();
		*why = KINST_CHANGED;
		if (!is_there(sites + i, sites[i].old))
			goto out;
	}
	/* New marks go behind the addresses, which are not wanted later. */
	marks = all + n;
	memcpy(marks, old, marked * sizeof(*old));
	*why = KINST_IN_USE;
	i = mark(all, n);
	if (i < n) {
		marks = old;
		goto out;
	}
	memmove(all, marks, marked * sizeof(*all));
	marks = all;
	all = old;
	watch_breakpoints(sites, n);
	planted = n;
	if (handler)
		ask_first(true);
	*why = KINST_CHANGED;
	i = open_several(n);
	if (i < n)
		goto out;
	for (from = 0; from < n; from = to) {
		to = min(from + WRITTEN, n);
		/* Whoever came in the pause: his bytes stay, ours do not. */
		i = from;
		if (!are_unplanted(&i, to - from))
			goto out;
		write_sites(sites + from, to - from, true);
		if (to < n)
			pause_text();
	}
	*why = KINST_FINE;
	i = n;
	ignore_breakpoints();
out:
	unlock_text();
	kvfree(all);
	return i;
}

/* A table as the owner has it, which is by address. */
static struct site *take_sites(u64 table, u64 count)
{
	const struct kinst_site __user *from = u64_to_user_ptr(table);
	struct kinst_site one;
	struct site *all;
	unsigned long i;
	int error = -EFAULT;

	/* Room behind the last: the decoder may look there. */
	all = kvcalloc(count + 1, sizeof(*all), GFP_KERNEL);
	if (!all)
		return ERR_PTR(-ENOMEM);
	for (i = 0; i < count; i++) {
		if (copy_from_user(&one, from + i, sizeof(one)))
			goto bad;
		error = -EINVAL;
		if (memchr_inv(one.zero, 0, sizeof(one.zero)) ||
		    one.several > 1 ||
		    (i && one.address < all[i - 1].address))
			goto bad;
		error = -EFAULT;
		all[i].address = one.address;
		all[i].size = one.size;
		all[i].several = one.several;
		memcpy(all[i].old, one.old, KINST_JUMP);
		memcpy(all[i].new, one.new, KINST_JUMP);
		if (!(i % TOGETHER))
			cond_resched();
	}
	return all;
bad:
	kvfree(all);
	return ERR_PTR(error);
}

static int take_all(const struct kinst_plant *ask)
{
	sites = take_sites(ask->sites, ask->count);
	if (IS_ERR(sites)) {
		int error = PTR_ERR(sites);

		sites = NULL;
		return error;
	}
	if (!ask->exiting)
		return 0;
	exits = take_sites(ask->exits, ask->exiting);
	if (IS_ERR(exits)) {
		int error = PTR_ERR(exits);

		exits = NULL;
		return error;
	}
	exiting = ask->exiting;
	return 0;
}

/* An exit is a jump out of scratch, over an instruction in it. */
static bool are_exits(void)
{
	const struct site *one;
	unsigned long i, to;
	s32 by;

	for (i = 0; i < exiting; i++) {
		one = exits + i;
		memcpy(&by, one->new + 1, sizeof(by));
		to = one->address + KINST_JUMP + by;
		if (one->size != KINST_JUMP || one->new[0] != JUMP ||
		    !is_sealed(one->address) ||
		    !is_sealed(one->address + KINST_JUMP - 1) ||
		    (i && one->address - one[-1].address < KINST_JUMP) ||
		    !is_there(one, one->old) ||
		    to - (unsigned long)scratch < scratch_size)
			return false;
		if (!(i % TOGETHER))
			cond_resched();
	}
	return true;
}

static void watch(struct work_struct *work)
{
	mutex_lock(&lock);
	if (owned && (planted || timers)) {
		if (silenced || is_overdue()) {
			pr_warn("nothing heard of kinst for %lu s: its sites are restored\n",
				patience / HZ);
			unplant();
			lifted = true;
		} else {
			schedule_delayed_work(&dead_man, HZ);
		}
	}
	mutex_unlock(&lock);
}

static int plant(struct kinst_plant *ask)
{
	enum kinst_why why = KINST_FINE;
	unsigned long done;
	int error;

	if (planted)
		return -EBUSY;
	if (!ask->count || ask->count > MOST_SITES ||
	    ask->exiting > MOST_SITES || !ask->seconds ||
	    ask->seconds > MOST_SECONDS ||
	    (ask->handler && !is_sealed(ask->handler)) ||
	    !is_flag(ask->active))
		return -EINVAL;
	error = take_all(ask);
	if (!error && !are_exits())
		error = -EINVAL;
	if (error) {
		forget_sites();
		return error;
	}
	if (kernel.jump_label_lock)
		kernel.jump_label_lock();
	done = check_sites(ask->count, ask->handler, &why);
	if (kernel.jump_label_unlock)
		kernel.jump_label_unlock();
	if (why == KINST_FINE) {
		WRITE_ONCE(handler, (handler_t)ask->handler);
		used = true;
		done = write_all(ask->count, &why);
	}
	ask->why = why;
	if (why != KINST_FINE) {
		ask->failed = sites[done].address;
		if (planted)
			unplant();
		else
			forget_sites();
		return -EINVAL;
	}
	await(ask->active, ask->seconds);
	return 0;
}

/* Scratch. */

/* How many pages from one on are alike in what they are, up to another. */
static unsigned long alike(unsigned long page, unsigned long end)
{
	unsigned long next = test_bit(page, sealed) ?
				     find_next_zero_bit(sealed, end, page) :
				     find_next_bit(sealed, end, page);

	return min(next - page, (unsigned long)PAGES);
}

static void unseal(void)
{
	unsigned long page, some, end = scratch_size >> PAGE_SHIFT;

	for (page = 0; page < end; page += some) {
		unsigned long at = (unsigned long)scratch + page * PAGE_SIZE;

		some = alike(page, end);
		cond_resched();
		if (!test_bit(page, sealed))
			continue;
		bitmap_clear(sealed, page, some);
		kernel.set_nx(at, some);
		kernel.set_rw(at, some);
	}
}

static void clear_scratch(void)
{
	unsigned long at, some;

	for (at = 0; at < scratch_size; at += some) {
		some = min(scratch_size - at, PAGES * PAGE_SIZE);
		memset(scratch + at, 0, some);
		cond_resched();
	}
}

/* Until no thread is in scratch. */
static void wait_empty(void)
{
	if (used)
		wait_outside();
	used = false;
}

static void free_scratch(void)
{
	if (!scratch)
		return;
	wait_empty();
	unseal();
	vfree(scratch);
	kvfree(sealed);
	scratch = NULL;
	scratch_size = 0;
}

static int make_scratch(struct kinst_scratch *ask)
{
	unsigned long size = PAGE_ALIGN(ask->size);

	if (!ask->size || ask->size > MOST_SCRATCH)
		return -EINVAL;
	if (fresh)
		return -EBUSY;
	if (size > scratch_size) {
		free_scratch();
		sealed = kvcalloc(BITS_TO_LONGS(size >> PAGE_SHIFT),
				  sizeof(*sealed), GFP_KERNEL);
		if (!sealed)
			return -ENOMEM;
		scratch = kernel.allocate(size, PAGE_SIZE, MODULES_VADDR,
					  MODULES_END, GFP_KERNEL | __GFP_ZERO,
					  PAGE_KERNEL, VM_USERMAP, NUMA_NO_NODE,
					  __builtin_return_address(0));
		if (!scratch) {
			kvfree(sealed);
			return -ENOMEM;
		}
		scratch_size = size;
	} else {
		wait_empty();
		unseal();
		clear_scratch();
	}
	/* For on_mmap(): what is above comes first. */
	smp_store_release(&fresh, true);
	ask->address = (unsigned long)scratch;
	return 0;
}

static int seal(const struct kinst_seal *ask)
{
	unsigned long page = ask->offset >> PAGE_SHIFT, at, some;
	unsigned long end = page + (ask->size >> PAGE_SHIFT);
	unsigned long flag = (unsigned long)active - (unsigned long)scratch;
	int error;

	if (!fresh || (ask->offset | ask->size) & ~PAGE_MASK ||
	    ask->offset > scratch_size ||
	    ask->size > scratch_size - ask->offset)
		return -EINVAL;
	if (active && flag >= ask->offset && flag - ask->offset < ask->size)
		return -EBUSY;
	for (; page < end; page += some) {
		some = alike(page, end);
		cond_resched();
		if (test_bit(page, sealed))
			continue;
		at = (unsigned long)scratch + page * PAGE_SIZE;
		error = kernel.set_ro(at, some);
		if (!error)
			error = kernel.set_x(at, some);
		if (error)
			return error;
		bitmap_set(sealed, page, some);
	}
	return 0;
}

static void clear_counters(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		memset(per_cpu_ptr(counters, cpu), 0, counters_size);
}

static int empty(void)
{
	if (!fresh || planted || timers)
		return -EBUSY;
	wait_empty();
	unseal();
	if (counting)
		clear_counters();
	return 0;
}

/*
 * Whoever counts has one instruction for it, which reaches 2 GB from the CPU's
 * per-CPU base: what is allocated there for modules that are loaded, and few
 * other bytes.  The owner's scratch is new, so nobody counts any more.
 */
static int make_counters(struct kinst_counters *ask)
{
	unsigned long some;

	if (!fresh || counting)
		return -EBUSY;
	if (!ask->size)
		return -EINVAL;
	for (some = MOST_COUNTERS; kernel.reserve && !counters &&
	     some >= LEAST_COUNTERS; some /= 2) {
		counters = kernel.reserve(some, SMP_CACHE_BYTES, true,
					  GFP_KERNEL | __GFP_NOWARN);
		counters_size = some;
	}
	if (!counters)
		return -ENOMEM;
	ask->displacement = (u64)(uintptr_t)counters;
	if ((s64)ask->displacement != (s32)ask->displacement)
		return -ENOMEM;
	clear_counters();
	ask->size = min_t(u64, ask->size, counters_size);
	counting = true;
	return 0;
}

static int gather(const struct kinst_gather *ask)
{
	unsigned long end;
	int cpu;

	if (!counting || !ask->size || ask->size > counters_size ||
	    ask->offset % sizeof(u64) || ask->size % sizeof(u64) ||
	    ask->offset > scratch_size ||
	    nr_cpu_ids > (scratch_size - ask->offset) / ask->size)
		return -EINVAL;
	end = PAGE_ALIGN(ask->offset + nr_cpu_ids * ask->size) >> PAGE_SHIFT;
	if (find_next_bit(sealed, end, ask->offset >> PAGE_SHIFT) < end)
		return -EINVAL;
	for_each_possible_cpu(cpu)
		memcpy(scratch + ask->offset + cpu * ask->size,
		       per_cpu_ptr(counters, cpu), ask->size);
	return 0;
}

static int read_memory(const struct kinst_read *ask)
{
	u8 __user *to = u64_to_user_ptr(ask->buffer);
	unsigned long done, part;
	void *page;
	int error = 0;

	if (ask->size > MOST_READ || ask->address + ask->size < ask->address)
		return -EINVAL;
	page = (void *)__get_free_page(GFP_KERNEL);
	if (!page)
		return -ENOMEM;
	for (done = 0; done < ask->size && !error; done += part) {
		unsigned long from = ask->address + done;

		part = min_t(unsigned long, ask->size - done,
			     PAGE_SIZE - offset_in_page(from));
		error = copy_from_kernel_nofault(page, (void *)from, part);
		if (!error && copy_to_user(to + done, page, part))
			error = -EFAULT;
		cond_resched();
	}
	free_page((unsigned long)page);
	return error ? -EFAULT : 0;
}

/* The device. */

static void tell(struct kinst_info *info)
{
	memset(info, 0, sizeof(*info));
	info->version = KINST_VERSION;
	info->cpus = num_online_cpus();
	info->text = kernel.lookup("_text");
	info->scratch = (unsigned long)scratch;
	info->scratch_size = scratch_size;
	info->planted = planted;
	info->stuck = kept ? planted : 0;
}

static long asked(unsigned int command, void *value)
{
	switch (command) {
	case KINST_INFO:
		tell(value);
		return 0;
	case KINST_READ:
		return read_memory(value);
	case KINST_SCRATCH:
		return make_scratch(value);
	case KINST_SEAL:
		return seal(value);
	case KINST_PLANT:
		return plant(value);
	case KINST_TIMER:
		return start_timer(value);
	case KINST_UNPLANT:
		unplant();
		((struct kinst_unplant *)value)->stuck = planted;
		return 0;
	case KINST_COUNTERS:
		return make_counters(value);
	case KINST_EMPTY:
		return empty();
	case KINST_GATHER:
		return gather(value);
	case KINST_BEAT:
		((struct kinst_beat *)value)->lifted = lifted || silenced;
		return 0;
	}
	return -ENOTTY;
}

static long on_ioctl(struct file *file, unsigned int command,
		     unsigned long argument)
{
	void __user *where = (void __user *)argument;
	union {
		struct kinst_info info;
		struct kinst_read read;
		struct kinst_scratch scratch;
		struct kinst_seal seal;
		struct kinst_plant plant;
		struct kinst_timer timer;
		struct kinst_unplant unplant;
		struct kinst_beat beat;
		struct kinst_counters counters;
		struct kinst_gather gather;
	} value = {};
	size_t size = _IOC_SIZE(command);
	long error;

	if (_IOC_TYPE(command) != 'k' || size > sizeof(value))
		return -ENOTTY;
	if (_IOC_DIR(command) & _IOC_WRITE &&
	    copy_from_user(&value, where, size))
		return -EFAULT;
	mutex_lock(&lock);
	heard = jiffies;
	error = asked(command, &value);
	heard = jiffies;
	mutex_unlock(&lock);
	if (_IOC_DIR(command) & _IOC_READ && error != -ENOTTY &&
	    copy_to_user(where, &value, size))
		return -EFAULT;
	return error;
}

static int on_mmap(struct file *file, struct vm_area_struct *area)
{
	/*
	 * Without the lock, whose holders may fault and so wait for mmap_lock,
	 * which is held here: an owner's scratch stays until on_release().
	 */
	if (!smp_load_acquire(&fresh) || !(area->vm_flags & VM_SHARED) ||
	    area->vm_flags & VM_EXEC)
		return -EINVAL;
	return remap_vmalloc_range(area, scratch, area->vm_pgoff);
}

static int on_open(struct inode *inode, struct file *file)
{
	int error = 0;

	if (!capable(CAP_SYS_MODULE))
		return -EPERM;
	mutex_lock(&lock);
	if (owned)
		error = -EBUSY;
	else if (kept)
		error = -ETXTBSY;
	else
		owned = true;
	mutex_unlock(&lock);
	return error;
}

static int on_release(struct inode *inode, struct file *file)
{
	mutex_lock(&lock);
	unplant();
	owned = false;
	fresh = false;
	counting = false;
	lifted = false;
	silenced = false;
	mutex_unlock(&lock);
	return 0;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = on_open,
	.release = on_release,
	.unlocked_ioctl = on_ioctl,
	.mmap = on_mmap,
	.llseek = noop_llseek,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "kinst",
	.mode = 0600,
	.fops = &operations,
};

static int __init kinst_init(void)
{
	int error;

#ifdef X86_FEATURE_IBT
	/* on_die() calls what was not compiled to be called so. */
	if (cpu_feature_enabled(X86_FEATURE_IBT)) {
		pr_err("indirect branch tracking is on: boot with ibt=off\n");
		return -EOPNOTSUPP;
	}
#endif
	error = look_up();
	if (error)
		return error;
	find_call();
	twice = hypervisor_cpuid_base("TCGTCGTCGTCG", 0);
	tickers = __alloc_percpu(MOST_TIMERS * sizeof(*tickers),
				 __alignof__(*tickers));
	if (!tickers)
		return -ENOMEM;
	error = register_die_notifier(&die_block);
	if (error)
		goto no_notifier;
	set_up_timer(&silence, on_silence, HRTIMER_MODE_REL_HARD);
	coming = cpuhp_setup_state_nocalls(CPUHP_AP_ONLINE_DYN, "kinst",
					   on_cpu_up, NULL);
	error = min(coming, 0);
	if (error)
		goto no_coming;
	error = misc_register(&device);
	if (error)
		goto no_device;
	return 0;
no_device:
	cpuhp_remove_state_nocalls(coming);
no_coming:
	unregister_die_notifier(&die_block);
no_notifier:
	free_percpu(tickers);
	return error;
}

static void __exit kinst_exit(void)
{
	misc_deregister(&device);
	cpuhp_remove_state_nocalls(coming);
	cancel_delayed_work_sync(&dead_man);
	cancel_delayed_work_sync(&again);
	unregister_die_notifier(&die_block);
	if (marked)
		pr_warn("ftrace does not know %lu functions until the next boot\n",
			marked);
	kvfree(marks);
	free_scratch();
	free_percpu(counters);
	free_percpu(tickers);
}

module_init(kinst_init);
module_exit(kinst_exit);
MODULE_AUTHOR("The authors of kinst");
MODULE_DESCRIPTION("Instruction tracing of the running kernel for kinst");
MODULE_LICENSE("Dual BSD/GPL");
