/* The machine has done what the processor does: ELR_EL1 and SPSR_EL1 are set, interrupts off. */
	.macro	entry name, handler
	.globl	\name
	.type	\name, %function
\name:
	sub	sp, sp, #288
	stp	x0, x1, [sp]
	stp	x2, x3, [sp, #16]
	stp	x4, x5, [sp, #32]
	stp	x6, x7, [sp, #48]
	stp	x8, x9, [sp, #64]
	stp	x10, x11, [sp, #80]
	stp	x12, x13, [sp, #96]
	stp	x14, x15, [sp, #112]
	stp	x16, x17, [sp, #128]
	stp	x18, x19, [sp, #144]
	stp	x20, x21, [sp, #160]
	stp	x22, x23, [sp, #176]
	stp	x24, x25, [sp, #192]
	stp	x26, x27, [sp, #208]
	stp	x28, x29, [sp, #224]
	mrs	x21, elr_el1
	mrs	x22, spsr_el1
	stp	x30, x21, [sp, #240]	/* PC is 31 */
	str	x22, [sp, #256]
	mov	x0, sp
	bl	\handler
	.endm

	.text
	entry	break_entry, handle_break
	b	leave
	.size	break_entry, . - break_entry

	entry	fault_entry, handle_fault
	cbz	w0, leave
	hlt	#0
	.size	fault_entry, . - fault_entry

	.type	leave, %function
leave:
	ldr	x22, [sp, #256]
	ldp	x30, x21, [sp, #240]
	msr	elr_el1, x21
	msr	spsr_el1, x22
	ldp	x0, x1, [sp]
	ldp	x2, x3, [sp, #16]
	ldp	x4, x5, [sp, #32]
	ldp	x6, x7, [sp, #48]
	ldp	x8, x9, [sp, #64]
	ldp	x10, x11, [sp, #80]
	ldp	x12, x13, [sp, #96]
	ldp	x14, x15, [sp, #112]
	ldp	x16, x17, [sp, #128]
	ldp	x18, x19, [sp, #144]
	ldp	x20, x21, [sp, #160]
	ldp	x22, x23, [sp, #176]
	ldp	x24, x25, [sp, #192]
	ldp	x26, x27, [sp, #208]
	ldp	x28, x29, [sp, #224]
	add	sp, sp, #288
	eret
	.size	leave, . - leave
