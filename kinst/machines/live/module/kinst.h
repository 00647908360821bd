/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Requests of kinst to its module: ioctl(2) and mmap(2) of /dev/kinst.
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

/* Facts about the module and its kernel. */
struct kinst_info {
	__u32 version;
	__u32 cpus;
	__u64 text; /* address of _text */
	__u64 scratch; /* address of the scratch memory, or 0 */
	__u64 scratch_size;
	__u64 planted; /* sites */
	__u64 stuck; /* sites with the bytes of another tracer */
};

/* Copies kernel memory to buffer; EFAULT if any of it is not mapped. */
struct kinst_read {
	__u64 address;
	__u64 size;
	__u64 buffer;
};

/*
 * Allocates zeroed memory within branch reach of all kernel text.  In: size.
 * Out: address.  mmap() at offset 0 maps it, any number of times.
 */
struct kinst_scratch {
	__u64 size;
	__u64 address;
};

/* Makes pages of scratch executable and read-only. */
struct kinst_seal {
	__u64 offset;
	__u64 size;
};

/*
 * One site: its bytes, and a jump into sealed scratch or a breakpoint.
 * several: the jump covers more than one instruction; control reaches those
 * after the first only from the instruction before.
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
 * Plants all of count sites, sorted by address, or none; then failed is the
 * first site that was refused, and why is an enum kinst_why.
 * exits: jumps out of sealed scratch, sorted by address, that are written there
 * after the sites have been restored, so that threads leave chains.
 * handler: address in sealed scratch of int (*)(struct pt_regs *), which
 * returns whether a breakpoint was a site.
 * seconds: without an ioctl for so many seconds, all sites are restored.
 * active: address of a __u64 in scratch that is not sealed, or 0.  An interrupt
 * sets the word to 0 when that time is over, so that probes which leave the
 * kernel no time return at once.
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
 * Calls code in sealed scratch, void (*)(struct pt_regs *), on every CPU that
 * is online or comes online, each period (ns), with interrupts off and with
 * the registers of the interrupted code.  KINST_UNPLANT ends timers.  active,
 * seconds: as above.
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

/* A heartbeat.  Out: whether all sites were restored for lack of one. */
struct kinst_beat {
	__u64 lifted;
};

/*
 * Allocates zeroed per-CPU memory for counters: at displacement, a signed
 * number of 32 bits, from the per-CPU base.  size: in, bytes wanted; out,
 * bytes allocated, of the little that the kernel has there for variables of
 * modules. Once for each owner.
 */
struct kinst_counters {
	__u64 size;
	__u64 displacement;
};

/*
 * Copies size bytes of each CPU's counters to scratch that is not sealed: those
 * of CPU n to offset + n * size.
 */
struct kinst_gather {
	__u64 offset;
	__u64 size;
};

/*
 * KINST_EMPTY: waits until no thread executes in scratch; then no page is
 * sealed, and counters are zero.  Not while sites are planted.
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
