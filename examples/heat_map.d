/*
 * How often does each instruction of vfs_read() run?
 * Run: kinst -s examples/heat_map.d -c 'wc -l /etc/passwd /proc/meminfo' wc
 */
#pragma D option quiet
kinst::vfs_read:
/execname == $$1/
{
	@[probename] = count();
}
