/*
 * How big are reads, in steps of 1000?  (lquantize)
 * Run: kinst -s examples/linear.d -c COMMAND
 */
#pragma D option quiet
fbt::vfs_read:entry
/execname == "deeds"/
{
	@ = lquantize(arg2, 0, 5000, 1000);
}
