// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Memory for the owner: in reach of all kernel text, for code and data, and of
 * each CPU, for code to count in.
 */
#include <linux/bitmap.h>
#include <linux/percpu.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "parts.h"

#define MOST_SCRATCH (768UL << 20)
#define PAGES 256 /* of scratch, between two chances for others */
#define MOST_COUNTERS 4096UL /* bytes of each CPU's: modules have 8 KB in all */
#define LEAST_COUNTERS 256

static u8 *scratch;
static unsigned long scratch_size;
static unsigned long *sealed; /* a bit for each page of scratch */
static bool fresh; /* it is this owner's */
static bool used; /* a thread may be in scratch */
static u8 __percpu *counters;
static unsigned long counters_size;
static bool counting; /* they are this owner's */

bool is_sealed(unsigned long address)
{
	unsigned long offset = address - (unsigned long)scratch;

	/* What an earlier owner has sealed is none of this one's. */
	return fresh && offset < scratch_size &&
	       test_bit(offset >> PAGE_SHIFT, sealed);
}

/* Whether there is a word that stays writable, or none is asked for. */
bool is_flag(unsigned long address)
{
	unsigned long offset = address - (unsigned long)scratch;

	return !address || (fresh && offset < scratch_size &&
			    !(address % sizeof(u64)) &&
			    !test_bit(offset >> PAGE_SHIFT, sealed));
}

bool is_in_scratch(unsigned long address)
{
	return address - (unsigned long)scratch < scratch_size;
}

/* A thread may be in scratch from now on. */
void use_scratch(void)
{
	used = true;
}

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

int make_scratch(struct kinst_scratch *ask)
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
	/* For show_scratch(): what is above comes first. */
	smp_store_release(&fresh, true);
	ask->address = (unsigned long)scratch;
	return 0;
}

int seal(const struct kinst_seal *ask)
{
	unsigned long page = ask->offset >> PAGE_SHIFT, at, some;
	unsigned long end = page + (ask->size >> PAGE_SHIFT);
	int error;

	if (!fresh || (ask->offset | ask->size) & ~PAGE_MASK ||
	    ask->offset > scratch_size ||
	    ask->size > scratch_size - ask->offset)
		return -EINVAL;
	if (is_asked((unsigned long)scratch + ask->offset, ask->size))
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

int empty_scratch(void)
{
	if (!fresh || planted_sites() || are_timers_on())
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
int make_counters(struct kinst_counters *ask)
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

int gather(const struct kinst_gather *ask)
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

void tell_scratch(struct kinst_info *info)
{
	info->scratch = (unsigned long)scratch;
	info->scratch_size = scratch_size;
}

/*
 * Without the lock, whose holders may fault and so wait for mmap_lock, which
 * is held here: an owner's scratch stays until leave_scratch().
 */
int show_scratch(struct vm_area_struct *area)
{
	/* After it: what make_scratch() has made. */
	if (!smp_load_acquire(&fresh))
		return -EINVAL;
	return remap_vmalloc_range(area, scratch, area->vm_pgoff);
}

/* The owner is gone; the next one may have the same memory. */
void leave_scratch(void)
{
	fresh = false;
	counting = false;
}

void end_scratch(void)
{
	free_scratch();
	free_percpu(counters);
}
