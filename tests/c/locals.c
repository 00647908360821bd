/* Variables of many kinds; every function is called, and finished() comes last. */
#ifdef __clang__
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE __attribute__((noinline, noclone))
#endif

struct pair { int a, b; };
struct bits { unsigned low : 3, high : 9; long rest; };
struct big { long x[6]; };
struct node { struct node *next; int value; };

static int table[4] = { 3, 1, 4, 1 };
volatile int sink;

static inline __attribute__((always_inline)) int twice(int number)
{
    int result = number * 2;
    static int calls;
    calls++;
    sink = result + calls;
    return result;
}

NOINLINE int plain(int first, unsigned char second, long third, short fourth)
{
    int sum = first + second;
    unsigned char narrow = (unsigned char)(sum + 250);
    long wide = third * sum;
    sink = narrow;
    {
        int sum = fourth;
        for (int i = 0; i < 3; i++) {
            sum += table[i];
            sink = sum;
        }
        wide += sum;
    }
    return (int)wide + sum + narrow;
}

NOINLINE struct pair pieces(struct pair given, struct bits odd)
{
    struct pair made = { given.b + sink, given.a };
    sink = made.a + (int)odd.high + odd.low;
    made.b += (int)odd.rest;
    return made;
}

NOINLINE long memory(struct big whole, const char *text)
{
    static long kept = 17;
    long numbers[5];
    const int constant = 42;
    for (int i = 0; i < 5; i++)
        numbers[i] = whole.x[i] + constant + text[i];
    sink = (int)numbers[sink & 3];
    kept += numbers[1];
    return numbers[4] + kept;
}

NOINLINE int inlined(int outer)
{
    int once = twice(outer + 1);
    int again = twice(once ^ 5);
    return once - again;
}

NOINLINE int entry(int lost, int kept)
{
    sink = lost;
    sink = plain(kept, 1, 2, 3);
    sink = kept;
    return sink;
}

NOINLINE int walk(struct node *node, int limit)
{
    int total = 0;
    while (node && limit-- > 0) {
        struct node *next = node->next;
        total += node->value;
        node = next;
    }
    return total;
}

NOINLINE int real(float ratio, double scale, int count)
{
    double product = ratio * scale;
    int rounded = (int)product + count;
    sink = rounded;
    return rounded;
}

NOINLINE void finished(void) { sink = 0; }

int main(void)
{
    struct node third = { 0, 7 }, second = { &third, 5 }, first = { &second, 3 };
    struct big big = { { 1, 2, 3, 4, 5, 6 } };
    struct pair pair = { 10, -20 };
    struct bits bits = { 5, 300, 1L << 40 };
    int total = plain(100, 200, 1L << 33, -7);
    pair = pieces(pair, bits);
    total += (int)memory(big, "hello") + pair.a + inlined(9) + entry(5, 6) + walk(&first, 2);
    total += real(1.5f, 2.25, 4);
    sink = total;
    finished();
    return 0;
}
