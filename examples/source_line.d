/*
 * How often does the first line of vfs_read() run?
 * Run: kinst -s examples/source_line.d -c 'wc -l /etc/passwd /proc/meminfo' wc
 */
#pragma D option quiet
kinst::vfs_read:0
/execname == $$1/
{
	@[probefunc, probename] = count();
}
