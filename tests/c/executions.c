/* Plugin of QEMU that counts how often chosen instructions of a kernel are executed.
 *
 * Arguments: offsets=FILE, whose lines are offsets within 2 MB, in hex: KASLR moves a kernel by
 * multiples of 2 MB, so they tell the instructions wherever the kernel is; counts=FILE, an array of
 * struct row, which is up to date at any time; last=OFFSET, of an instruction after which nothing is
 * counted any more, and apart=DISTANCE, of this instruction from a counted one that has run before it:
 * code elsewhere may have the same offset.
 *
 * The declarations are those of QEMU's plugin interface, version 1.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROWS 8192
#define MOVED_BY (2 << 20)

struct row {
    uint64_t address;
    uint64_t count;
};

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
                                           void (*call)(qemu_plugin_id_t, struct qemu_plugin_tb *));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t number);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *instruction);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *instruction,
                                            void (*call)(unsigned, void *), int flags, void *data);

int qemu_plugin_version = 1;

static unsigned char wanted[MOVED_BY]; /* 2: the last instruction */
static uint64_t apart;
static int over;
static struct row *rows;
static size_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void executed(unsigned cpu, void *row)
{
    (void)cpu;
    if (!__atomic_load_n(&over, __ATOMIC_RELAXED))
        __atomic_fetch_add(&((struct row *)row)->count, 1, __ATOMIC_RELAXED);
}

static void ended(unsigned cpu, void *nothing)
{
    (void)cpu;
    (void)nothing;
    __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
}

static struct row *row_of(uint64_t address)
{
    struct row *found = NULL;

    pthread_mutex_lock(&lock);
    for (size_t k = 0; k < used && !found; k++)
        if (rows[k].address == address)
            found = &rows[k];
    if (!found && used < ROWS) {
        found = &rows[used++];
        found->address = address;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static int has_run(uint64_t address)
{
    int found = 0;

    pthread_mutex_lock(&lock);
    for (size_t k = 0; k < used && !found; k++)
        found = rows[k].address == address && rows[k].count;
    pthread_mutex_unlock(&lock);
    return found;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    (void)id;
    for (size_t k = 0; k < qemu_plugin_tb_n_insns(tb); k++) {
        struct qemu_plugin_insn *one = qemu_plugin_tb_get_insn(tb, k);
        uint64_t address = qemu_plugin_insn_vaddr(one);

        if (address >> 63 && wanted[address % MOVED_BY] == 1)
            qemu_plugin_register_vcpu_insn_exec_cb(one, executed, 0, row_of(address));
        else if (address >> 63 && wanted[address % MOVED_BY] && has_run(address - apart))
            qemu_plugin_register_vcpu_insn_exec_cb(one, ended, 0, NULL);
    }
}

int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
    (void)info;
    for (int k = 0; k < argc; k++) {
        char *value = strchr(argv[k], '=') + 1;

        if (!strncmp(argv[k], "offsets=", 8)) {
            FILE *file = fopen(value, "r");
            unsigned offset;

            if (!file)
                return 1;
            while (fscanf(file, "%x", &offset) == 1)
                wanted[offset % MOVED_BY] = 1;
            fclose(file);
        } else if (!strncmp(argv[k], "last=", 5)) {
            wanted[strtoul(value, NULL, 16) % MOVED_BY] = 2;
        } else if (!strncmp(argv[k], "apart=", 6)) {
            apart = strtoull(value, NULL, 16);
        } else {
            int file = open(value, O_RDWR | O_CREAT, 0600);

            if (file < 0 || ftruncate(file, ROWS * sizeof(struct row)))
                return 1;
            rows = mmap(NULL, ROWS * sizeof(struct row), PROT_READ | PROT_WRITE, MAP_SHARED, file,
                        0);
            if (rows == MAP_FAILED)
                return 1;
        }
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
