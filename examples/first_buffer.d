/*
 * Which reads fit in the first buffer?  (bufpolicy=fill)
 * Run: kinst -s examples/first_buffer.d -c 'dd if=/dev/zero of=/dev/null bs=4k count=50' dd
 */
#pragma D option quiet
#pragma D option bufpolicy=fill
#pragma D option bufsize=64k
fbt::vfs_read:entry
/execname == $$1/
{
	printf("%s reads %d\n", execname, arg2);
}
