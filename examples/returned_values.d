/*
 * What does vfs_read() return?
 * Run: kinst -s examples/returned_values.d -c 'dd if=/dev/zero of=/dev/null bs=4k count=50' dd
 */
#pragma D option quiet
fbt::vfs_read:return
/execname == $$1/
{
	@ = quantize((long)arg1);
}
