/*
 * System calls, the most frequent first.  (aggsortrev)
 * Run: kinst -s examples/most_frequent_first.d -c COMMAND
 */
#pragma D option quiet
#pragma D option aggsortrev
fbt::__x64_sys_*:entry
/execname == "deeds"/
{
	@[probefunc] = count();
}
