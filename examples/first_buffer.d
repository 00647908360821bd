/*
 * What fits in the first buffer.  (bufpolicy fill)
 * Run: kinst -s examples/first_buffer.d -c COMMAND
 */
#pragma D option quiet
#pragma D option bufpolicy=fill
#pragma D option bufsize=64k
fbt::vfs_read:entry
/execname == "deeds"/
{
	printf("%s reads %d\n", execname, arg2);
}
