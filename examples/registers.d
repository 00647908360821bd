/*
 * Which values do the registers have when vfs_read() begins?
 * Run: kinst -s examples/registers.d -c 'wc -l /etc/passwd /proc/meminfo' wc
 */
#pragma D option quiet
kinst::vfs_read:0
/execname == $$1/
{
	printf("rdi %x rsi %x rdx %d\n", regs[R_RDI], regs[R_RSI], regs[R_RDX]);
}
