// SPDX-License-Identifier: GPL-2.0
/*
 * Arms the debug registers of a guest under KVM on an emulated AMD processor.
 *
 * VMRUN loads DR7 from the VMCB (AMD APM volume 2, 15.5.1). QEMU's TCG stores the value and looks
 * for no breakpoints (7.2: target/i386/tcg/sysemu/svm_helper.c, helper_vmrun): it does so only for
 * the instruction MOV to DR7. So this module executes that instruction, with the value that KVM has
 * put into the VMCB, before KVM enters a guest that a debugger has given hardware breakpoints; and
 * clears DR7 when the guest has left.
 */
#include <linux/kprobes.h>
#include <linux/kvm_host.h>
#include <linux/module.h>
#include <asm/debugreg.h>

static int entering(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	struct kvm_vcpu *vcpu = (struct kvm_vcpu *)regs->di;

	if (!(vcpu->guest_debug & KVM_GUESTDBG_USE_HW_BP))
		return 1; /* the return is not needed */
	set_debugreg(vcpu->arch.guest_debug_dr7, 7);
	return 0;
}

static int left(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	set_debugreg(0, 7);
	return 0;
}

static struct kretprobe run = {
	.kp.symbol_name = "svm_vcpu_run",
	.entry_handler = entering,
	.handler = left,
	.maxactive = 16,
};

static int __init rig_init(void)
{
	return register_kretprobe(&run);
}

static void __exit rig_exit(void)
{
	unregister_kretprobe(&run);
}

module_init(rig_init);
module_exit(rig_exit);
MODULE_DESCRIPTION("Debug registers of KVM's guests on an emulated processor");
MODULE_LICENSE("GPL");
