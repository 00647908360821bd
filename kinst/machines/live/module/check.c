// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Checks whether sites may be planted, as far as the kernel can tell.
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/uaccess.h>

#include "parts.h"

#define MOST_MODULES 256

static struct module *held[MOST_MODULES]; /* modules with sites */
static unsigned int holding;

/*
 * State of the walk over the instructions of a function.  Whether the function
 * may be probed is looked up once, since that is slow for names with a suffix.
 */
struct walk {
	unsigned long start, at;
	bool forbidden, early;
};

/*
 * Reads the instruction at an address: its bytes to code, and those that it has
 * without kprobes to plain.  Returns its length or a negative enum kinst_why.
 */
static int plain_instruction(unsigned long at, u8 *code, u8 *plain)
{
	unsigned long from = at;
	struct insn insn;
	int length;

	if (copy_from_kernel_nofault(code, (void *)at, MAX_INSN_SIZE))
		return -KINST_NO_TEXT;
	if (kernel.recover) {
		/* It reads kprobes, which are not freed meanwhile. */
		preempt_disable();
		from = kernel.recover(plain, at);
		preempt_enable();
	}
	if (!from)
		return -KINST_RESERVED;
	if (from == at)
		memcpy(plain, code, MAX_INSN_SIZE);
	length = decode(&insn, plain);
	return length > 0 ? length : -KINST_BOUNDARY;
}

/*
 * Checks the instructions under a jump after the first, whose length is given:
 * a kprobe or a fault of one would lead control into the jump.
 */
static enum kinst_why check_others(const struct site *site, int length)
{
	u8 code[MAX_INSN_SIZE + 1] = {}, plain[MAX_INSN_SIZE + 1] = {};
	unsigned long size, offset, at = site->address + length;

	if (site->early)
		return KINST_RESERVED;
	if (!kernel.size_of(site->address, &size, &offset) ||
	    size - offset < site->size)
		return KINST_BOUNDARY;
	for (; at < site->address + site->size; at += length) {
		length = plain_instruction(at, code, plain);
		if (length <= 0)
			return -length;
		if (memcmp(plain, code, length) ||
		    (kernel.fixup && kernel.fixup(at)))
			return KINST_RESERVED;
	}
	return KINST_FINE;
}

/* Checks that instructions of the right sizes start at a site. */
static enum kinst_why check_instruction(struct walk *walk,
					const struct site *site)
{
	u8 code[MAX_INSN_SIZE + 1] = {}, plain[MAX_INSN_SIZE + 1] = {};
	int length;

	for (;;) {
		length = plain_instruction(walk->at, code, plain);
		if (length <= 0)
			return -length;
		if (walk->at == site->address)
			break;
		walk->at += length;
		if (walk->at > site->address)
			return KINST_BOUNDARY;
	}
	if (memcmp(plain, code, length))
		return KINST_RESERVED; /* a kprobe is there */
	if (site->size <= length)
		return site->several ? KINST_BOUNDARY : KINST_FINE;
	return site->several ? check_others(site, length) : KINST_BOUNDARY;
}

static enum kinst_why hold_module(unsigned long address)
{
	struct module *module;
	unsigned int i;

	/* Since Linux 6.15 under RCU's read lock, before with preemption off. */
	rcu_read_lock();
	preempt_disable();
	module = kernel.module_of(address);
	for (i = 0; module && i < holding; i++)
		if (held[i] == module)
			goto fine;
	if (!module || module == THIS_MODULE || holding == MOST_MODULES ||
	    module->state != MODULE_STATE_LIVE || !try_module_get(module)) {
		preempt_enable();
		rcu_read_unlock();
		return KINST_NO_TEXT;
	}
	held[holding++] = module;
fine:
	preempt_enable();
	rcu_read_unlock();
	return KINST_FINE;
}

static enum kinst_why hold_text(unsigned long first, unsigned long last)
{
	enum kinst_why why;

	if (kernel.is_text(first) && kernel.is_text(last))
		return KINST_FINE;
	why = hold_module(first);
	return why == KINST_FINE ? hold_module(last) : why;
}

void release_modules(void)
{
	while (holding)
		module_put(held[--holding]);
}

/* Note the sites that may overlap code that is rewritten at an address. */
static void note_near(struct site *sites, unsigned long n,
		      unsigned long rewritten)
{
	unsigned long low = first_site(sites, n, rewritten - KINST_JUMP + 1);

	for (; low < n && sites[low].address < rewritten + KINST_JUMP; low++)
		sites[low].near = true;
}

static void note_near_jumps(struct site *sites, unsigned long n,
			    struct jump_entry *from,
			    struct jump_entry *end)
{
	unsigned long i = 0;

	for (; from < end; from++, i++) {
		note_near(sites, n, jump_entry_code(from));
		if (!(i % TOGETHER))
			cond_resched();
	}
}

static void note_near_calls(struct site *sites, unsigned long n,
			    struct static_call_site *from,
			    struct static_call_site *end)
{
	unsigned long i = 0;

	for (; from < end; from++, i++) {
		note_near(sites, n, (unsigned long)&from->addr + from->addr);
		if (!(i % TOGETHER))
			cond_resched();
	}
}

/*
 * jump_label_text_reserved() and static_call_text_reserved() search whole
 * tables, so they are called only for sites that are near an entry.  Modules
 * with sites are held.  Jump labels are locked.
 */
static void note_all_near(struct site *sites, unsigned long n)
{
	unsigned long i;

	for (i = 0; i < n; i++) {
		sites[i].near = (kernel.jump_labels && !kernel.first_jump) ||
				(kernel.static_calls && !kernel.first_call);
		if (!(i % TOGETHER))
			cond_resched();
	}
	if (kernel.first_jump && kernel.end_jump)
		note_near_jumps(sites, n, kernel.first_jump, kernel.end_jump);
	if (kernel.first_call && kernel.end_call)
		note_near_calls(sites, n, kernel.first_call, kernel.end_call);
	for (i = 0; i < holding; i++) {
#ifdef CONFIG_JUMP_LABEL
		note_near_jumps(sites, n, held[i]->jump_entries,
				held[i]->jump_entries +
					held[i]->num_jump_entries);
#endif
#ifdef CONFIG_HAVE_STATIC_CALL_INLINE
		note_near_calls(sites, n, held[i]->static_call_sites,
				held[i]->static_call_sites +
					held[i]->num_static_call_sites);
#endif
	}
}

static enum kinst_why check_site(struct site *site, struct walk *walk,
				 unsigned long call)
{
	unsigned long first = site->address, last = first + site->size - 1;
	unsigned long size, offset;
	s32 to;

	if (site->size == 1) {
		if (site->new[0] != INT3 || !call)
			return KINST_MALFORMED;
	} else {
		memcpy(&to, site->new + 1, sizeof(to));
		if (site->size != KINST_JUMP || site->new[0] != JUMP ||
		    !is_sealed(first + KINST_JUMP + to))
			return KINST_MALFORMED;
	}
	if (!is_there(site, site->old))
		return KINST_CHANGED;
	if (!kernel.size_of(first, &size, &offset))
		return KINST_NO_TEXT;
	if (first - offset != walk->start || walk->at > first) {
		walk->start = first - offset;
		walk->at = walk->start;
		walk->forbidden = kernel.forbidden(first);
		walk->early = is_before_us(first);
	}
	site->early = walk->early;
	if (site->several && site->size == 1)
		return KINST_MALFORMED;
	if (walk->forbidden || (site->size == 1 && site->early))
		return KINST_RESERVED;
	if (site->near && kernel.jump_labels &&
	    kernel.jump_labels((void *)first, (void *)last))
		return KINST_RESERVED;
	if (site->near && kernel.static_calls &&
	    kernel.static_calls((void *)first, (void *)last))
		return KINST_RESERVED;
	return check_instruction(walk, site);
}

/* Returns the first site that is refused, with the reason in why; or n. */
unsigned long check_sites(struct site *sites, unsigned long n,
			  unsigned long call, enum kinst_why *why)
{
	struct walk walk = {};
	unsigned long i, last;

	for (i = 0; i < n; i++) {
		last = sites[i].address + sites[i].size - 1;
		*why = last < sites[i].address ?
			       KINST_NO_TEXT :
			       hold_text(sites[i].address, last);
		if (*why != KINST_FINE)
			return i;
		if (!(i % TOGETHER))
			cond_resched();
	}
	note_all_near(sites, n);
	for (i = 0; i < n; i++) {
		*why = check_site(sites + i, &walk, call);
		if (*why == KINST_FINE && i &&
		    sites[i - 1].address + sites[i - 1].size >
			    sites[i].address)
			*why = KINST_TWICE;
		if (*why != KINST_FINE)
			break;
		if (!(i % TOGETHER))
			cond_resched();
	}
	return i;
}
