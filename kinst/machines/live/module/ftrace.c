// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The kernel's own tracer, which is kept off the call sites that are planted on.
 */
#include <linux/bsearch.h>
#include <linux/kprobes.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/sort.h>

#include "parts.h"

static unsigned long *marks; /* call sites whose ftrace records are marked */
static unsigned long marked;

unsigned long marked_sites(void)
{
	return marked;
}

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 0, 0)
/*
 * BPF comes to a function's entry by register_ftrace_direct() there, which does
 * not look at marks: it would succeed without an effect, and the kernel would
 * warn when BPF goes.  It is told that a marked site is in use, as it is where
 * it finds its own.  A call that is past this when a site is marked is too late
 * to be told.
 */
static int refuse_direct(struct kprobe *probe, struct pt_regs *regs)
{
	unsigned long i, n = READ_ONCE(marked);
	const unsigned long *all = READ_ONCE(marks);

	/* It names the function, and a mark may be behind its first ENDBR. */
	for (i = 0; i < n; i++)
		if (all[i] - regs->di < MCOUNT_INSN_SIZE)
			break;
	if (i == n)
		return 0;
	regs->ax = -EBUSY;
	regs->ip = *(unsigned long *)regs->sp;
	regs->sp += sizeof(regs->ip);
	return 1;
}

/* Who goes elsewhere must not be led there by a jump: this keeps jumps away. */
static void no_jump(struct kprobe *probe, struct pt_regs *regs,
		    unsigned long flags)
{
}

static struct kprobe direct = {
	.symbol_name = "register_ftrace_direct",
	.pre_handler = refuse_direct,
	.post_handler = no_jump,
};
static bool refusing;

/* Returns whether those who come are refused, or there is nobody to come. */
static bool refuse_others(void)
{
	int error;

	if (refusing)
		return true;
	/* As the last one was left, it would be taken for one that is off. */
	direct.addr = NULL;
	direct.flags = 0;
	error = register_kprobe(&direct);
	refusing = !error;
	return refusing || error == -ENOENT;
}

static void let_others(void)
{
	if (refusing)
		unregister_kprobe(&direct);
	refusing = false;
}
#else
static bool refuse_others(void)
{
	return true;
}

static void let_others(void)
{
}
#endif

/*
 * Have room for the marks of n sites, and others refused at those.  Returns
 * whether there is.
 */
bool make_room_for_marks(unsigned long n)
{
	unsigned long *all = kvmalloc_array(marked + n, sizeof(*all),
					    GFP_KERNEL);
	unsigned long *old = marks;

	if (!all)
		return false;
	if (marked)
		memcpy(all, old, marked * sizeof(*all));
	smp_store_release(&marks, all);
	if (old) {
		synchronize_rcu();
		kvfree(old);
	}
	if (refuse_others())
		return true;
	forget_marks();
	return false;
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
				marks[marked] = record->ip;
				smp_store_release(&marked, marked + 1);
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
	WRITE_ONCE(marked, 0);
}

/* There is no mark any more, and no site that needs one. */
void forget_marks(void)
{
	if (marked)
		return;
	let_others();
	kvfree(marks);
	marks = NULL;
}

void end_marks(void)
{
	if (marked)
		pr_warn("ftrace does not know %lu functions until the next boot\n",
			marked);
	let_others();
	kvfree(marks);
}
