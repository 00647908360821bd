/*
 * What is a local variable of vfs_read() at an instruction?
 * Run: kinst -s examples/local_variables.d -c COMMAND
 */
#pragma D option quiet
kinst::vfs_read:0
/execname == "deeds" && locals->count == 4096/
{
	printf("count is %d\n", locals->count);
}
