/*
 * What does vfs_read() return?
 * Run: kinst -s examples/returned_values.d -c COMMAND
 */
#pragma D option quiet
fbt::vfs_read:return
/execname == "deeds"/
{
	@ = quantize((long)arg1);
}
