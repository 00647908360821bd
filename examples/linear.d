/*
 * How big are reads, in steps of 1000?  (lquantize)
 * Run: kinst -s examples/linear.d -c 'dd if=/dev/zero of=/dev/null bs=2500 count=20; dd if=/dev/zero of=/dev/null bs=4000 count=20' dd
 */
#pragma D option quiet
fbt::vfs_read:entry
/execname == $$1/
{
	@ = lquantize(arg2, 0, 5000, 1000);
}
