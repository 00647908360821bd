/*
 * Which programs are executed?
 * Run: kinst -s examples/execs.d -c 'date; uname -r'
 */
#pragma D option quiet
fbt::begin_new_exec:entry
{
	printf("%-16s %6d %s\n", execname, pid, stringof(args[0]->filename));
}
