/*
 * Which processes are made?
 * Run: kinst -s examples/forks.d -c COMMAND
 */
#pragma D option quiet
fbt::kernel_clone:return
/execname == "deeds"/
{
	printf("%s(%d) forks %d\n", execname, pid, arg1);
}
