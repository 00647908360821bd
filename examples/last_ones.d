/*
 * The last writes before the end.  (ring buffer)
 * Run: kinst -s examples/last_ones.d -c COMMAND
 */
#pragma D option quiet
#pragma D option bufpolicy=ring
#pragma D option bufsize=16k
fbt::vfs_write:entry
/execname == "deeds"/
{
	printf("%s writes %d bytes\n", execname, arg2);
}
