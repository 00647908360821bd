/*
 * Which system calls does the command make?
 * Run: kinst -s examples/system_calls.d -c 'wc -l /etc/passwd /proc/meminfo' wc
 */
#pragma D option quiet
syscall:::entry
/execname == $$1/
{
	@[probefunc] = count();
}
