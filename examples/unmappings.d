/*
 * How much memory is unmapped by munmap(2)?
 * Run: kinst -s examples/unmappings.d -c 'bzip2 </etc/passwd | bunzip2' bunzip2
 */
#pragma D option quiet
fbt::__x64_sys_munmap:entry
/execname == $$1/
{
	@[execname, args[0]->si] = count();
}
