/*
 * Where does the command's time go, by system call?  (ns, sum)
 * Run: kinst -s examples/system_call_time.d -c COMMAND
 */
#pragma D option quiet
fbt::__x64_sys_*:entry
/pid == $target/
{
	self->start = timestamp;
}
fbt::__x64_sys_*:return
/self->start/
{
	@[probefunc] = sum(timestamp - self->start);
	self->start = 0;
}
