/*
 * What were the last writes before the trace ended?  (bufpolicy=ring)
 * Run: kinst -s examples/last_ones.d -c 'dd if=/dev/zero of=/dev/null bs=4k count=50' dd
 */
#pragma D option quiet
#pragma D option bufpolicy=ring
#pragma D option bufsize=16k
fbt::vfs_write:entry
/execname == $$1/
{
	printf("%s writes %d bytes\n", execname, arg2);
}
