/*
 * How much memory is mapped, by each mmap(2)?
 * Run: kinst -s examples/mappings.d -c COMMAND
 */
#pragma D option quiet
fbt::vm_mmap_pgoff:entry
/execname == "deeds"/
{
	printf("%s maps %d bytes\n", execname, arg2);
}
