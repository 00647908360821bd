/*
 * Which processes are created?
 * Run: kinst -s examples/forks.d -c 'for n in 1 2 3; do date | wc -c; done' sh
 */
#pragma D option quiet
fbt::kernel_clone:return
/execname == $$1/
{
	printf("%s(%d) forks %d\n", execname, pid, arg1);
}
