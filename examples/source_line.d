/*
 * How often does the first line of vfs_read() run?
 * Run: kinst -s examples/source_line.d -c COMMAND
 */
#pragma D option quiet
kinst::vfs_read:0
/execname == "deeds"/
{
	@[probefunc, probename] = count();
}
