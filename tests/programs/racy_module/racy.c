// A module with a race: a pointer is checked, and read again when it is used.
//
// Writing "use" to /proc/racy checks the pointer and uses it, "change" sets it to NULL and back,
// each many times.

#include <linux/compiler.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <linux/uaccess.h>

MODULE_LICENSE("GPL");

#define TIMES 200

struct item {
	long value;
};

static struct item only;
static struct item *shared = &only;
static long sink;

static noinline void use_shared(void)
{
	if (READ_ONCE(shared))
		WRITE_ONCE(sink, READ_ONCE(shared)->value);
}

static noinline void change_shared(void)
{
	WRITE_ONCE(shared, NULL);
	WRITE_ONCE(shared, &only);
}

static ssize_t run(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	char name[16] = "";
	int k;

	if (size >= sizeof(name) || copy_from_user(name, from, size))
		return -EINVAL;
	for (k = 0; k < TIMES; k++) {
		if (!strncmp(name, "use", 3))
			use_shared();
		else
			change_shared();
		cond_resched();
	}
	return size;
}

static const struct proc_ops operations = {
	.proc_write = run,
};

static int __init start(void)
{
	return proc_create("racy", 0600, NULL, &operations) ? 0 : -ENOMEM;
}

static void __exit end(void)
{
	remove_proc_entry("racy", NULL);
}

module_init(start);
module_exit(end);
