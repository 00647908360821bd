/*
 * How often does each instruction of vfs_read() run?
 * Run: kinst -s examples/heat_map.d -c COMMAND
 */
#pragma D option quiet
kinst::vfs_read:
/execname == "deeds"/
{
	@[probename] = count();
}
