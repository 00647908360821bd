/*
 * How much memory is unmapped by munmap(2)?
 * Run: kinst -s examples/unmappings.d -c 'bzip2 </etc/passwd | bunzip2' bunzip2
 */
#pragma D option quiet
syscall::munmap:entry
/execname == $$1/
{
	@[execname, arg1] = count();
}
