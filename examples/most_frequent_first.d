/*
 * Which system calls are the most frequent?  (aggsortrev)
 * Run: kinst -s examples/most_frequent_first.d -c 'wc -l /etc/passwd /proc/meminfo' wc
 */
#pragma D option quiet
#pragma D option aggsortrev
syscall:::entry
/execname == $$1/
{
	@[probefunc] = count();
}
