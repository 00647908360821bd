/*
 * How much time is between two reads of the same thread?
 * Run: kinst -s examples/gaps_between_reads.d -c 'dd if=/dev/zero of=/dev/null bs=4k count=50' dd
 */
#pragma D option quiet
self uint64_t last;
fbt::vfs_read:entry
/execname == $$1 && self->last/
{
	@["ns between reads"] = quantize(timestamp - self->last);
}
fbt::vfs_read:entry
/execname == $$1/
{
	self->last = timestamp;
}
