/*
 * By which calls is vfs_write() reached?
 * Run: kinst -s examples/stacks_of_writes.d -c 'dd if=/dev/zero of=/dev/null bs=4k count=50' dd
 */
#pragma D option quiet
fbt::vfs_write:entry
/execname == $$1/
{
	@[stack()] = count();
}
