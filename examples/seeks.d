/*
 * Where do processes seek to?
 * Run: kinst -s examples/seeks.d -c 'dd if=/etc/passwd of=/dev/null bs=1 count=4 skip=10' dd
 */
#pragma D option quiet
#pragma D option aggsortkey
fbt::ksys_lseek:entry
/execname == $$1/
{
	@[execname, arg1] = count();
}
END { printa("%s to %d: %@d\n", @); }
