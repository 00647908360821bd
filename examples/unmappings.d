/*
 * How much is unmapped by munmap(2)?
 * Run: kinst -s examples/unmappings.d -c 'sort /proc/meminfo | tail -n 2' sort
 */
#pragma D option quiet
fbt::__x64_sys_munmap:entry
/execname == $$1/
{
	@[execname, args[0]->si] = count();
}
