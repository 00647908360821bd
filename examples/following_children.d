/*
 * System calls of the command and all that descend from it.
 * Run: kinst -s examples/following_children.d -c COMMAND
 */
#pragma D option quiet
fbt::__x64_sys_*:entry
/progenyof($target)/
{
	@[pid] = count();
}
