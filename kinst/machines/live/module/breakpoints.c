// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Breakpoints on their way from the processor to kinst's code: straight from
 * exc_int3() while there are traps, else by the die notifier.
 */
#include <linux/hardirq.h>
#include <linux/kdebug.h>
#include <linux/kprobes.h>
#include <linux/rcupdate.h>
#include <linux/uaccess.h>

#include "parts.h"

#define FIRST_CALL 32 /* bytes of exc_int3() in which it asks */

/*
 * Functions that a breakpoint runs through before it reaches on_die() and that
 * the kernel itself allows probes in: a breakpoint there would meet itself.
 */
static const char *const before_us[] = {
	"__rcu_read_lock",
	"__rcu_read_unlock",
	"rcu_read_unlock_special",
	"kgdb_ll_trap",
};

handler_t handler;
static struct site *changing; /* among which some are begun, by address */
static unsigned long changed; /* how many */
static unsigned long asks; /* address of the call of kernel.own_int3, or 0 */
static bool asked_first; /* that call leads to on_int3() */
static unsigned long way[ARRAY_SIZE(before_us)]; /* their addresses */

/*
 * Send who has met the breakpoint of a jump that is being written to where it
 * leads.  They are not forgotten before every CPU is out of here.
 */
static noinstr bool send_on(struct pt_regs *regs)
{
	/* After it: how many there are, and they themselves. */
	struct site *all = smp_load_acquire(&changing);
	unsigned long n = READ_ONCE(changed), at;
	unsigned long address = regs->ip - 1;
	s32 by;

	if (!all)
		return false;
	at = first_site(all, n, address);
	if (at == n || all[at].address != address ||
	    all[at].size != KINST_JUMP || !READ_ONCE(all[at].begun))
		return false;
	__builtin_memcpy(&by, all[at].new + 1, sizeof(by));
	regs->ip = address + KINST_JUMP + by;
	return true;
}

/*
 * A breakpoint of whoever's, before anything else is done about it: what was
 * interrupted goes on at the probe, when this has returned.
 */
static noinstr int on_int3(struct pt_regs *regs)
{
	handler_t call = READ_ONCE(handler);

	if (!user_mode(regs) && (send_on(regs) || (call && call(regs))))
		return 1;
	return kernel.own_int3(regs);
}

static int on_die(struct notifier_block *self, unsigned long event, void *data)
{
	struct die_args *args = data;
	handler_t call = READ_ONCE(handler);
	int ours;

	if (event != DIE_INT3 || user_mode(args->regs))
		return NOTIFY_DONE;
	if (send_on(args->regs))
		return NOTIFY_STOP;
	if (!call)
		return NOTIFY_DONE;
	/*
	 * The way here counts as an NMI's.  The probe is where the breakpoint
	 * is, and sees what it would see there.
	 */
	__preempt_count_sub(NMI_OFFSET + HARDIRQ_OFFSET);
	ours = call(args->regs);
	__preempt_count_add(NMI_OFFSET + HARDIRQ_OFFSET);
	return ours ? NOTIFY_STOP : NOTIFY_DONE;
}
NOKPROBE_SYMBOL(on_die);

static struct notifier_block die_block = {
	.notifier_call = on_die,
	.priority = INT_MAX,
};

static int lead_call(void *to)
{
	s32 by = (unsigned long)to - (asks + KINST_JUMP);

	kernel.poke_stopped((void *)(asks + 1), &by, sizeof(by));
	return 0;
}

/*
 * Have exc_int3() ask here first, or not any more.  No breakpoint can be put
 * there to write it, so every CPU waits elsewhere for as long as that takes;
 * there are no sites then.  Locked.
 */
void ask_first(bool here)
{
	if (!asks || asked_first == here)
		return;
	kernel.stop(lead_call, here ? on_int3 : kernel.own_int3, NULL);
	/* And none is in on_int3() that has come by the old way. */
	kernel.sync();
	asked_first = here;
}

/* From now on, who meets the breakpoint of one that is begun is sent on. */
void watch_breakpoints(struct site *sites, unsigned long n)
{
	WRITE_ONCE(changed, n);
	/* Before it: for send_on(). */
	smp_store_release(&changing, sites);
}

/* No breakpoint is left: nobody looks through the sites any more. */
void ignore_breakpoints(void)
{
	WRITE_ONCE(changing, NULL);
	kernel.sync();
}

static bool same_function(unsigned long one, unsigned long other)
{
	unsigned long size, offset;

	return other && kernel.size_of(other, &size, &offset) &&
	       one - (other - offset) < size;
}

/* Whether a breakpoint comes by this address before it comes here. */
bool is_before_us(unsigned long address)
{
	struct notifier_block *block;
	bool found = false;
	int i;

	for (i = 0; i < ARRAY_SIZE(before_us) && !found; i++)
		found = same_function(address, way[i]);
	rcu_read_lock();
	block = rcu_dereference(kernel.die_chain->head);
	while (block && block != &die_block && !found) {
		found = same_function(address,
				      (unsigned long)block->notifier_call);
		block = rcu_dereference(block->next);
	}
	rcu_read_unlock();
	return found;
}

/* Find the call by which exc_int3() asks kernel.own_int3. */
static void find_call(void)
{
	u8 code[FIRST_CALL + MAX_INSN_SIZE];
	struct insn insn;
	int at, length;
	s32 by;

	if (!kernel.int3 || !kernel.own_int3 || !kernel.stop ||
	    !kernel.poke_stopped ||
	    copy_from_kernel_nofault(code, kernel.int3, sizeof(code)))
		return;
	for (at = 0; at < FIRST_CALL; at += length) {
		length = decode(&insn, code + at);
		if (length <= 0)
			return;
		memcpy(&by, code + at + 1, sizeof(by));
		if (code[at] == CALL &&
		    kernel.int3 + at + length + by == (u8 *)kernel.own_int3) {
			asks = (unsigned long)kernel.int3 + at;
			return;
		}
	}
}

int start_breakpoints(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(before_us); i++)
		way[i] = kernel.lookup(before_us[i]);
	find_call();
	return register_die_notifier(&die_block);
}

void stop_breakpoints(void)
{
	unregister_die_notifier(&die_block);
}
