// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The path of a breakpoint to kinst's code: directly from exc_int3() while
 * sites are planted with breakpoints, otherwise by the die notifier.
 */
#include <linux/hardirq.h>
#include <linux/kdebug.h>
#include <linux/kprobes.h>
#include <linux/rcupdate.h>
#include <linux/uaccess.h>

#include "parts.h"

#define FIRST_CALL 32 /* bytes of exc_int3() that are searched for the call */

/*
 * Functions that a breakpoint executes before it reaches on_die(), and in which
 * the kernel itself allows probes.  A breakpoint there would recurse.
 */
static const char *const before_us[] = {
	"__rcu_read_lock",
	"__rcu_read_unlock",
	"rcu_read_unlock_special",
	"kgdb_ll_trap",
};

handler_t handler;
static struct site *changing; /* sites that are being written, by address */
static unsigned long changed; /* how many */
static unsigned long asks; /* address of the call of kernel.own_int3, or 0 */
static bool asked_first; /* that call leads to on_int3() now */
static unsigned long before[ARRAY_SIZE(before_us)]; /* their addresses */

/*
 * Lead a CPU that has met the breakpoint of a jump that is being written to the
 * jump's target.  The sites stay until every CPU has left this function.
 */
static noinstr bool send_on(struct pt_regs *regs)
{
	/* Ordered before the number of sites and the sites themselves. */
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
 * Handle any breakpoint, before the kernel does.  When this has returned 1, the
 * interrupted code continues at the address that the handler has set.
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
	 * The kernel counts this as an NMI.  The probe must see the counts
	 * of the interrupted code.
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
 * Let the call in exc_int3() lead to on_int3(), or to the kernel's own function
 * again.  This code cannot be changed with a breakpoint, so all other CPUs are
 * stopped meanwhile.  No sites are planted.  Locked.
 */
void ask_first(bool here)
{
	if (!asks || asked_first == here)
		return;
	kernel.stop(lead_call, here ? on_int3 : kernel.own_int3, NULL);
	/* No CPU is left in the function that the call led to before. */
	kernel.sync();
	asked_first = here;
}

/* From now on, send_on() handles breakpoints of sites that are begun. */
void watch_breakpoints(struct site *sites, unsigned long n)
{
	WRITE_ONCE(changed, n);
	/* Ordered after the number of sites, for send_on(). */
	smp_store_release(&changing, sites);
}

/* No breakpoint is left; wait until no CPU is in send_on(). */
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

/* Whether a breakpoint executes this function before it reaches on_die(). */
bool is_before_us(unsigned long address)
{
	struct notifier_block *block;
	bool found = false;
	int i;

	for (i = 0; i < ARRAY_SIZE(before_us) && !found; i++)
		found = same_function(address, before[i]);
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

/* Find the call of kernel.own_int3 in exc_int3(). */
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
		before[i] = kernel.lookup(before_us[i]);
	find_call();
	return register_die_notifier(&die_block);
}

void stop_breakpoints(void)
{
	unregister_die_notifier(&die_block);
}
