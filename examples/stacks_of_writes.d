/*
 * By which ways is vfs_write() reached?
 * Run: kinst -s examples/stacks_of_writes.d -c COMMAND
 */
#pragma D option quiet
fbt::vfs_write:entry
/execname == "deeds"/
{
	@[stack()] = count();
}
