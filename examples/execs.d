/*
 * Which programs are executed?
 * Run: kinst -s examples/execs.d -c COMMAND
 */
#pragma D option quiet
fbt::begin_new_exec:entry
{
	printf("%-16s %6d %s\n", execname, pid, stringof(args[0]->filename));
}
