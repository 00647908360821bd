// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Memory for the owner: scratch, within branch reach of all kernel text, for
 * code and data; and per-CPU memory for counters.
 */
#include <linux/bitmap.h>
#include <linux/percpu.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "parts.h"

#define MOST_SCRATCH (768UL << 20)
#define PAGES 256 /* pages of scratch between two calls of cond_resched() */
#define MOST_COUNTERS 4096UL /* bytes for each CPU; all modules share 8 KB */
#define LEAST_COUNTERS 256

static u8 *scratch;
static unsigned long scratch_size;
static unsigned long *sealed; /* a bit for each page of scratch */
static bool fresh; /* this owner has asked for scratch */
static bool used; /* a thread may execute in scratch */
static u8 __percpu *counters;
static unsigned long counters_size;
static bool counting; /* this owner has asked for counters */

bool is_sealed(unsigned long address)
{
	unsigned long offset = address - (unsigned long)scratch;

	/* Pages that an earlier owner has sealed do not count. */
	return fresh && offset < scratch_size &&
	       test_bit(offset >> PAGE_SHIFT, sealed);
}

/* Whether the address is that of a word that stays writable, or 0. */
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

/* From now on a thread may execute in scratch. */
void use_scratch(void)
{
	used = true;
}

/* How many pages, from one on and before an end, are sealed alike. */
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

/* Wait until no thread executes in scratch. */
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
	/* Ordered after all of the above, for show_scratch(). */
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
 * Code counts with one instruction, which reaches 2 GB from the per-CPU base.
 * Only the memory that the kernel reserves for modules is there.  The owner's
 * scratch is new, so no code counts any more.
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
 * mmap_lock is held here.  The lock must not be taken, since its holders may
 * fault and wait for mmap_lock.  Scratch stays until leave_scratch().
 */
int show_scratch(struct vm_area_struct *area)
{
	/* Ordered before what make_scratch() has written. */
	if (!smp_load_acquire(&fresh))
		return -EINVAL;
	return remap_vmalloc_range(area, scratch, area->vm_pgoff);
}

/* The owner has ended; the next one may get the same memory. */
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
