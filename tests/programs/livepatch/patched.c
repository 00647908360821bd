// SPDX-License-Identifier: GPL-2.0
// A livepatch of what /proc/cmdline shows.
#include <linux/livepatch.h>
#include <linux/module.h>
#include <linux/seq_file.h>

static int patched_show(struct seq_file *m, void *v)
{
	seq_puts(m, "patched by a livepatch\n");
	return 0;
}

static struct klp_func functions[] = {
	{ .old_name = "cmdline_proc_show", .new_func = patched_show },
	{ }
};

static struct klp_object objects[] = { { .funcs = functions }, { } };
static struct klp_patch patch = { .mod = THIS_MODULE, .objs = objects };

static int __init begin(void)
{
	return klp_enable_patch(&patch);
}

static void __exit end(void)
{
}

module_init(begin);
module_exit(end);
MODULE_LICENSE("GPL");
MODULE_INFO(livepatch, "Y");
