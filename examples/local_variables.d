/*
 * Which value has a local variable of vfs_read() at an instruction?
 * Run: kinst -s examples/local_variables.d -c 'dd if=/dev/zero of=/dev/null bs=4k count=50' dd
 */
#pragma D option quiet
kinst::vfs_read:0
/execname == $$1 && locals->count == 4096/
{
	printf("count is %d\n", locals->count);
}
