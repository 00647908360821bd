// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Changes of text, by the kernel's own text_poke(), in the three steps of its
 * text_poke_bp_batch(): each CPU executes either the old instruction or the new
 * one.  That function writes site by site; here, all sites in a page are
 * written at once.
 */
#include <linux/cpu.h>
#include <linux/perf_event.h>
#include <linux/rcupdate.h>
#include <linux/uaccess.h>
#include <asm/hypervisor.h>

#include "parts.h"

#define GAP 512 /* larger gaps between sites are not written */

static u8 image[PAGE_SIZE]; /* bytes that are written at once */
static bool twice; /* write heads twice: QEMU may keep stale breakpoints */

void set_up_text(void)
{
	twice = hypervisor_cpuid_base("TCGTCGTCGTCG", 0);
}

/* Exclude all other changes of text. */
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

/* Release the locks and the CPU for a moment. */
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

/* Whether a site has its original bytes, or our breakpoint over them. */
bool is_unplanted(const struct site *site)
{
	u8 bytes[KINST_JUMP];

	memcpy(bytes, site->old, sizeof(bytes));
	if (site->begun)
		bytes[0] = INT3;
	return is_there(site, bytes);
}

/* The steps in which a jump replaces an instruction. */
enum step {
	OPEN, /* a breakpoint over the first byte, under jumps over several */
	BREAK, /* a breakpoint over the first byte, at all sites */
	TAIL, /* the bytes after the first one */
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

/* Make a step at a table's sites, with one write for all sites of a page. */
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

/* Tell perf, whose users decode traces of processors by the text. */
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
 * Write sites at which the kernel itself must handle the breakpoints, and code
 * in scratch that such a site may lead to.
 */
void write_early(struct site *sites, unsigned long n, bool plant)
{
	unsigned long i;
	int some = 0;

	/* Meanwhile the kernel leads CPUs to the jump's target. */
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

/* Write breakpoints at n sites, for send_on() to handle.  Locked. */
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
 * Write breakpoints at those of n sites that cover several instructions; they
 * lead to the targets of the jumps.  Locked.
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
	/* No CPU is left that has met one of these breakpoints. */
	for (i = 0; i < n; i++)
		WRITE_ONCE(sites[i].begun, false);
	write_early(sites, n, plant);
}

static void nothing(struct work_struct *work)
{
}

/*
 * Wait until all threads have left some code, also those that were preempted in
 * it.  No thread enters it meanwhile.
 */
void wait_outside(void)
{
	synchronize_rcu_tasks();
	synchronize_rcu();
	/* RCU does not wait for idle CPUs. */
	kernel.everywhere(nothing);
}
