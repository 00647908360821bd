// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * /dev/kinst: lets kinst read kernel memory, have memory within branch reach of
 * kernel text, and plant sites while the kernel runs.  The device has one owner
 * at a time; when the owner ends for any reason, on_release() restores all.
 *
 * A site is a jump, or a breakpoint over an instruction's first byte.  text.c
 * and plant.c write them; breakpoints.c handles the breakpoints.
 */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <asm/processor.h>

#include "parts.h"

#define MOST_READ (1UL << 30)

DEFINE_MUTEX(lock); /* protects all that the owner can change */
static bool owned;

bool is_owned(void)
{
	return owned;
}

static int read_memory(const struct kinst_read *ask)
{
	u8 __user *to = u64_to_user_ptr(ask->buffer);
	unsigned long done, part;
	void *page;
	int error = 0;

	if (ask->size > MOST_READ || ask->address + ask->size < ask->address)
		return -EINVAL;
	page = (void *)__get_free_page(GFP_KERNEL);
	if (!page)
		return -ENOMEM;
	for (done = 0; done < ask->size && !error; done += part) {
		unsigned long from = ask->address + done;

		part = min_t(unsigned long, ask->size - done,
			     PAGE_SIZE - offset_in_page(from));
		error = copy_from_kernel_nofault(page, (void *)from, part);
		if (!error && copy_to_user(to + done, page, part))
			error = -EFAULT;
		cond_resched();
	}
	free_page((unsigned long)page);
	return error ? -EFAULT : 0;
}

static void tell(struct kinst_info *info)
{
	memset(info, 0, sizeof(*info));
	info->version = KINST_VERSION;
	info->cpus = num_online_cpus();
	info->text = kernel.lookup("_text");
	tell_scratch(info);
	info->planted = planted_sites();
	info->stuck = are_stuck() ? planted_sites() : 0;
}

static long asked(unsigned int command, void *value)
{
	switch (command) {
	case KINST_INFO:
		tell(value);
		return 0;
	case KINST_READ:
		return read_memory(value);
	case KINST_SCRATCH:
		return make_scratch(value);
	case KINST_SEAL:
		return seal(value);
	case KINST_PLANT:
		return plant(value);
	case KINST_TIMER:
		return start_timer(value);
	case KINST_MISSED:
		return count_missed(value);
	case KINST_UNPLANT:
		unplant();
		((struct kinst_unplant *)value)->stuck = planted_sites();
		return 0;
	case KINST_COUNTERS:
		return make_counters(value);
	case KINST_EMPTY:
		return empty_scratch();
	case KINST_GATHER:
		return gather(value);
	case KINST_BEAT:
		((struct kinst_beat *)value)->lifted = is_lifted();
		return 0;
	}
	return -ENOTTY;
}

static long on_ioctl(struct file *file, unsigned int command,
		     unsigned long argument)
{
	void __user *where = (void __user *)argument;
	union {
		struct kinst_info info;
		struct kinst_read read;
		struct kinst_scratch scratch;
		struct kinst_seal seal;
		struct kinst_plant plant;
		struct kinst_timer timer;
		struct kinst_missed missed;
		struct kinst_unplant unplant;
		struct kinst_beat beat;
		struct kinst_counters counters;
		struct kinst_gather gather;
	} value = {};
	size_t size = _IOC_SIZE(command);
	long error;

	if (_IOC_TYPE(command) != 'k' || size > sizeof(value))
		return -ENOTTY;
	if (_IOC_DIR(command) & _IOC_WRITE &&
	    copy_from_user(&value, where, size))
		return -EFAULT;
	mutex_lock(&lock);
	hear();
	error = asked(command, &value);
	hear();
	mutex_unlock(&lock);
	if (_IOC_DIR(command) & _IOC_READ && error != -ENOTTY &&
	    copy_to_user(where, &value, size))
		return -EFAULT;
	return error;
}

static int on_mmap(struct file *file, struct vm_area_struct *area)
{
	if (!(area->vm_flags & VM_SHARED) || area->vm_flags & VM_EXEC)
		return -EINVAL;
	return show_scratch(area);
}

static int on_open(struct inode *inode, struct file *file)
{
	int error = 0;

	if (!capable(CAP_SYS_MODULE))
		return -EPERM;
	mutex_lock(&lock);
	if (owned)
		error = -EBUSY;
	else if (are_stuck())
		error = -ETXTBSY;
	else
		owned = true;
	mutex_unlock(&lock);
	return error;
}

static int on_release(struct inode *inode, struct file *file)
{
	mutex_lock(&lock);
	unplant();
	owned = false;
	leave_scratch();
	forget_lifted();
	mutex_unlock(&lock);
	return 0;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = on_open,
	.release = on_release,
	.unlocked_ioctl = on_ioctl,
	.mmap = on_mmap,
	.llseek = noop_llseek,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "kinst",
	.mode = 0600,
	.fops = &operations,
};

static int __init kinst_init(void)
{
	int error;

#ifdef X86_FEATURE_IBT
	/* on_die() calls code without ENDBR. */
	if (cpu_feature_enabled(X86_FEATURE_IBT)) {
		pr_err("indirect branch tracking is on: boot with ibt=off\n");
		return -EOPNOTSUPP;
	}
#endif
	error = look_up();
	if (error)
		return error;
	set_up_text();
	set_up_waiting();
	error = start_breakpoints();
	if (error)
		return error;
	error = set_up_timers();
	if (error)
		goto no_timers;
	error = misc_register(&device);
	if (error)
		goto no_device;
	return 0;
no_device:
	end_timers();
no_timers:
	stop_breakpoints();
	return error;
}

static void __exit kinst_exit(void)
{
	misc_deregister(&device);
	end_waiting();
	stop_retrying();
	stop_breakpoints();
	end_marks();
	end_scratch();
	end_timers();
}

module_init(kinst_init);
module_exit(kinst_exit);
MODULE_AUTHOR("The authors of kinst");
MODULE_DESCRIPTION("Instruction tracing of the running kernel for kinst");
MODULE_LICENSE("Dual BSD/GPL");
