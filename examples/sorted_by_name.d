/*
 * System calls by name instead of by count.  (aggsortkey)
 * Run: kinst -s examples/sorted_by_name.d -c COMMAND
 */
#pragma D option quiet
#pragma D option aggsortkey
fbt::__x64_sys_*:entry
/execname == "deeds"/
{
	@[probefunc] = count();
}
