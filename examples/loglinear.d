/*
 * How big are reads, by powers of ten in ten steps each?  (llquantize)
 * Run: kinst -s examples/loglinear.d -c 'for size in 40 400 3000; do dd if=/dev/zero of=/dev/null bs=$size count=20; done' dd
 */
#pragma D option quiet
fbt::vfs_read:entry
/execname == $$1/
{
	@ = llquantize(arg2, 10, 0, 4, 10);
}
