/*
 * System calls of the command and all that descend from it.
 * Run: kinst -s examples/following_children.d -c 'date; uname -r'
 */
#pragma D option quiet
fbt::__x64_sys_*:entry
/progenyof($target)/
{
	@[pid] = count();
}
