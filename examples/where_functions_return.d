/*
 * At which instructions does vfs_read() return?  (arg0 is the offset)
 * Run: kinst -s examples/where_functions_return.d -c COMMAND
 */
#pragma D option quiet
fbt::vfs_read:return
/execname == "deeds"/
{
	@[probefunc, arg0] = count();
}
