/*
 * Which system calls does the command make?
 * Run: kinst -s examples/system_calls.d -c COMMAND
 */
#pragma D option quiet
fbt::__x64_sys_*:entry
/execname == "deeds"/
{
	@[probefunc] = count();
}
