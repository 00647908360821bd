// A module with five faults that only a failing allocation shows, and eleven paths without one.
//
// Writing a path's name to /proc/faulty runs it.  write(2) fails with the error that the path
// returns.  Each path allocates memory by kmalloc() and the like.

#include <linux/err.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/proc_fs.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

MODULE_LICENSE("GPL");

struct item {
	struct list_head list;
	long value;
	char text[40];
};

static DEFINE_MUTEX(bad_lock);
static DEFINE_MUTEX(good_lock);
static struct item spare;
static long sink;

// The five faults.

static noinline int bad_unchecked(void)
{
	struct item *item = kmalloc(sizeof(*item), GFP_KERNEL);

	item->value = 1; // NULL if there is no memory
	sink = item->value;
	kfree(item);
	return 0;
}

static noinline int bad_leak(void)
{
	struct item *first = kmalloc(sizeof(*first), GFP_KERNEL), *second;

	if (!first)
		return -ENOMEM;
	second = kmalloc(sizeof(*second), GFP_KERNEL);
	if (!second)
		return -ENOMEM; // first is not freed
	kfree(second);
	kfree(first);
	return 0;
}

static noinline int bad_double_free(void)
{
	struct item *first = kmalloc(sizeof(*first), GFP_KERNEL), *second;
	int error = 0;

	if (!first)
		return -ENOMEM;
	second = kmalloc(sizeof(*second), GFP_KERNEL);
	if (!second) {
		kfree(first); // and again below
		error = -ENOMEM;
	}
	kfree(second);
	kfree(first);
	return error;
}

static noinline int bad_unlock(void)
{
	struct item *item;

	mutex_lock(&bad_lock);
	item = kmalloc(sizeof(*item), GFP_KERNEL);
	if (!item)
		return -ENOMEM; // with the lock
	kfree(item);
	mutex_unlock(&bad_lock);
	return 0;
}

static noinline int bad_errno(void)
{
	struct item *item = kmalloc(sizeof(*item), GFP_KERNEL);

	if (!item)
		return -ENODEV; // not -ENOMEM
	kfree(item);
	return 0;
}

// Eleven paths without a fault.

static noinline int good_checked(void)
{
	struct item *item = kmalloc(sizeof(*item), GFP_KERNEL);

	if (!item)
		return -ENOMEM;
	kfree(item);
	return 0;
}

static noinline int good_unwound(void)
{
	struct item *first, *second, *third;
	int error = -ENOMEM;

	first = kmalloc(sizeof(*first), GFP_KERNEL);
	if (!first)
		return error;
	second = kmalloc(sizeof(*second), GFP_KERNEL);
	if (!second)
		goto free_first;
	third = kmalloc(sizeof(*third), GFP_KERNEL);
	if (!third)
		goto free_second;
	error = 0;
	kfree(third);
free_second:
	kfree(second);
free_first:
	kfree(first);
	return error;
}

static noinline int good_locked(void)
{
	struct item *item;
	int error = 0;

	mutex_lock(&good_lock);
	item = kmalloc(sizeof(*item), GFP_KERNEL);
	if (!item)
		error = -ENOMEM;
	kfree(item);
	mutex_unlock(&good_lock);
	return error;
}

static noinline int good_fallback(void)
{
	struct item *item = kmalloc(sizeof(*item), GFP_KERNEL);
	struct item *used = item ? item : &spare;

	used->value = 2;
	sink = used->value;
	kfree(item);
	return 0;
}

static noinline int good_again(void)
{
	struct item *item = kmalloc(sizeof(*item), GFP_KERNEL);

	if (!item)
		item = kmalloc(sizeof(*item), GFP_KERNEL);
	if (!item)
		return -ENOMEM;
	kfree(item);
	return 0;
}

static noinline int good_optional(void)
{
	char *text = kstrdup("optional", GFP_KERNEL);

	sink = text ? 1 : 0;
	kfree(text);
	return 0;
}

static noinline int good_list(void)
{
	LIST_HEAD(all);
	struct item *item, *next;
	int count, error = 0;

	for (count = 0; count < 3; count++) {
		item = kmalloc(sizeof(*item), GFP_KERNEL);
		if (!item) {
			error = -ENOMEM;
			break;
		}
		list_add(&item->list, &all);
	}
	list_for_each_entry_safe(item, next, &all, list) {
		list_del(&item->list);
		kfree(item);
	}
	return error;
}

static noinline struct item *made_item(void)
{
	struct item *item = kzalloc(sizeof(*item), GFP_KERNEL);

	return item ? item : ERR_PTR(-ENOMEM);
}

static noinline int good_pointer(void)
{
	struct item *item = made_item();

	if (IS_ERR(item))
		return PTR_ERR(item);
	kfree(item);
	return 0;
}

static noinline int good_array(void)
{
	long *numbers = kcalloc(32, sizeof(*numbers), GFP_KERNEL);

	if (!numbers)
		return -ENOMEM;
	numbers[31] = 1;
	sink = numbers[31];
	kfree(numbers);
	return 0;
}

static noinline int good_copy(void)
{
	char *copy = kmemdup("a text to copy", 15, GFP_KERNEL);

	if (!copy)
		return -ENOMEM;
	sink = copy[0];
	kfree(copy);
	return 0;
}

static noinline int good_demanded(void)
{
	struct item *item = kmalloc(sizeof(*item), GFP_KERNEL | __GFP_NOFAIL);

	item->value = 3; // this allocation cannot fail
	sink = item->value;
	kfree(item);
	return 0;
}

static const struct {
	const char *name;
	int (*run)(void);
} paths[] = {
#define PATH(name) { #name, name }
	PATH(bad_unchecked), PATH(bad_leak), PATH(bad_double_free), PATH(bad_unlock),
	PATH(bad_errno), PATH(good_checked), PATH(good_unwound), PATH(good_locked),
	PATH(good_fallback), PATH(good_again), PATH(good_optional), PATH(good_list),
	PATH(good_pointer), PATH(good_array), PATH(good_copy),
	PATH(good_demanded),
};

static ssize_t run_path(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	char name[32] = "";
	int k, error;

	if (size >= sizeof(name) || copy_from_user(name, from, size))
		return -EINVAL;
	strim(name);
	for (k = 0; k < ARRAY_SIZE(paths); k++) {
		if (!strcmp(name, paths[k].name)) {
			error = paths[k].run();
			return error ? error : size;
		}
	}
	return -ENOENT;
}

static const struct proc_ops operations = {
	.proc_write = run_path,
};

static int __init start(void)
{
	return proc_create("faulty", 0600, NULL, &operations) ? 0 : -ENOMEM;
}

static void __exit end(void)
{
	remove_proc_entry("faulty", NULL);
}

module_init(start);
module_exit(end);
