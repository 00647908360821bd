/*
 * How much memory is mapped, by each mmap(2)?
 * Run: kinst -s examples/mappings.d -c 'sort /proc/meminfo | tail -n 2' sort
 */
#pragma D option quiet
fbt::vm_mmap_pgoff:entry
/execname == $$1/
{
	printf("%s maps %d bytes\n", execname, arg2);
}
