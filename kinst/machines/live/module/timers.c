// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Timers that call code of the owner with the registers of interrupted code.
 */
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/hardirq.h>
#include <linux/percpu.h>
#include <asm/irq_regs.h>

#include "parts.h"

#define MOST_TIMERS 32
#define SHORTEST 100000 /* ns, shortest period of a timer */

typedef void (*sampler_t)(struct pt_regs *regs);

/* One CPU's part of a timer. */
struct ticker {
	struct hrtimer timer;
	unsigned int cpu;
	ktime_t period;
	sampler_t call;
	u64 missed; /* periods in which call was not called */
};

static struct ticker __percpu *tickers; /* MOST_TIMERS for each CPU */
static unsigned int timers; /* running; CPUs that come online read it */
static int coming; /* the hotplug state that calls on_cpu_up() */

bool are_timers_on(void)
{
	return timers;
}

void set_up_timer(struct hrtimer *timer,
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

static enum hrtimer_restart on_tick(struct hrtimer *timer)
{
	struct ticker *ticker = container_of(timer, struct ticker, timer);
	struct pt_regs *regs = get_irq_regs();
	u64 missed = !regs;

	/* The kernel moves timers of a CPU that goes offline to another. */
	if (ticker->cpu != smp_processor_id())
		return HRTIMER_NORESTART;
	if (regs) {
		/* As if the interrupted code had called it. */
		__preempt_count_sub(HARDIRQ_OFFSET);
		ticker->call(regs);
		__preempt_count_add(HARDIRQ_OFFSET);
	}
	/* Periods since the timer was due; the first one is this call's. */
	missed += hrtimer_forward_now(timer, ticker->period) - 1;
	WRITE_ONCE(ticker->missed, ticker->missed + missed);
	return HRTIMER_RESTART;
}

static void start_ticker(void *data)
{
	struct ticker *ticker = this_cpu_ptr(tickers) + *(unsigned int *)data;

	ticker->cpu = smp_processor_id();
	hrtimer_start(&ticker->timer, ticker->period,
		      HRTIMER_MODE_REL_PINNED_HARD);
}

/* The lock must not be taken: its holders wait for CPUs that come online. */
static int on_cpu_up(unsigned int cpu)
{
	unsigned int i;

	for (i = 0; i < timers; i++)
		start_ticker(&i);
	return 0;
}

int start_timer(const struct kinst_timer *ask)
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
		WRITE_ONCE(ticker->missed, 0);
	}
	use_scratch();
	cpus_read_lock();
	on_each_cpu(start_ticker, &timers, 1);
	timers++;
	cpus_read_unlock();
	await(ask->active, ask->seconds);
	return 0;
}

void stop_timers(void)
{
	unsigned int i, some = timers;
	int cpu;

	cpus_read_lock();
	timers = 0;
	cpus_read_unlock();
	for (i = 0; i < some; i++)
		for_each_possible_cpu(cpu)
			hrtimer_cancel(&per_cpu_ptr(tickers, cpu)[i].timer);
}

/* Timers that were stopped keep their counts until others are started. */
int count_missed(struct kinst_missed *ask)
{
	int cpu;

	if (ask->timer >= MOST_TIMERS)
		return -EINVAL;
	ask->missed = 0;
	for_each_possible_cpu(cpu)
		ask->missed += READ_ONCE(
			per_cpu_ptr(tickers, cpu)[ask->timer].missed);
	return 0;
}

int set_up_timers(void)
{
	tickers = __alloc_percpu(MOST_TIMERS * sizeof(*tickers),
				 __alignof__(*tickers));
	if (!tickers)
		return -ENOMEM;
	coming = cpuhp_setup_state_nocalls(CPUHP_AP_ONLINE_DYN, "kinst",
					   on_cpu_up, NULL);
	if (coming < 0)
		free_percpu(tickers);
	return min(coming, 0);
}

void end_timers(void)
{
	cpuhp_remove_state_nocalls(coming);
	free_percpu(tickers);
}
