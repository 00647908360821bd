/*
 * How big are reads, by powers of ten in ten steps each?  (llquantize)
 * Run: kinst -s examples/loglinear.d -c COMMAND
 */
#pragma D option quiet
fbt::vfs_read:entry
/execname == "deeds"/
{
	@ = llquantize(arg2, 10, 0, 4, 10);
}
