// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The watchdog of the owner.  Without requests for some time, a work item
 * restores all sites.  Probes may leave no time for that, so clauses are
 * switched off before, in an interrupt.
 */
#include <linux/hrtimer.h>
#include <linux/jiffies.h>

#include "parts.h"

static bool lifted; /* the watchdog has restored all sites */
static bool silenced; /* the watchdog has switched clauses off */
static u64 *active; /* 0 while clauses are off; in scratch */
static struct hrtimer silence; /* checks for requests of the owner */
static unsigned long heard; /* jiffies at the last request */
static unsigned long patience; /* jiffies */

static void watch(struct work_struct *work);
static DECLARE_DELAYED_WORK(watchdog, watch);

static bool is_overdue(void)
{
	return time_after(jiffies, READ_ONCE(heard) + READ_ONCE(patience));
}

/*
 * Probes may leave no time for watch(), or for requests of the owner.  Switch
 * them off here, in an interrupt; watch() does the rest.
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

/* Start the watchdog, since sites or timers of the owner are active. */
void await(u64 flag, u32 seconds)
{
	/* It may run already, for a timer. */
	hrtimer_cancel(&silence);
	lifted = false;
	silenced = false;
	heard = jiffies;
	patience = seconds * HZ;
	active = (u64 *)flag;
	hrtimer_start(&silence, NSEC_PER_SEC, HRTIMER_MODE_REL_HARD);
	schedule_delayed_work(&watchdog, HZ);
}

/* Stop the watchdog. */
void stop_waiting(void)
{
	hrtimer_cancel(&silence);
	active = NULL;
}

/* Note a request of the owner. */
void hear(void)
{
	heard = jiffies;
}

/* Whether the watchdog has restored all sites, or is about to. */
bool is_lifted(void)
{
	return lifted || silenced;
}

void forget_lifted(void)
{
	lifted = false;
	silenced = false;
}

/* Whether the word that switches clauses off is among these bytes. */
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
			schedule_delayed_work(&watchdog, HZ);
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
	cancel_delayed_work_sync(&watchdog);
}
