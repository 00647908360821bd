/*
 * With which status do processes end?
 * Run: kinst -s examples/exits.d -c "true; false; sh -c 'exit 7'"
 */
#pragma D option quiet
fbt::do_exit:entry
{
	printf("%s %d ends with %d\n", execname, pid, (args[0] >> 8) & 0xff);
}
