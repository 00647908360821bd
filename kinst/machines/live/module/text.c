// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * How text is changed: by the kernel's own text_poke(), in the three steps of
 * its text_poke_bp_batch(), which let every CPU see either the old instruction
 * or the new one.  That function itself writes site by site; here, all that is
 * in a page is written at once.
 */
#include <linux/cpu.h>
#include <linux/perf_event.h>
#include <linux/rcupdate.h>
#include <linux/uaccess.h>
#include <asm/hypervisor.h>

#include "parts.h"

#define GAP 512 /* bytes that are sooner written anew than left out */

static u8 image[PAGE_SIZE]; /* of what is written at once */
static bool twice; /* QEMU's translator keeps breakpoints that are gone */

void set_up_text(void)
{
	twice = hypervisor_cpuid_base("TCGTCGTCGTCG", 0);
}

/* Everybody else who changes text, or has it changed, waits. */
void lock_text(void)
{
	if (kernel.ftrace_lock)
		mutex_lock(kernel.ftrace_lock);
	cpus_read_lock();
	mutex_lock(kernel.text_mutex);
}

void unlock_text(void)
{
	mutex_unlock(kernel.text_mutex);
	cpus_read_unlock();
	if (kernel.ftrace_lock)
		mutex_unlock(kernel.ftrace_lock);
}

/* Let others have the locks, and the CPU. */
void pause_text(void)
{
	unlock_text();
	cond_resched();
	lock_text();
}

bool is_there(const struct site *site, const u8 *bytes)
{
	u8 now[KINST_JUMP];

	if (copy_from_kernel_nofault(now, (void *)site->address, site->size))
		return false;
	return !memcmp(now, bytes, site->size);
}

/* Whether there is what was there before, or the breakpoint over it. */
bool is_unplanted(const struct site *site)
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
void write_early(struct site *sites, unsigned long n, bool plant)
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

/*
 * Put breakpoints at those of n sites that are over several instructions, which
 * lead where the jumps will.  Locked.
 */
void open_sites(struct site *sites, unsigned long n)
{
	begin(sites, n, OPEN, true);
}

/* Write those of n sites that are not stuck.  Locked. */
void write_sites(struct site *sites, unsigned long n, bool plant)
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

static void nothing(struct work_struct *work)
{
}

/*
 * Until all who were in some code have left it, wherever they were preempted.
 * Nobody comes there meanwhile.
 */
void wait_outside(void)
{
	synchronize_rcu_tasks();
	synchronize_rcu();
	/* Idle CPUs are none of RCU's concern: they come out of it here. */
	kernel.everywhere(nothing);
}
