/*
 * Which programs have page faults?
 * Run: kinst -s examples/page_faults.d -c 'date; sort /proc/meminfo | tail -n 2'
 */
#pragma D option quiet
fbt::handle_mm_fault:entry { @[execname] = count(); }
