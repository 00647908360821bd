// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Planting all sites of a table or none, and restoring them.
 *
 * A jump over several instructions is written as the kernel writes those of
 * kprobes: first a breakpoint; then wait until every thread and CPU has left
 * the instructions under the jump; then the rest.
 */
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "parts.h"

#define MOST_SITES (1 << 20)
#define WRITTEN 1024 /* sites that are written before locks are released */

static struct site *sites; /* planted, by address */
static unsigned long planted;
static struct site *exits; /* out of chains, written after the sites */
static unsigned long exiting;
static bool kept; /* the module holds itself, because of stuck sites */

/* How many sites are planted. */
unsigned long planted_sites(void)
{
	return planted;
}

/* Whether sites of the last owner could not be restored. */
bool are_stuck(void)
{
	return kept;
}

/*
 * Let threads leave chains, in which trampolines lead to each other.  No site
 * leads there any more, but a loop would stay in a chain for ever.  Locked.
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

/* Free the sites; none is planted any more. */
static void forget_sites(void)
{
	if (handler) {
		/* A CPU has interrupts off from a breakpoint to its handler. */
		synchronize_rcu();
		WRITE_ONCE(handler, NULL);
		synchronize_rcu();
	}
	kvfree(sites);
	sites = NULL;
	kvfree(exits);
	exits = NULL;
	exiting = 0;
	release_modules();
}

static void retry(struct work_struct *work);
static DECLARE_DELAYED_WORK(again, retry);

/*
 * Restore every site with our bytes.  The others are stuck: another tracer has
 * written over our bytes, and restores them when it is removed.
 */
void unplant(void)
{
	unsigned long from, to, left = 0;

	stop_waiting();
	stop_timers();
	if (!planted && !marked_sites())
		return;
	lock_text();
	watch_breakpoints(sites, planted);
	for (from = 0; from < planted; from = to) {
		to = min(from + WRITTEN, planted);
		for (left = from; left < to; left++) {
			struct site *site = sites + left;

			site->stuck = !site->ours ||
				      (!is_there(site, site->new) &&
				       !(site->begun && is_unplanted(site)));
		}
		write_sites(sites + from, to - from, false);
		if (to < planted)
			pause_text();
	}
	ignore_breakpoints();
	for (left = from = 0; from < planted; from++) {
		if (!(from % TOGETHER))
			cond_resched();
		if (!sites[from].ours ||
		    is_there(sites + from, sites[from].old))
			continue;
		sites[left++] = sites[from];
	}
	if (!left) {
		leave();
		unmark();
		ask_first(false);
	}
	unlock_text();
	if (!left)
		forget_marks();
	if (planted && !left)
		forget_sites();
	planted = left;
	if (planted && !kept) {
		pr_warn("%lu sites have another tracer's bytes, the first at %pS; kinst stays until they can be restored\n",
			planted, (void *)sites[0].address);
		__module_get(THIS_MODULE);
	} else if (!planted && kept) {
		pr_info("all sites are restored\n");
		module_put(THIS_MODULE);
	}
	kept = planted;
	if (planted || marked_sites())
		schedule_delayed_work(&again, HZ);
}

static void retry(struct work_struct *work)
{
	mutex_lock(&lock);
	/* While there is an owner, only marks are removed. */
	if (!is_owned() || kept) {
		unplant();
	} else if (!planted && marked_sites()) {
		lock_text();
		unmark();
		unlock_text();
		forget_marks();
		if (marked_sites())
			schedule_delayed_work(&again, HZ);
	}
	mutex_unlock(&lock);
}

/* Whether n sites from *i on are unplanted; otherwise *i is one that is not. */
static bool are_unplanted(unsigned long *i, unsigned long n)
{
	for (n += *i; *i < n; ++*i) {
		if (!is_unplanted(sites + *i))
			return false;
		if (!(*i % TOGETHER))
			cond_resched();
	}
	return true;
}

/*
 * Write the breakpoints at sites that cover several instructions, and wait
 * until no thread is under the jumps any more.  The locks are released
 * meanwhile: other tracers do not touch an unknown breakpoint.  Returns the
 * index of a site that was changed, or n.  Locked.
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
		for (i = from; i < to; i++)
			sites[i].ours = sites[i].several;
		open_sites(sites + from, to - from);
		pause_text();
	}
	if (some) {
		unlock_text();
		wait_outside();
		lock_text();
	}
	return n;
}

/* Write n sites that were checked, if their bytes have not changed since. */
static unsigned long write_all(unsigned long n, enum kinst_why *why)
{
	unsigned long from, to, i = 0;

	*why = KINST_MALFORMED;
	if (!make_room_for_marks(n))
		return 0;
	lock_text();
	*why = KINST_CHANGED;
	if (!are_unplanted(&i, n))
		goto out;
	*why = KINST_IN_USE;
	i = mark(sites, n);
	if (i < n)
		goto out;
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
		/* A site that was changed in the pause stays as it is. */
		i = from;
		if (!are_unplanted(&i, to - from))
			goto out;
		for (i = from; i < to; i++)
			sites[i].ours = true;
		write_sites(sites + from, to - from, true);
		if (to < n)
			pause_text();
	}
	*why = KINST_FINE;
	i = n;
	ignore_breakpoints();
out:
	unlock_text();
	return i;
}

/* Copy a table from the owner, which is sorted by address. */
static struct site *take_sites(u64 table, u64 count)
{
	const struct kinst_site __user *from = u64_to_user_ptr(table);
	struct kinst_site one;
	struct site *all;
	unsigned long i;
	int error = -EFAULT;

	/* One more, since the decoder may read after the last. */
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

/* Whether all exits are jumps out of scratch, over instructions in it. */
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
		    is_in_scratch(to))
			return false;
		if (!(i % TOGETHER))
			cond_resched();
	}
	return true;
}

int plant(struct kinst_plant *ask)
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
	done = check_sites(sites, ask->count, ask->handler, &why);
	if (kernel.jump_label_unlock)
		kernel.jump_label_unlock();
	if (why == KINST_FINE) {
		WRITE_ONCE(handler, (handler_t)ask->handler);
		use_scratch();
		done = write_all(ask->count, &why);
	}
	ask->why = why;
	if (why != KINST_FINE) {
		ask->failed = sites[done].address;
		if (planted) {
			unplant();
		} else {
			forget_marks();
			forget_sites();
		}
		return -EINVAL;
	}
	await(ask->active, ask->seconds);
	return 0;
}

void stop_retrying(void)
{
	cancel_delayed_work_sync(&again);
}
