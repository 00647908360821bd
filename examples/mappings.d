/*
 * How much memory is mapped, by each mmap(2)?
 * Run: kinst -s examples/mappings.d -c 'dd if=/dev/zero of=/dev/null bs=1M count=3' dd
 */
#pragma D option quiet
fbt::vm_mmap_pgoff:entry
/execname == $$1/
{
	printf("%s maps %d bytes\n", execname, arg2);
}
