/* A riscv64 kernel of a page: OpenSBI enters at the physical address of _start, in supervisor mode and
   without translation; kmain runs at its linked address, in the last 2 GB, by Sv39 tables of ours. */
	.equ	VIRTUAL, 0xffffffff00000000	/* linked minus physical addresses */
	.equ	LEAF, 0xcf			/* valid, readable, writable, executable, accessed, dirty */

	.section .text.start, "ax"
	.globl	_start
_start:
	lla	t0, tables
	li	t1, (0x80000000 >> 2) | LEAF	/* one gigabyte where it is, */
	sd	t1, 8 * 2(t0)
	li	t2, 8 * 510			/* and the same at 0xffffffff80000000 */
	add	t2, t2, t0
	sd	t1, 0(t2)
	srli	t0, t0, 12
	li	t1, 8 << 60			/* Sv39 */
	or	t0, t0, t1
	sfence.vma
	csrw	satp, t0
	sfence.vma
	li	t1, VIRTUAL
	lla	t0, high
	add	t0, t0, t1
	jr	t0
high:
	lla	sp, stack_end
	lla	t0, trap
	csrw	stvec, t0
	call	kmain

	.balign	4
trap:	j	trap

	.section .bss
	.balign	4096
tables:	.space	4096
	.balign	16
	.space	16384
stack_end:
