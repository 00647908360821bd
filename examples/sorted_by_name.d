/*
 * How often is each system call made, in the order of their names?  (aggsortkey)
 * Run: kinst -s examples/sorted_by_name.d -c 'wc -l /etc/passwd /proc/meminfo' wc
 */
#pragma D option quiet
#pragma D option aggsortkey
syscall:::entry
/execname == $$1/
{
	@[probefunc] = count();
}
