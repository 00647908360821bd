/*
 * How many page faults are reads, and how many are writes?  (FAULT_FLAG_WRITE is 1)
 * Run: kinst -s examples/page_faults_writing.d -c 'date; sort /proc/meminfo | tail -n 2'
 */
#pragma D option quiet
fbt::handle_mm_fault:entry
{
	@[execname, arg2 & 1 ? "writing" : "reading"] = count();
}
