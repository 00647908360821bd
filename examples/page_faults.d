/*
 * Who has page faults?
 * Run: kinst -s examples/page_faults.d -c COMMAND
 */
#pragma D option quiet
fbt::handle_mm_fault:entry { @[execname] = count(); }
