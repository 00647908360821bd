/*
 * In which system calls does the command spend its time?  (ns, sum)
 * Run: kinst -s examples/system_call_time.d -c 'dd if=/dev/zero of=/dev/null bs=64k count=200'
 */
#pragma D option quiet
syscall:::entry
/pid == $target/
{
	self->start = timestamp;
}
syscall:::return
/self->start/
{
	@[probefunc] = sum(timestamp - self->start);
	self->start = 0;
}
