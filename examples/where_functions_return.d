/*
 * At which instructions does vfs_read() return?  (arg0 is the offset)
 * Run: kinst -s examples/where_functions_return.d -c 'wc -l /etc/passwd /proc/meminfo' wc
 */
#pragma D option quiet
fbt::vfs_read:return
/execname == $$1/
{
	@[probefunc, arg0] = count();
}
