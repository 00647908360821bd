/*
 * Which registers does vfs_read() begin with?
 * Run: kinst -s examples/registers.d -c COMMAND
 */
#pragma D option quiet
kinst::vfs_read:0
/execname == "deeds"/
{
	printf("rdi %x rsi %x rdx %d\n", regs[R_RDI], regs[R_RSI], regs[R_RDX]);
}
