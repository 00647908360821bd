/* A freestanding program as kernels are: no libraries, no BTF; every kind of type is used. */
enum hue { RED = 3, GREEN, BLUE = 0x7fffffff };
typedef unsigned long u64;
struct point;
typedef int (*handler)(struct point *, int);
struct point {
    int x, y;
    unsigned low : 3, high : 5;
    struct point *next;
    union { char letter; u64 wide; };
    const char *name;
    int grid[2][3];
    enum hue colour;
    handler call;
};

#define OFFSET(member) __builtin_offsetof(struct point, member)
/* What the compiler says, to compare with. */
const u64 offsets[] = {
    OFFSET(x), OFFSET(y), OFFSET(next), OFFSET(letter), OFFSET(wide), OFFSET(name), OFFSET(grid),
    OFFSET(colour), OFFSET(call), sizeof(struct point),
};
struct point origin = { .x = 1, .low = 5, .high = 9, .name = "origin" };
volatile int sink;
int table[4] = { 1, 2, 3, 4 };

static inline __attribute__((always_inline)) int twice(int number, struct point *at)
{
    int result = number * 2;
    sink = result + at->x;
    return result;
}

__attribute__((noinline)) int step(struct point *at, u64 count, enum hue colour, _Bool flag)
{
    long kept[4];
    for (int i = 0; i < 4; i++)
        kept[i] = count + i + table[i];
    int made = twice(colour, at);
    sink = (int)kept[sink & 3];
    at->y = made;
    return made + flag + kept[1];
}

void _start(void)
{
    while (sink < 1000)
        sink += step(&origin, sink, (enum hue)(sink & 3), sink & 1);
    for (;;)
        ;
}
