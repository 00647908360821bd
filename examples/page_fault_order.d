/*
 * Do page faults touch neighbouring pages one after the other?
 * Run: kinst -s examples/page_fault_order.d -c 'dd if=/dev/zero of=/dev/null bs=1M count=3' dd
 */
#pragma D option quiet
self uint64_t last;
int in_order;
fbt::handle_mm_fault:entry
/execname == $$1 && self->last && arg1 >> 12 == self->last + 1/
{
	in_order++;
}
fbt::handle_mm_fault:entry
/execname == $$1/
{
	self->last = arg1 >> 12;
}
END { printf("%s\n", in_order >= 63 ? "64 neighbours or more" : "few"); }
