/* What the small kernel does for ever: it moves money between four accounts. */
typedef unsigned long u64;

enum mood { CALM, BUSY = 5 };

struct account {
	int number;
	enum mood mood;
	long balance;
	char name[12];
};

struct account accounts[4] = {
	{ 100, CALM, 1000, "anna" },
	{ 101, CALM, 2000, "bert" },
	{ 102, BUSY, 3000, "carl" },
	{ 103, BUSY, 4000, "dora" },
};
volatile u64 rounds;
volatile long paid;

static inline __attribute__((always_inline)) long fee_of(struct account *account, long amount)
{
	long fee = amount >> 3;

	for (int i = 0; i < account->number - 99; i++)
		fee += paid & 1;
	if (account->mood == BUSY)
		fee += 2;
	return fee;
}

__attribute__((noinline)) long withdraw(struct account *account, long amount)
{
	long fee = fee_of(account, amount);

	account->balance -= amount + fee;
	return fee;
}

__attribute__((noinline)) int transfer(struct account *from, struct account *to, long amount)
{
	long fee = withdraw(from, amount);

	paid += fee;
	if (amount & 1)
		paid += fee_of(to, amount + 1);
	to->balance += amount;
	return from->number * 1000 + to->number;
}

__attribute__((noinline)) void one_round(u64 number)
{
	for (int i = 0; i < 8; i++)
		transfer(&accounts[i & 3], &accounts[(i + 1) & 3], 10 * (long)i + (number & 7));
}

void kmain(void)
{
	for (;;) {
		one_round(rounds);
		rounds = rounds + 1;
	}
}
