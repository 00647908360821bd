/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Declarations that the parts of kinst's module share.
 */
#ifndef KINST_PARTS_H
#define KINST_PARTS_H

#undef pr_fmt
#define pr_fmt(fmt) "kinst: " fmt

#include <linux/ftrace.h>
#include <linux/hrtimer.h>
#include <linux/jump_label.h>
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/static_call_types.h>
#include <linux/stop_machine.h>
#include <linux/version.h>
#include <linux/workqueue.h>
#include <asm/insn.h>

#include "kinst.h"

#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 13, 0)
#define NEW_DECODER
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
#define NEW_TIMERS
#endif
#define INT3 0xcc
#define JUMP 0xe9
#define CALL 0xe8
#define TOGETHER 128 /* sites between two calls of cond_resched() */
#define MOST_SECONDS 86400

struct site {
	unsigned long address;
	u8 size;
	bool stuck; /* another tracer's bytes are there */
	bool near; /* near code that the kernel rewrites */
	bool early; /* a breakpoint there would not reach on_die() */
	bool several; /* its jump covers several instructions */
	bool begun; /* its breakpoint may be written, and the rest may not */
	bool ours; /* something of it was written */
	u8 old[KINST_JUMP];
	u8 new[KINST_JUMP];
};

typedef int (*handler_t)(struct pt_regs *regs);

extern struct mutex lock; /* protects all that the owner can change */

/* kernel.c */

/*
 * Functions and locks of the kernel that modules cannot link to.
 */
extern struct kernel {
	unsigned long (*lookup)(const char *name);
	void *(*text_poke)(void *addr, const void *opcode, size_t len);
	/* The same, while all other CPUs are stopped. */
	void *(*poke_stopped)(void *addr, const void *opcode, size_t len);
	void (*queue)(void *addr, const void *opcode, size_t len,
		      const void *emulate);
	void (*finish)(void);
	void (*sync)(void); /* serializes every CPU */
	void (*tell_perf)(const void *addr, const void *old_bytes,
			  size_t old_len, const void *new_bytes,
			  size_t new_len);
	struct mutex *text_mutex; /* protects text */
	struct mutex *ftrace_lock; /* protects ftrace's records */
	void *(*allocate)(unsigned long size, unsigned long align,
			  unsigned long start, unsigned long end, gfp_t gfp,
			  pgprot_t prot, unsigned long flags, int node,
			  const void *caller);
	void __percpu *(*reserve)(size_t size, size_t align, bool reserved,
				  gfp_t gfp);
	int (*everywhere)(work_func_t call);
	int (*stop)(cpu_stop_fn_t call, void *data, const struct cpumask *cpus);
	const u8 *int3; /* the first C function that a breakpoint reaches */
	int (*own_int3)(struct pt_regs *regs); /* which it calls first */
	int (*set_ro)(unsigned long addr, int pages);
	int (*set_rw)(unsigned long addr, int pages);
	int (*set_x)(unsigned long addr, int pages);
	int (*set_nx)(unsigned long addr, int pages);
	bool (*forbidden)(unsigned long addr);
	int (*jump_labels)(void *start, void *end);
	int (*static_calls)(void *start, void *end);
	const void *(*fixup)(unsigned long addr);
	struct jump_entry *first_jump, *end_jump;
	struct static_call_site *first_call, *end_call;
	void (*jump_label_lock)(void);
	void (*jump_label_unlock)(void);
	int (*is_text)(unsigned long addr);
	struct module *(*module_of)(unsigned long addr);
	int (*size_of)(unsigned long addr, unsigned long *size,
		       unsigned long *offset);
#ifdef NEW_DECODER
	int (*decode)(struct insn *insn, const void *code, int size,
		      enum insn_mode mode);
#else
	void (*begin)(struct insn *insn, const void *code, int size, int x64);
	void (*decode)(struct insn *insn);
#endif
	unsigned long (*recover)(u8 *buffer, unsigned long addr);
	struct atomic_notifier_head *die_chain;
	void **ftrace_ops, *ftrace_end;
	struct ftrace_rec_iter *(*first_record)(void);
	struct ftrace_rec_iter *(*next_record)(struct ftrace_rec_iter *iter);
	struct dyn_ftrace *(*record)(struct ftrace_rec_iter *iter);
} kernel;

/* The first of n sites that is not below an address; n if there is none. */
static __always_inline unsigned long first_site(const struct site *all,
						unsigned long n,
						unsigned long address)
{
	unsigned long low = 0, mid;

	while (low < n) {
		mid = (low + n) / 2;
		if (all[mid].address < address)
			low = mid + 1;
		else
			n = mid;
	}
	return low;
}

int look_up(void);
int decode(struct insn *insn, const u8 *code);

/* breakpoints.c */

extern handler_t handler;

int start_breakpoints(void);
void stop_breakpoints(void);
void watch_breakpoints(struct site *sites, unsigned long n);
void ignore_breakpoints(void);
void ask_first(bool here);
bool is_before_us(unsigned long address);

/* text.c */

void set_up_text(void);
void lock_text(void);
void unlock_text(void);
void pause_text(void);
bool is_there(const struct site *site, const u8 *bytes);
bool is_unplanted(const struct site *site);
void open_sites(struct site *sites, unsigned long n);
void write_sites(struct site *sites, unsigned long n, bool plant);
void write_early(struct site *sites, unsigned long n, bool plant);
void wait_outside(void);

/* ftrace.c */

unsigned long mark(const struct site *sites, unsigned long n);
void unmark(void);
unsigned long marked_sites(void);
bool make_room_for_marks(unsigned long n);
void forget_marks(void);
void end_marks(void);

/* check.c */

unsigned long check_sites(struct site *sites, unsigned long n,
			  unsigned long call, enum kinst_why *why);
void release_modules(void);

/* plant.c */

int plant(struct kinst_plant *ask);
void unplant(void);
unsigned long planted_sites(void);
bool are_stuck(void);
void stop_retrying(void);

/* alive.c */

void await(u64 flag, u32 seconds);
void stop_waiting(void);
void hear(void);
bool is_lifted(void);
bool is_asked(unsigned long from, unsigned long size);
void forget_lifted(void);
void set_up_waiting(void);
void end_waiting(void);

/* timers.c */

void set_up_timer(struct hrtimer *timer,
		  enum hrtimer_restart (*call)(struct hrtimer *),
		  enum hrtimer_mode mode);
int start_timer(const struct kinst_timer *ask);
void stop_timers(void);
int count_missed(struct kinst_missed *ask);
bool are_timers_on(void);
int set_up_timers(void);
void end_timers(void);

/* scratch.c */

bool is_sealed(unsigned long address);
bool is_flag(unsigned long address);
bool is_in_scratch(unsigned long address);
void use_scratch(void);
int make_scratch(struct kinst_scratch *ask);
int seal(const struct kinst_seal *ask);
int empty_scratch(void);
int make_counters(struct kinst_counters *ask);
int gather(const struct kinst_gather *ask);
void tell_scratch(struct kinst_info *info);
int show_scratch(struct vm_area_struct *area);
void leave_scratch(void);
void end_scratch(void);

/* device.c */

bool is_owned(void);

#endif
