// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Keeping ftrace away from planted call sites, by marks in its records.
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
 * BPF attaches to a function's entry with register_ftrace_direct(), which
 * before Linux 6.0 ignores marks: it would succeed without an effect, and the
 * kernel would warn when BPF detaches.  So it returns -EBUSY for a marked call
 * site, as for one that has a direct call already.  A call that has passed
 * this check when a site is marked is not refused.
 */
static int refuse_direct(struct kprobe *probe, struct pt_regs *regs)
{
	unsigned long i, n = READ_ONCE(marked);
	const unsigned long *all = READ_ONCE(marks);

	/* Its argument is the function; the mark may be after an ENDBR. */
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

/*
 * refuse_direct() changes regs->ip, which a kprobe that is optimized to a jump
 * cannot do.  The kernel does not optimize a kprobe with a post handler.
 */
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

/* Returns whether direct calls are refused, or this kernel has none. */
static bool refuse_direct_calls(void)
{
	int error;

	if (refusing)
		return true;
	/* Otherwise register_kprobe() takes it for a disabled one. */
	direct.addr = NULL;
	direct.flags = 0;
	error = register_kprobe(&direct);
	refusing = !error;
	return refusing || error == -ENOENT;
}

static void allow_direct_calls(void)
{
	if (refusing)
		unregister_kprobe(&direct);
	refusing = false;
}
#else
static bool refuse_direct_calls(void)
{
	return true;
}

static void allow_direct_calls(void)
{
}
#endif

/*
 * Allocate room for the marks of n sites, and refuse direct calls at marked
 * sites.  Returns whether both succeeded.
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
	if (refuse_direct_calls())
		return true;
	forget_marks();
	return false;
}

static bool reaches(const struct site *site, unsigned long address)
{
	return site->address + site->size > address;
}

/*
 * Mark the records of call sites under n sites, so that ftrace ignores them.
 * If ftrace uses one, mark none and return the index of its site; otherwise
 * return n.  Room was allocated before.  Locked.
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
 * Remove the marks, if ftrace has no user.  A user that came meanwhile was not
 * counted in marked records, and ftrace would warn when it leaves.  Locked.
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

/* Free the marks, if none is left. */
void forget_marks(void)
{
	if (marked)
		return;
	allow_direct_calls();
	kvfree(marks);
	marks = NULL;
}

void end_marks(void)
{
	if (marked)
		pr_warn("ftrace does not know %lu functions until the next boot\n",
			marked);
	allow_direct_calls();
	kvfree(marks);
}
