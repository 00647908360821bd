/*
 * How much is unmapped by munmap(2)?
 * Run: kinst -s examples/unmappings.d -c COMMAND
 */
#pragma D option quiet
fbt::__x64_sys_munmap:entry
/execname == "deeds"/
{
	@[execname, args[0]->si] = count();
}
