/* The machine has done what the processor does: sepc, scause and sstatus are set. */
	.macro	general op
	\op	x1, 8(sp)
	.irp	n, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
	\op	x\n, 8*\n(sp)
	.endr
	.endm

	.macro	entry name, handler
	.globl	\name
	.type	\name, @function
\name:
	addi	sp, sp, -272
	general	sd
	csrr	t0, sepc
	csrr	t1, sstatus
	sd	t0, 0(sp)		/* PC is 0 */
	sd	t1, 256(sp)
	mv	a0, sp
	call	\handler
	.endm

	.text
	.option norelax
	entry	break_entry, handle_break
	j	leave
	.size	break_entry, . - break_entry

	entry	fault_entry, handle_fault
	beqz	a0, leave
	unimp
	.size	fault_entry, . - fault_entry

	.type	leave, @function
leave:
	ld	t0, 0(sp)
	ld	t1, 256(sp)
	csrw	sepc, t0
	csrw	sstatus, t1
	general	ld
	addi	sp, sp, 272
	sret
	.size	leave, . - leave
