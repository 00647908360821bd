/* The machine has pushed what the processor pushes: ss, rsp, rflags, cs, rip, and after them for
 * a page fault an error code. */
	.globl break_entry, fault_entry
	.text
	.type break_entry, @function
break_entry:
	push $0
	call save
	call handle_break
	jmp leave
	.size break_entry, . - break_entry

	.type fault_entry, @function
fault_entry:
	call save
	call handle_fault
	test %eax, %eax
	jz leave
	ud2
	.size fault_entry, . - fault_entry

	/* Saved registers at rsp and in rdi; PC is 16. */
	.type save, @function
save:
	xchg %rax, (%rsp)
	push %rbx; push %rcx; push %rdx; push %rsi; push %rdi; push %rbp; push %r8; push %r9
	push %r10; push %r11; push %r12; push %r13; push %r14; push %r15
	cld
	mov %rsp, %rdi
	jmp *%rax
	.size save, . - save

	/* The stack of who was interrupted is the same: what iret would do goes below its end. */
	.type leave, @function
leave:
	mov 8*19(%rsp), %rbx		/* rsp */
	mov 8*16(%rsp), %rax		/* rip */
	mov 8*18(%rsp), %rcx		/* rflags */
	mov %rax, -8(%rbx)
	mov %rcx, -16(%rbx)
	sub $16, %rbx
	mov %rbx, 8*16(%rsp)
	pop %r15; pop %r14; pop %r13; pop %r12; pop %r11; pop %r10
	pop %r9; pop %r8; pop %rbp; pop %rdi; pop %rsi; pop %rdx; pop %rcx; pop %rbx; pop %rax
	mov 8(%rsp), %rsp
	popf
	ret
	.size leave, . - leave
