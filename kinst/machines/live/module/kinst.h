/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What kinst asks of its module: ioctl(2)s of /dev/kinst, and its mmap(2).
 *
 * kinst/machines/live/device.py has the same numbers; KINST_VERSION changes
 * whenever anything here does.
 */
#ifndef KINST_H
#define KINST_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define KINST_VERSION 6
#define KINST_JUMP 5 /* bytes of a jump */

/* Of the module and of the kernel that it is in. */
struct kinst_info {
	__u32 version;
	__u32 cpus;
	__u64 text; /* address of _text */
	__u64 scratch; /* address of the scratch memory, or 0 */
	__u64 scratch_size;
	__u64 planted; /* sites */
	__u64 stuck; /* sites of which somebody else holds the bytes */
};

/* Kernel memory, copied to buffer; EFAULT where some of it is not mapped. */
struct kinst_read {
	__u64 address;
	__u64 size;
	__u64 buffer;
};

/*
 * Memory in reach of all kernel text, zeros: in is its size, out its address.
 * It is mapped by mmap() at offset 0, as often as wanted.
 */
struct kinst_scratch {
	__u64 size;
	__u64 address;
};

/* Pages of scratch become code: the kernel can run them and not write them. */
struct kinst_seal {
	__u64 offset;
	__u64 size;
};

/*
 * One site: what is there, and a jump into sealed scratch or a breakpoint.
 * several: the jump lies over more than one instruction; nothing leads to any
 * of them but the one before it, or the jump.
 */
struct kinst_site {
	__u64 address;
	__u8 size; /* KINST_JUMP, or 1 for a breakpoint */
	__u8 old[KINST_JUMP];
	__u8 new[KINST_JUMP];
	__u8 several;
	__u8 zero[4];
};

enum kinst_why {
	KINST_FINE,
	KINST_MALFORMED, /* not a jump into sealed scratch, not a breakpoint */
	KINST_NO_TEXT, /* not kernel text, or of a module that comes or goes */
	KINST_CHANGED, /* other bytes are there than old */
	KINST_RESERVED, /* the kernel rewrites it, or forbids to probe it */
	KINST_BOUNDARY, /* no instruction of that size starts there */
	KINST_IN_USE, /* ftrace uses this function's call site */
	KINST_TWICE, /* two sites overlap */
};

/*
 * Plant all of count sites, which are in the order of their addresses, or none:
 * then failed is the first that was refused, and why is an enum kinst_why.
 * exits: jumps out of sealed scratch, in order too, which are written there
 * once the sites have been restored, so that no thread goes on in code of
 * which one part leads to another.  handler: address in sealed scratch of
 * int (*)(struct pt_regs *), which says whether a breakpoint was a site's.
 * seconds: without an ioctl of the owner's for so long, all is taken out.
 * active: address in scratch, not sealed, of a __u64 that becomes 0 when that
 * time is over, in an interrupt: probes that leave the kernel no time for
 * anything else return at once then.  0 for none.
 */
struct kinst_plant {
	__u64 count;
	__u64 sites;
	__u64 exiting; /* how many */
	__u64 exits;
	__u64 handler;
	__u64 active;
	__u64 failed;
	__u32 why;
	__u32 seconds;
};

/*
 * On every CPU that is there or comes, call code in sealed scratch each period
 * (ns): void (*)(struct pt_regs *), with interrupts off, and with the registers
 * of what the CPU was at.  Timers end with KINST_UNPLANT.  active, seconds: as
 * above.
 */
struct kinst_timer {
	__u64 period;
	__u64 code;
	__u64 active;
	__u32 seconds;
	__u32 zero;
};

/*
 * In: the number of a timer, from 0, in the order in which KINST_TIMER started
 * them.  Out: in how many periods, on all CPUs, its code was not called,
 * because a CPU had no time for it.  The counts stay after KINST_UNPLANT.
 */
struct kinst_missed {
	__u64 timer;
	__u64 missed;
};

/* Out: how many sites could not be restored; they are tried again. */
struct kinst_unplant {
	__u64 stuck;
};

/* The owner is alive.  Out: whether all was taken out because it was not. */
struct kinst_beat {
	__u64 lifted;
};

/*
 * Memory of each CPU, zeros, for code in scratch to count in: at displacement,
 * a signed number of 32 bits, from the CPU's per-CPU base.  size: in, how much
 * is wanted; out, how much there is, of the little that the kernel keeps in
 * such reach for the variables of modules.  Once for each owner.
 */
struct kinst_counters {
	__u64 size;
	__u64 displacement;
};

/*
 * Copy size bytes from the start of each CPU's counters to scratch, not sealed:
 * those of CPU n to offset + n * size.
 */
struct kinst_gather {
	__u64 offset;
	__u64 size;
};

/*
 * KINST_EMPTY: wait until no thread is in scratch any more; then none of it is
 * sealed, and counters are zero.  Not while something is planted.
 */
#define KINST_INFO _IOR('k', 0xf0, struct kinst_info)
#define KINST_READ _IOW('k', 0xf1, struct kinst_read)
#define KINST_SCRATCH _IOWR('k', 0xf2, struct kinst_scratch)
#define KINST_SEAL _IOW('k', 0xf3, struct kinst_seal)
#define KINST_PLANT _IOWR('k', 0xf4, struct kinst_plant)
#define KINST_UNPLANT _IOR('k', 0xf5, struct kinst_unplant)
#define KINST_BEAT _IOR('k', 0xf6, struct kinst_beat)
#define KINST_TIMER _IOW('k', 0xf7, struct kinst_timer)
#define KINST_COUNTERS _IOWR('k', 0xf8, struct kinst_counters)
#define KINST_GATHER _IOW('k', 0xf9, struct kinst_gather)
#define KINST_EMPTY _IO('k', 0xfa)
#define KINST_MISSED _IOWR('k', 0xfb, struct kinst_missed)

#endif
