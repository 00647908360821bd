// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Whether the owner is alive.  Where nothing is heard of him, everything is
 * taken out: by a piece of work, and before that, where probes leave no time
 * for it, clauses are switched off in an interrupt.
 */
#include <linux/hrtimer.h>
#include <linux/jiffies.h>

#include "parts.h"

static bool lifted; /* by the dead man's switch */
static bool silenced; /* likewise, at first: the owner's clauses do not run */
static u64 *active; /* whether they do; in scratch */
static struct hrtimer silence; /* looks whether the owner is heard of */
static unsigned long heard; /* jiffies when the owner was last heard of */
static unsigned long patience; /* jiffies */

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
void await(u64 flag, u32 seconds)
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

/* Nothing runs any more. */
void stop_waiting(void)
{
	hrtimer_cancel(&silence);
	active = NULL;
}

/* The owner has asked for something. */
void hear(void)
{
	heard = jiffies;
}

/* Whether all was taken out, or is about to be, because nothing was heard. */
bool is_lifted(void)
{
	return lifted || silenced;
}

void forget_lifted(void)
{
	lifted = false;
	silenced = false;
}

/* Whether the word that clauses ask is among these bytes. */
bool is_asked(unsigned long from, unsigned long size)
{
	return active && (unsigned long)active - from < size;
}

static void watch(struct work_struct *work)
{
	mutex_lock(&lock);
	if (is_owned() && (planted_sites() || are_timers_on())) {
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

void set_up_waiting(void)
{
	set_up_timer(&silence, on_silence, HRTIMER_MODE_REL_HARD);
}

void end_waiting(void)
{
	cancel_delayed_work_sync(&dead_man);
}
