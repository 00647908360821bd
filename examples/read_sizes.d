/*
 * How big are the buffers that a process reads into, as a distribution?
 * Run: kinst -s examples/read_sizes.d -c 'dd if=/dev/zero of=/dev/null bs=64 count=20; dd if=/dev/zero of=/dev/null bs=4k count=5' dd
 */
#pragma D option quiet
fbt::ksys_read:entry
/execname == $$1/
{
	@["bytes asked for"] = quantize(args[2]);
}
