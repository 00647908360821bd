/*
 * How long does vfs_read() take, by process?
 * Run: kinst -s examples/read_latency.d -c 'dd if=/dev/zero of=/dev/null bs=64k count=200; wc -l /proc/meminfo'
 */
#pragma D option quiet
fbt::vfs_read:entry { self->start = timestamp; }
fbt::vfs_read:return
/self->start/
{
	@[execname] = quantize(timestamp - self->start);
	self->start = 0;
}
END { printa("  %s\n%@d\n", @); }
