/* A kernel for tests: a few functions to trace, breakpoints, page faults, an exception table,
 * a current task, per-CPU data.  It is compiled for each ISA and run in an emulator (fake_machine.py);
 * entry_ISA.S has its first instructions after an exception. */

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long u64;

#define NOINLINE __attribute__((noinline, noclone))
#define USED __attribute__((used))
#define CPUS 4
#define EFAULT 14

struct task {
	u64 preempt_count;
	u32 cpu;
	u32 pid;
	u32 tgid;
	u32 uid;
	u32 gid;
	char comm[16];
	struct task *parent;
};

struct file {
	const char *name;
	long size;
	u32 flags;
	struct file *next;
};

/* An entry: this instruction may fault, and control goes there when it does. */
struct fixup {
	u64 instruction;
	u64 target;
};

extern const struct fixup ex_table_start[], ex_table_end[];

USED struct task init_task = {.comm = "init", .pid = 1, .tgid = 1};
USED struct task tasks[CPUS] = {
	{.cpu = 0, .pid = 100, .tgid = 100, .uid = 10, .gid = 20, .comm = "alpha", .parent = &init_task},
	{.cpu = 1, .pid = 201, .tgid = 200, .uid = 11, .gid = 21, .comm = "beta", .parent = &tasks[0]},
	{.cpu = 2, .pid = 300, .tgid = 300, .uid = 12, .gid = 22, .comm = "gamma", .parent = &init_task},
	{.cpu = 3, .pid = 400, .tgid = 400, .uid = 13, .gid = 23, .comm = "delta", .parent = &init_task},
};

/* The part of a CPU's area that this kernel has; the machine gives each CPU one. */
struct per_cpu {
	struct task *current_task;
	u64 cpu;
	u64 calls;
};

USED u64 breakpoints, faults, bad_faults;
USED struct file files[3] = {
	{"/etc/passwd", 1000, 1, &files[1]},
	{"/bin/sh", 2000, 2, &files[2]},
	{"", 3000, 3, 0},
};

/* Exceptions.  regs: what the entry code saved; the program counter is regs[PC]. */

NOINLINE USED const struct fixup *find_fixup(u64 address)
{
	for (const struct fixup *one = ex_table_start; one < ex_table_end; one++)
		if (one->instruction == address)
			return one;
	return 0;
}

NOINLINE USED void handle_break(u64 *regs)
{
	breakpoints++;
	regs[PC] += BREAK_SKIPS;
}

NOINLINE USED int handle_fault(u64 *regs)
{
	const struct fixup *found = find_fixup(regs[PC]);
	faults++;
	if (!found) {
		bad_faults++;
		return -1;
	}
	regs[PC] = found->target;
	return 0;
}

/* One byte from anywhere; 0, or -EFAULT when nothing is mapped there. */
static inline int get_byte(u8 *to, const u8 *from)
{
	long error = 0;
	u8 value = 0;

	__asm__ volatile("1: " LOAD_BYTE "\n"
			 "2:\n"
			 ".pushsection .text.fixup, \"ax\"\n"
			 "3: " SET_ERROR "\n"
			 JUMP_BACK "\n"
			 ".popsection\n"
			 ".pushsection ex_table, \"a\"\n"
			 ".balign 8\n"
			 ".quad 1b, 3b\n"
			 ".popsection\n"
			 : [error] "+r"(error), [value] "+r"(value)
			 : [from] "r"(from)
			 : "memory");
	*to = value;
	return (int)error;
}

NOINLINE USED long read_nofault(u8 *to, const u8 *from, u64 size)
{
	for (u64 i = 0; i < size; i++)
		if (get_byte(to + i, from + i))
			return -EFAULT;
	return 0;
}

/* One byte to anywhere; 0, or -EFAULT when it cannot be written. */
static inline int put_byte(u8 *to, u8 value)
{
	long error = 0;

	__asm__ volatile("1: " STORE_BYTE "\n"
			 "2:\n"
			 ".pushsection .text.fixup, \"ax\"\n"
			 "3: " SET_ERROR "\n"
			 JUMP_BACK "\n"
			 ".popsection\n"
			 ".pushsection ex_table, \"a\"\n"
			 ".balign 8\n"
			 ".quad 1b, 3b\n"
			 ".popsection\n"
			 : [error] "+r"(error)
			 : [to] "r"(to), [value] "r"(value)
			 : "memory");
	return (int)error;
}

NOINLINE USED long write_nofault(u8 *to, const u8 *from, u64 size)
{
	for (u64 i = 0; i < size; i++)
		if (put_byte(to + i, from[i]))
			return -EFAULT;
	return 0;
}

/* What clauses call. */

struct work {
	u64 node[2];
	void (*function)(struct work *);
};

USED struct work *queued;
USED u64 sent_signal, sent_to, last_words;

NOINLINE USED long queue_work(struct work *one)
{
	queued = one;
	return 1;
}

NOINLINE USED long send_signal(u64 signal, struct task *to, u64 more)
{
	sent_signal = signal + more;
	sent_to = to->pid;
	return 0;
}

NOINLINE USED void end_kernel(const u64 *text)
{
	last_words = *text;
}

/* The interrupt in which queued work is done. */
NOINLINE USED long do_work(void)
{
	struct work *one = queued;

	queued = 0;
	if (one)
		one->function(one);
	return one != 0;
}

/* What is traced. */

static inline __attribute__((always_inline)) long mix(long a, long b)
{
	long sum = a * 3 + b;
	if (sum & 1)
		sum ^= 0x55;
	return sum;
}

NOINLINE USED long leaf(long a, long b)
{
	return a + 2 * b;
}

NOINLINE USED long work(long count)
{
	long total = 0;
	for (long i = 0; i < count; i++) {
		long mixed = mix(i, total);
		total += leaf(mixed, i);
	}
	return total;
}

NOINLINE USED long probe_byte(const u8 *from)
{
	u8 value;
	return get_byte(&value, from) ? -EFAULT : value;
}

NOINLINE USED long open_file(const char *name, long flags)
{
	for (struct file *one = files; one; one = one->next)
		if (one->name[0] == name[0] && one->name[1] == name[1])
			return one->size + flags;
	return -2;
}

NOINLINE USED long fibonacci(long n)
{
	return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

NOINLINE USED long choose(long which, long value)
{
	switch (which) {
	case 0: return value + 1;
	case 1: return value * value;
	case 2: return value - 7;
	case 3: return value << 3;
	case 4: return leaf(value, value);
	case 5: return ~value;
	case 6: return value / 3;
	case 7: return fibonacci(value & 7);
	default: return 0;
	}
}

USED u64 counter;

NOINLINE USED u64 add_atomic(u64 value)
{
	return __atomic_fetch_add(&counter, value, __ATOMIC_SEQ_CST);
}

typedef long (*two_arguments)(long, long);
USED two_arguments operations[2] = {leaf, choose};

NOINLINE USED long indirect(long which, long a, long b)
{
	return operations[which & 1](a, b) + 1;
}

/* Nine arguments: the last ones are on the stack, where the ABI has so few registers. */
NOINLINE USED long many(long a, long b, long c, long d, long e, long f, long g, long h, long i)
{
	return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i;
}

NOINLINE USED long exercise(long n)
{
	long total = work(n & 15) + fibonacci(n & 7) + many(n, 1, 2, 3, 4, 5, 6, 7, 8);
	for (long i = 0; i < 9; i++)
		total += choose(i, n) + indirect(i, i & 7, n);
	total += open_file("/etc/passwd", n) + open_file("/bin/sh", n) + open_file("none", n);
	total += add_atomic(n) + probe_byte((const u8 *)"x") + probe_byte((const u8 *)8);
	return total;
}

/* Where calls of the machine return to. */
NOINLINE USED void idle(void)
{
	for (;;)
		__asm__ volatile("");
}
