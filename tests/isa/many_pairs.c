/* Code in an emulator (unicorn), a million times: a random state in, the outcomes of the original
 * and of what stands for it compared.  What a state and an outcome are is said in emulation.py,
 * which does the same for one at a time and can say more of it; here nothing is an object of
 * Python's, which makes it a hundred times faster.  many_pairs.py calls it.
 *
 * The engine's physical memory: the text twice (as it is, and as it is planted), scratch for
 * trampolines, a pool of pages that are given out as addresses are touched, and a page of nops for
 * whatever control comes to outside of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unicorn/unicorn.h>

enum { PAGE = 4096, POOL = 48, BLOCKS = 16, REGISTERS = 96, TRIES = 20, FRAMES = 16384 };
enum { STACKS = 8, SPARE = 4 }; /* pages that what stands for the original may touch besides */
#define TEXT_AT 0x10000000ull
#define PLANTED_AT 0x20000000ull
#define SCRATCH_AT 0x40000000ull
#define POOL_AT 0x50000000ull
#define NOPS_AT (POOL_AT + POOL * PAGE)

/* How a register's value is made. */
enum { GENERAL, STACK, BITS, SMALL, COUNT, WIDE, CONSTANT };

struct reg {
    int32_t id;
    int32_t kind;
    uint64_t base;     /* GENERAL, SMALL, COUNT: where pointers point to; STACK, BITS, CONSTANT */
    uint64_t random;   /* bits that are random (BITS), or the size of where pointers point to */
    uint64_t compared; /* bits that an outcome has */
    uint64_t lost;     /* bits of it that may differ where the register's content is lost */
    uint64_t unfit;    /* a state whose outcome has one of these is passed over */
};

/* Sorted by address: where a breakpoint is planted, and where control goes from there. */
struct trap {
    uint64_t address, target;
};

struct pair {
    uint64_t low, high;        /* the original: control is followed while it is in here */
    uint64_t start;            /* and entered here */
    uint64_t also_low, also_high; /* what stands for it: trampolines ... */
    uint64_t also_start;       /* ... and where it is entered */
    uint64_t planted;          /* whether [low, high) of the planted text belongs to it */
    uint64_t below;            /* bytes below the stack pointer that nobody reads afterwards */
    uint64_t counted;          /* whether REP and COUNT need a small count */
    uint64_t vectors;          /* whether registers of kind WIDE take part */
    uint64_t steps;            /* instructions after which a state is given up */
};

struct found {
    int64_t compared, skipped, different;
    uint64_t seed; /* of the first state that makes a difference */
    char text[256];
};

struct page {
    uint64_t address;
    uint8_t before[PAGE], after[PAGE];
};

struct outcome {
    uint64_t registers[REGISTERS][2];
    uint64_t next;
    int failed;
    int pages;
    struct page page[POOL];
};

struct stack {
    uint64_t lowest, highest; /* values of the stack pointer */
};

struct pairs {
    uc_engine *uc;
    struct reg reg[REGISTERS];
    int registers, wide, sp, pc;
    int trap_behind; /* bytes behind a breakpoint that the program counter is when it is hit */
    int traps_by_hook; /* the emulator has no exception for breakpoints */
    int repeats;       /* what begins with F2 or F3 is one instruction, however often it repeats */
    uint64_t smallest_page;
    uint64_t text_low, text_high, scratch, scratch_size;
    uint8_t *text, *planted, *scratch_memory, *pool;
    uint8_t block[BLOCKS][PAGE];
    const struct trap *trap;
    long traps;
    uint32_t *visits; /* of the original, by offset from pair->low; NULL: not wanted */
    const uint64_t *lost; /* bits of registers, by offset of where control leaves; NULL: none */
    uint64_t last, left_at;
    const struct pair *pair;
    int second; /* what runs stands for the original */
    uint64_t turn, next, steps, sp_start;
    struct stack stack[STACKS];
    int stacks;
    int trapped, bad_read, gone;
    uint8_t written[FRAMES]; /* which bytes below where the stack pointer was the original wrote */
    struct outcome one, two;
    uint64_t value[REGISTERS][2];
    uint64_t rng;
};

static uint64_t draw(struct pairs *p)
{
    uint64_t z = p->rng += 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

static uint64_t below(struct pairs *p, uint64_t limit)
{
    return draw(p) % limit;
}

static const struct trap *trap_at(const struct pairs *p, uint64_t address)
{
    long low = 0, high = p->traps;
    while (low < high) {
        long middle = (low + high) / 2;
        if (p->trap[middle].address < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low < p->traps && p->trap[low].address == address ? &p->trap[low] : NULL;
}

/* Random states change the stack pointer at will, so a function may have been on several stacks. */
static void follow_stack(struct pairs *p, uint64_t sp)
{
    for (int k = 0; k < p->stacks; k++) {
        struct stack *stack = &p->stack[k];
        if (sp - stack->lowest + PAGE < 2 * PAGE + (stack->highest - stack->lowest)) {
            stack->lowest = sp < stack->lowest ? sp : stack->lowest;
            stack->highest = sp > stack->highest ? sp : stack->highest;
            return;
        }
    }
    if (p->stacks < STACKS)
        p->stack[p->stacks++] = (struct stack){sp, sp};
}

static void on_code(uc_engine *uc, uint64_t address, uint32_t size, void *data)
{
    struct pairs *p = data;
    const struct pair *pair = p->pair;
    (void)size;
    int inside = address >= pair->low && address < pair->high;
    if (p->second) {
        int in_text = inside && pair->planted;
        inside = in_text || (address >= pair->also_low && address < pair->also_high);
        const struct trap *trap = in_text && p->traps_by_hook ? trap_at(p, address) : NULL;
        if (trap) {
            uc_reg_write(uc, p->pc, &trap->target);
            return;
        }
    } else if (inside && p->visits) {
        uint8_t byte = p->text[address - p->text_low];
        if (address != p->last || !p->repeats || (byte != 0xF2 && byte != 0xF3))
            p->visits[address - pair->low]++;
    }
    if (inside)
        p->last = address;
    if (!p->second && pair->below) {
        uint64_t sp = 0;
        uc_reg_read(uc, p->sp, &sp);
        follow_stack(p, sp);
    }
    if (!inside || ++p->steps > pair->steps * (p->second ? 32 : 1)) {
        p->gone = !inside;
        p->next = address;
        uc_emu_stop(uc);
    }
}

static void on_exception(uc_engine *uc, uint32_t number, void *data)
{
    struct pairs *p = data;
    uint64_t pc = 0;
    (void)number;
    uc_reg_read(uc, p->pc, &pc);
    const struct trap *trap = p->second && p->pair->planted ? trap_at(p, pc - p->trap_behind) : NULL;
    if (trap) {
        uc_reg_write(uc, p->pc, &trap->target);
        return;
    }
    p->trapped = 1;
    uc_emu_stop(uc);
}

static void on_read(uc_engine *uc, uc_mem_type type, uint64_t address, int size, int64_t value,
                    void *data)
{
    /* The address is a physical one.  What is below the stack pointer is nobody's; and a function
     * does not read its own instructions, as a state may have it (backwards, behind a copy). */
    struct pairs *p = data;
    uint64_t number = (address - POOL_AT) / PAGE, sp = 0, place = address - TEXT_AT;
    (void)type, (void)value;
    if (!p->second && p->pair->planted && place + size <= p->text_high - p->text_low &&
        memcmp(p->text + place, p->planted + place, size))
        p->bad_read = 1;
    if (p->second || address < POOL_AT || number >= (uint64_t)p->one.pages)
        return;
    uc_reg_read(uc, p->sp, &sp);
    uint64_t at = p->one.page[number].address + address % PAGE;
    if (at + size > sp - p->pair->below && at < sp)
        p->bad_read = 1;
}

static void on_write(uc_engine *uc, uc_mem_type type, uint64_t address, int size, int64_t value,
                     void *data)
{
    struct pairs *p = data;
    uint64_t number = (address - POOL_AT) / PAGE;
    (void)uc, (void)type, (void)value;
    if (p->second || address < POOL_AT || number >= (uint64_t)p->one.pages)
        return;
    uint64_t from = p->one.page[number].address + address % PAGE - (p->sp_start - FRAMES);
    for (uint64_t i = from; i < from + size && i < FRAMES; i++)
        p->written[i] = 1;
}

static bool on_fill(uc_engine *uc, uint64_t address, uc_mem_type type, uc_tlb_entry *entry,
                    void *data)
{
    struct pairs *p = data;
    struct outcome *outcome = p->second ? &p->two : &p->one;
    uint64_t page = address & -(uint64_t)PAGE;
    (void)uc;
    entry->perms = UC_PROT_ALL;
    if (page >= p->text_low && page < p->text_high) {
        /* A random pointer may lead here; the text is the same for all who come later. */
        if (type == UC_MEM_WRITE)
            return false;
        entry->perms = UC_PROT_READ | UC_PROT_EXEC;
        entry->paddr = page - p->text_low + (p->second ? PLANTED_AT : TEXT_AT);
    } else if (page >= p->scratch && page < p->scratch + p->scratch_size) {
        if (type == UC_MEM_WRITE && !p->second)
            return false;
        if (!p->second)
            entry->perms = UC_PROT_READ | UC_PROT_EXEC;
        entry->paddr = page - p->scratch + SCRATCH_AT;
    } else if (type == UC_MEM_FETCH) {
        /* Also where data is: the emulator translates what it comes to before it asks whether to go
         * on, and does not survive every word. */
        entry->paddr = NOPS_AT;
        entry->perms = UC_PROT_EXEC;
    } else {
        int k = 0;
        while (k < outcome->pages && outcome->page[k].address != page)
            k++;
        if (k == (p->second ? POOL : POOL - SPARE))
            return false;
        if (k == outcome->pages) {
            uint8_t *content = p->block[page / PAGE % BLOCKS];
            uint8_t *before = outcome->page[k].before;
            memcpy(before, content + p->turn, PAGE - p->turn);
            memcpy(before + PAGE - p->turn, content, p->turn);
            memcpy(p->pool + k * PAGE, before, PAGE);
            outcome->page[k].address = page;
            outcome->pages++;
        }
        entry->paddr = POOL_AT + k * PAGE;
        entry->perms = UC_PROT_READ | UC_PROT_WRITE;
    }
    entry->paddr += address % PAGE & -p->smallest_page;
    return true;
}

/* Odd seeds make tame states: aligned pointers and small numbers, so that hardly anything faults. */
static void make_state(struct pairs *p, uint64_t seed)
{
    int tame = seed & 1;
    p->rng = seed;
    p->turn = draw(p) % PAGE & ~7ull;
    for (int k = 0; k < p->registers; k++) {
        const struct reg *reg = &p->reg[k];
        uint64_t *value = p->value[k];
        static const uint64_t edges[] = {
            0, 1, -1ull, 1ull << 63, 0x7FFFFFFF, 0x80000000, 0x7F, 0x80,
        };
        uint64_t pointer = reg->base + (reg->random ? below(p, reg->random) : 0);
        uint64_t kind = below(p, 10);
        value[0] = value[1] = 0;
        switch (reg->kind) {
        case STACK:
            value[0] = reg->base + 0x8000 + 16 * below(p, 128);
            break;
        case BITS:
            value[0] = reg->base | (draw(p) & reg->random);
            break;
        case CONSTANT:
            value[0] = reg->base;
            break;
        case WIDE:
            value[0] = draw(p);
            value[1] = draw(p);
            break;
        default:
            if (reg->kind == SMALL && tame)
                value[0] = below(p, 2);
            else if (reg->kind == COUNT && p->pair->counted)
                value[0] = below(p, 20);
            else if (tame)
                value[0] = kind < 7 ? pointer & -64 : below(p, 64);
            else if (kind < 4)
                value[0] = pointer;
            else if (kind < 6)
                value[0] = edges[below(p, sizeof edges / sizeof *edges)];
            else
                value[0] = draw(p);
        }
    }
}

static void run(struct pairs *p, int second)
{
    struct outcome *outcome = second ? &p->two : &p->one;
    outcome->pages = 0;
    p->second = second;
    p->steps = p->trapped = p->gone = p->bad_read = 0;
    p->last = -1;
    if (!second && p->pair->below) {
        memset(p->written, 0, sizeof p->written);
        p->stacks = 0;
    }
    for (int k = 0; k < p->registers; k++) {
        if (p->reg[k].kind != WIDE || p->pair->vectors)
            uc_reg_write(p->uc, p->reg[k].id, p->value[k]);
        if (p->reg[k].id == p->sp && !second)
            p->sp_start = p->value[k][0];
    }
    uc_ctl_flush_tlb(p->uc);
    uc_err error =
        uc_emu_start(p->uc, second ? p->pair->also_start : p->pair->start, 0, 0, 0);
    outcome->failed = error != UC_ERR_OK || p->trapped || !p->gone;
    outcome->next = p->next;
    if (!second)
        p->left_at = p->last;
    for (int k = 0; k < p->registers; k++) {
        outcome->registers[k][0] = outcome->registers[k][1] = 0;
        if (p->reg[k].compared && (p->reg[k].kind != WIDE || p->pair->vectors))
            uc_reg_read(p->uc, p->reg[k].id, outcome->registers[k]);
    }
    for (int k = 0; k < outcome->pages; k++)
        memcpy(outcome->page[k].after, p->pool + k * PAGE, PAGE);
}

static int unfit(const struct pairs *p)
{
    for (int k = 0; k < p->registers; k++)
        if (p->one.registers[k][0] & p->reg[k].unfit)
            return 1;
    /* A stack at one of the ends of memory has no other side. */
    for (int k = 0; k < p->stacks && p->pair->below; k++)
        if (p->stack[k].lowest < PAGE || p->stack[k].highest + PAGE < PAGE)
            return 1;
    return 0;
}

static const uint8_t *page_of(const struct outcome *outcome, uint64_t address)
{
    for (int k = 0; k < outcome->pages; k++)
        if (outcome->page[k].address == address)
            return outcome->page[k].after;
    return NULL;
}

/* Whether nobody reads an address any more: it is below the stack pointer, on a stack that was left,
 * or in a frame where the original wrote nothing. */
static int is_dead(const struct pairs *p, uint64_t address, uint64_t end)
{
    uint64_t frame = address - (p->sp_start - FRAMES);
    if (!p->pair->below)
        return 0;
    if (frame < FRAMES && !p->written[frame])
        return 1;
    for (int k = 0; k < p->stacks; k++) {
        const struct stack *stack = &p->stack[k];
        int last = end - stack->lowest + PAGE < 2 * PAGE + (stack->highest - stack->lowest);
        if (address >= stack->lowest - p->pair->below && address < (last ? end : stack->highest))
            return 1;
    }
    return address >= end - p->pair->below && address < end;
}

static int memory_differs(const struct pairs *p, const struct outcome *pages, uint64_t end,
                          uint64_t *where)
{
    for (int k = 0; k < pages->pages; k++) {
        uint64_t page = pages->page[k].address;
        const uint8_t *was = pages->page[k].before;
        const uint8_t *a = page_of(&p->one, page), *b = page_of(&p->two, page);
        a = a ? a : was;
        b = b ? b : was;
        if (!memcmp(a, b, PAGE))
            continue;
        for (int i = 0; i < PAGE; i++)
            if (a[i] != b[i] && !is_dead(p, page + i, end)) {
                *where = page + i;
                return 1;
            }
    }
    return 0;
}

/* Writes what differs; 0 where nothing does. */
static int differs(const struct pairs *p, char *text, size_t size)
{
    const struct outcome *a = &p->one, *b = &p->two;
    uint64_t where = 0, end = 0;
    uint64_t lost = p->lost ? p->lost[p->left_at - p->pair->low] : 0;
    if (b->failed)
        return snprintf(text, size, "it does not come to an end (last at %#lx)", b->next);
    if (a->next != b->next)
        return snprintf(text, size, "it goes on at %#lx, not at %#lx", b->next, a->next);
    for (int k = 0; k < p->registers; k++) {
        const struct reg *reg = &p->reg[k];
        if (reg->id == p->sp)
            end = a->registers[k][0];
        uint64_t compared = reg->compared & ~(k < 64 && lost >> k & 1 ? reg->lost : 0);
        if ((a->registers[k][0] ^ b->registers[k][0]) & compared ||
            (reg->kind == WIDE && a->registers[k][1] != b->registers[k][1]))
            return snprintf(text, size, "register %d is %#lx, not %#lx", k, b->registers[k][0],
                            a->registers[k][0]);
    }
    if (memory_differs(p, a, end, &where) || memory_differs(p, b, end, &where))
        return snprintf(text, size, "memory at %#lx", where);
    return 0;
}

struct pairs *pairs_open(int arch, int mode, int model, const struct reg *reg, int registers, int sp, int pc,
                         int trap_behind, int traps_by_hook, int repeats, uint64_t smallest_page,
                         uint64_t text_address, const uint8_t *text, uint64_t text_size,
                         uint64_t scratch, uint64_t scratch_size, const uint8_t *nop,
                         uint64_t nop_size)
{
    struct pairs *p = calloc(1, sizeof *p);
    uc_hook hook;
    if (!p || registers > REGISTERS || uc_open(arch, mode, &p->uc) != UC_ERR_OK)
        return NULL;
    if (model >= 0 && uc_ctl_set_cpu_model(p->uc, model) != UC_ERR_OK)
        return NULL;
    memcpy(p->reg, reg, registers * sizeof *reg);
    p->registers = registers;
    p->sp = sp, p->pc = pc, p->trap_behind = trap_behind, p->traps_by_hook = traps_by_hook;
    p->repeats = repeats;
    p->smallest_page = smallest_page;
    p->text_low = text_address & -(uint64_t)PAGE;
    p->text_high = (text_address + text_size + PAGE - 1) & -(uint64_t)PAGE;
    p->scratch = scratch, p->scratch_size = scratch_size;
    uint64_t length = p->text_high - p->text_low;
    p->text = aligned_alloc(PAGE, length);
    p->planted = aligned_alloc(PAGE, length);
    p->scratch_memory = aligned_alloc(PAGE, scratch_size);
    p->pool = aligned_alloc(PAGE, (POOL + 1) * PAGE);
    if (!p->text || !p->planted || !p->scratch_memory || !p->pool)
        return NULL;
    memset(p->text, 0, length);
    memcpy(p->text + (text_address - p->text_low), text, text_size);
    memcpy(p->planted, p->text, length);
    memset(p->scratch_memory, 0, scratch_size);
    for (uint64_t i = 0; i < PAGE; i++)
        p->pool[POOL * PAGE + i] = nop[i % nop_size];
    p->rng = 16;
    for (int n = 0; n < BLOCKS; n++)
        for (int i = 0; i < PAGE; i += 8) {
            uint64_t word = draw(p);
            memcpy(p->block[n] + i, &word, 8);
        }
    if (uc_ctl_tlb_mode(p->uc, UC_TLB_VIRTUAL) != UC_ERR_OK ||
        uc_mem_map_ptr(p->uc, TEXT_AT, length, UC_PROT_ALL, p->text) != UC_ERR_OK ||
        uc_mem_map_ptr(p->uc, PLANTED_AT, length, UC_PROT_ALL, p->planted) != UC_ERR_OK ||
        uc_mem_map_ptr(p->uc, SCRATCH_AT, scratch_size, UC_PROT_ALL, p->scratch_memory) !=
            UC_ERR_OK ||
        uc_mem_map_ptr(p->uc, POOL_AT, (POOL + 1) * PAGE, UC_PROT_ALL, p->pool) != UC_ERR_OK ||
        uc_hook_add(p->uc, &hook, UC_HOOK_CODE, on_code, p, 1, 0) != UC_ERR_OK ||
        uc_hook_add(p->uc, &hook, UC_HOOK_INTR, on_exception, p, 1, 0) != UC_ERR_OK ||
        uc_hook_add(p->uc, &hook, UC_HOOK_MEM_READ, on_read, p, 1, 0) != UC_ERR_OK ||
        uc_hook_add(p->uc, &hook, UC_HOOK_MEM_WRITE, on_write, p, 1, 0) != UC_ERR_OK ||
        uc_hook_add(p->uc, &hook, UC_HOOK_TLB_FILL, on_fill, p, 1, 0) != UC_ERR_OK)
        return NULL;
    return p;
}

/* Code for what stands for the original: in scratch, or in the planted text. */
int pairs_write(struct pairs *p, uint64_t address, const uint8_t *code, uint64_t size)
{
    if (address >= p->scratch && address + size <= p->scratch + p->scratch_size)
        memcpy(p->scratch_memory + (address - p->scratch), code, size);
    else if (address >= p->text_low && address + size <= p->text_high)
        memcpy(p->planted + (address - p->text_low), code, size);
    else
        return -1;
    return 0;
}

/* Reads of what pairs_write() writes. */
int pairs_read(struct pairs *p, uint64_t address, uint8_t *to, uint64_t size)
{
    if (address < p->scratch || address + size > p->scratch + p->scratch_size)
        return -1;
    memcpy(to, p->scratch_memory + (address - p->scratch), size);
    return 0;
}

/* To be called when code was written where code has run. */
void pairs_forget(struct pairs *p)
{
    uc_ctl_flush_tb(p->uc);
}

void pairs_register(struct pairs *p, int id, uint64_t value)
{
    uc_reg_write(p->uc, id, &value);
}

/* visits: added to, for each byte of [low, high), how often the original came to it in states that
 * were compared; NULL where nobody asks.  lost: for each byte of it, by the instruction with which
 * control leaves, the registers whose content nobody reads then. */
void pairs_compare(struct pairs *p, const struct pair *pair, long states, uint64_t seed,
                   const struct trap *trap, long traps, uint32_t *visits, const uint64_t *lost,
                   struct found *found)
{
    uint64_t length = pair->high - pair->low;
    uint32_t *once = visits ? calloc(length, sizeof *once) : NULL;
    memset(found, 0, sizeof *found);
    p->pair = pair, p->trap = trap, p->traps = traps, p->lost = lost;
    for (long n = 0; n < states && !(n == TRIES && !found->compared); n++) {
        uint64_t own = (seed + n * 0xD1342543DE82EF95ull) & ~1ull;
        char text[sizeof found->text];
        make_state(p, own | (n & 1));
        if (once)
            memset(once, 0, length * sizeof *once);
        p->visits = once;
        run(p, 0);
        p->visits = NULL;
        if (p->one.failed || (p->bad_read && pair->below) || unfit(p)) {
            found->skipped++;
            continue;
        }
        run(p, 1);
        found->compared++;
        if (differs(p, text, sizeof text) && !found->different++) {
            found->seed = own | (n & 1);
            memcpy(found->text, text, sizeof text);
        }
        for (uint64_t i = 0; once && i < length; i++)
            visits[i] += once[i];
    }
    free(once);
}

/* The state that a seed makes, two words for each register. */
void pairs_state(struct pairs *p, const struct pair *pair, uint64_t seed, uint64_t (*to)[2])
{
    p->pair = pair;
    make_state(p, seed);
    memcpy(to, p->value, p->registers * sizeof *p->value);
}

void pairs_close(struct pairs *p)
{
    uc_close(p->uc);
    free(p->text);
    free(p->planted);
    free(p->scratch_memory);
    free(p->pool);
    free(p);
}
