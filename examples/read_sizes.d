/*
 * How big are the buffers that a process reads into, as a distribution?
 * Run: kinst -s examples/read_sizes.d -c COMMAND
 */
#pragma D option quiet
fbt::ksys_read:entry
/execname == "deeds"/
{
	@["bytes asked for"] = quantize(args[2]);
}
