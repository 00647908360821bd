/*
 * How often does the first instruction of vfs_read() run?
 * Run: kinst -s examples/first_instruction.d -c 'wc -l /etc/passwd /proc/meminfo' wc
 */
#pragma D option quiet
kinst::vfs_read:0
/execname == $$1/
{
	@[probefunc, probename] = count();
}
