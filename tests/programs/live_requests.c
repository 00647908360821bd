/* live_requests N SEED: N requests of /dev/kinst that are wrong, in any way but one: no address of
 * the caller's scratch is ever used, since root may run what it likes there.
 *
 * Prints how many were made, and of those that plant or start something how many were accepted. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t state;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state * 0x2545F4914F6CDD1DULL;
}

static uint64_t below(uint64_t n)
{
	return next() % n;
}

/* What is read goes to somewhere in the first ROOM bytes, and may be up to 1 GB: nothing of the
 * program's own lies behind them, such as a lock of stdio's. */
#define ROOM (1 << 16)
#define BEHIND (2UL << 30)
static unsigned char *room;

static uint64_t word(void)
{
	static const uint64_t usual[] = {
		0, 1, 2, 5, 20, 127, 128, 129, 4095, 4096, 1 << 20, (1 << 20) + 1, 1u << 31,
		1ULL << 32, (1ULL << 63) - 1, 1ULL << 63, ~0ULL, ~0ULL - 4096,
		0xFFFFFFFF81000000, 0xFFFFFFFF81000001, 0xFFFF888000000000, 0xFFFFFFFFA0000000,
		0xFFFFFFFFC0000000, 0xFFFFFFFFFF600000,
	};
	switch (below(8)) {
	case 0:
		return next();
	case 1:
		return next() >> below(64);
	case 2:
		return (uintptr_t)room + below(ROOM);
	case 3:
		return 0xFFFFFFFF81000000 + below(16 << 20);
	default:
		return usual[below(sizeof(usual) / sizeof(*usual))];
	}
}

/* A table of sites, some of them nearly right. */
static void fill(void)
{
	for (int i = 0; i < 8; i++) {
		unsigned char *row = room + 24 * i;
		uint64_t address = word();

		memcpy(row, &address, 8);
		for (int k = 8; k < 24; k++)
			row[k] = below(4) ? 0 : next();
		row[8] = below(3) ? (below(2) ? 5 : 1) : next();
		row[14] = below(2) ? 0xe9 : 0xcc;
	}
}

int main(int count, char **arguments)
{
	/* Bytes of each request's structure, and which ways it goes: 1 in, 2 out. */
	static const struct {
		unsigned size, way;
	} known[] = { { 48, 2 }, { 24, 1 }, { 16, 3 }, { 16, 1 }, { 64, 3 }, { 8, 2 }, { 8, 2 }, { 32, 1 },
		    { 16, 3 }, { 16, 1 }, { 0, 0 } };
	long made = 0, accepted = 0, wanted = count > 1 ? atol(arguments[1]) : 1000;
	int fd = open("/dev/kinst", O_RDWR);

	if (fd < 0) {
		perror("/dev/kinst");
		return 1;
	}
	room = mmap(NULL, ROOM + BEHIND, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED || mprotect(room, 2 * ROOM, PROT_READ | PROT_WRITE)) {
		perror("mmap");
		return 1;
	}
	state = count > 2 ? strtoull(arguments[2], NULL, 0) | 1 : 1;
	for (; made < wanted; made++) {
		unsigned number = below(50) ? 3 + below(8) : below(256);
		unsigned size, way;
		uint64_t data[2048];

		if (!below(20))
			number = 1;
		if (!below(2000))
			number = 2;
		size = number < 11 ? known[number].size : 8 * below(9);
		way = number < 11 ? known[number].way : below(4);
		if (!below(20))
			size = below(1 << 14);
		if (!below(20))
			way = below(4);
		for (unsigned i = 0; i < 10; i++)
			data[i] = word();
		if (number == 1 && below(4))
			data[1] = below(1 << 20);
		if (number == 2)
			data[0] = below(4) ? below(8 << 20) : word();
		if (number == 4 && below(3)) {
			data[0] = below(9);
			data[1] = (uintptr_t)room;
			data[2] = below(3);
			data[3] = (uintptr_t)room + 24 * below(8);
			data[5] = below(2) ? 0 : word();
			data[7] = 20ULL << 32;
			fill();
		}
		if (number == 7 && below(2))
			data[3] = 20;
		if (ioctl(fd, way << 30 | size << 16 | 'k' << 8 | ((0xf0 + number) & 0xff), data) >= 0)
			accepted += number == 4 || number == 7;
	}
	close(fd);
	printf("%ld %ld\n", made, accepted);
	return 0;
}
