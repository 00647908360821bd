// A module with a race: a pointer is checked, and read again when it is used.
//
// Writing "use" to /proc/racy checks the pointer and uses it, "change" sets it to NULL or back
// every few milliseconds, some times each.

#include <linux/compiler.h>
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/uaccess.h>

MODULE_LICENSE("GPL");

#define USES 20
#define CHANGES 40 /* even: the pointer is there at the end */

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
	WRITE_ONCE(shared, READ_ONCE(shared) ? NULL : &only);
}

static ssize_t run(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	char name[16] = "";
	int k;

	if (size >= sizeof(name) || copy_from_user(name, from, size))
		return -EINVAL;
	for (k = 0; k < (name[0] == 'u' ? USES : CHANGES); k++) {
		if (name[0] == 'u')
			use_shared();
		else
			change_shared();
		msleep(name[0] == 'u' ? 1 : 5);
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
