/*
 * Counts how often each instruction of a program runs, by single steps: the authority of
 * tests/machines/process.
 *
 *     stepper COUNTS PROGRAM ARGUMENT...
 *
 * The program runs without address randomisation.  COUNTS gets the pairs (address, count) of its
 * own instructions, as 64-bit words; those of libraries are stepped over uncounted.  If the variable
 * STEPPED is the path of a library, COUNTS gets the library's instructions instead, by their address
 * in its file.  Exits with the program's status.  Source: ptrace(2).
 */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RIP = 16 * 8, RSP = 19 * 8 };  /* in struct user */
enum { FRAME = 512 };  /* bytes: a signal's frame is larger */

static pid_t child;

static uint64_t auxiliary(uint64_t kind)
{
	char path[64];
	uint64_t pair[2];
	snprintf(path, sizeof path, "/proc/%d/auxv", child);
	int file = open(path, O_RDONLY);
	while (read(file, pair, sizeof pair) == sizeof pair)
		if (pair[0] == kind)
			break;
	close(file);
	return pair[1];
}

/* The span of a file's executable mappings, and the address of the file's first mapping. */
static void code_of(const char *program, uint64_t *low, uint64_t *high, uint64_t *base)
{
	char path[64], line[4096], rights[8], name[4000];
	unsigned long start, end;
	snprintf(path, sizeof path, "/proc/%d/maps", child);
	FILE *maps = fopen(path, "r");
	*low = *base = UINT64_MAX, *high = 0;
	while (fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %3999s", &start, &end, rights, name) != 4)
			continue;
		if (strcmp(name, program))
			continue;
		if (start < *base)
			*base = start;
		if (rights[2] != 'x')
			continue;
		if (start < *low)
			*low = start;
		if (end > *high)
			*high = end;
	}
	fclose(maps);
}

static void step(int request, int number)
{
	if (ptrace(request, child, 0, (long)number))
		exit(99);
}

int main(int count, char **words)
{
	int status, number = 0;
	uint64_t low, high, base, last = 0;
	const char *library = getenv("STEPPED");
	if (count < 3)
		return 98;
	child = fork();
	if (!child) {
		unsetenv("STEPPED");  /* the stack begins below the variables */
		personality(ADDR_NO_RANDOMIZE);
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		execv(words[2], words + 2);
		_exit(97);
	}
	waitpid(child, &status, 0);

	/* To the program's entry: before, only the dynamic linker runs. */
	uint64_t entry = auxiliary(AT_ENTRY);
	long word = ptrace(PTRACE_PEEKTEXT, child, entry, 0);
	ptrace(PTRACE_POKETEXT, child, entry, (word & ~0xffL) | 0xcc);
	step(PTRACE_CONT, 0);
	waitpid(child, &status, 0);
	ptrace(PTRACE_POKETEXT, child, entry, word);
	struct user_regs_struct regs;
	ptrace(PTRACE_GETREGS, child, 0, &regs);
	regs.rip = entry;
	ptrace(PTRACE_SETREGS, child, 0, &regs);
	code_of(library ? library : words[2], &low, &high, &base);
	uint64_t *counts = calloc(high - low, sizeof *counts);

	for (;;) {
		uint64_t at = ptrace(PTRACE_PEEKUSER, child, RIP, 0);
		uint64_t stack = ptrace(PTRACE_PEEKUSER, child, RSP, 0);
		step(PTRACE_SINGLESTEP, number);
		waitpid(child, &status, 0);
		if (at - low < high - low) {
			/* A string instruction stops after each of its repetitions. */
			uint8_t byte = at == last ? ptrace(PTRACE_PEEKTEXT, child, at, 0) : 0;
			int repeated = byte == 0xf3 || byte == 0xf2;
			/* A signal's handler is entered, or another signal reported, in place of it. */
			int before = WIFSTOPPED(status) &&
				     ((uint64_t)ptrace(PTRACE_PEEKUSER, child, RIP, 0) == at
				      ? WSTOPSIG(status) != SIGTRAP
				      : number && (uint64_t)ptrace(PTRACE_PEEKUSER, child, RSP, 0) <
							  stack - FRAME);
			if (!repeated && !before)
				counts[at - low]++;
		}
		if (!WIFSTOPPED(status))
			break;
		last = at;
		number = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
	}
	FILE *out = fopen(words[1], "w");
	for (uint64_t at = 0; at < high - low; at++)
		if (counts[at]) {
			uint64_t pair[2] = {low + at - (library ? base : 0), counts[at]};
			fwrite(pair, sizeof pair, 1, out);
		}
	fclose(out);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
