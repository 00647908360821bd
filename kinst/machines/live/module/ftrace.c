// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The kernel's own tracer, which is kept off the call sites that are planted on.
 */
#include <linux/bsearch.h>
#include <linux/slab.h>
#include <linux/sort.h>

#include "parts.h"

static unsigned long *marks; /* call sites whose ftrace records are marked */
static unsigned long marked;

unsigned long marked_sites(void)
{
	return marked;
}

/* Have room for the marks of n sites.  Returns whether there is. */
bool make_room_for_marks(unsigned long n)
{
	unsigned long *all = kvmalloc_array(marked + n, sizeof(*all),
					    GFP_KERNEL);

	if (!all)
		return false;
	if (marked)
		memcpy(all, marks, marked * sizeof(*all));
	kvfree(marks);
	marks = all;
	return true;
}

static bool reaches(const struct site *site, unsigned long address)
{
	return site->address + site->size > address;
}

/*
 * Keep ftrace away from the call sites under n sites: a record that is marked
 * as not ready is none of its concern.  Returns the index of the first that
 * ftrace uses, and marks none then; n if all is well.  There is room.  Locked.
 */
unsigned long mark(const struct site *sites, unsigned long n)
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
			found = first_site(sites, n, record->ip);
			if (found && reaches(sites + found - 1, record->ip))
				found--;
			if (found == n ||
			    sites[found].address >= record->ip + MCOUNT_INSN_SIZE ||
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
void unmark(void)
{
	struct ftrace_rec_iter *at;
	struct dyn_ftrace *record;

	if (!marked || *kernel.ftrace_ops != kernel.ftrace_end)
		return;
	sort(marks, marked, sizeof(*marks), compare, NULL);
	for (at = kernel.first_record(); at; at = kernel.next_record(at)) {
		cond_resched();
		record = kernel.record(at);
		if (bsearch(&record->ip, marks, marked, sizeof(*marks),
			    compare))
			record->flags &= ~FTRACE_FL_DISABLED;
	}
	marked = 0;
	kvfree(marks);
	marks = NULL;
}

void end_marks(void)
{
	if (marked)
		pr_warn("ftrace does not know %lu functions until the next boot\n",
			marked);
	kvfree(marks);
}
