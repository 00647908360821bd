/*
 * Who copies pages on write after a fork?
 * Run: kinst -s examples/copy_on_write.d -c COMMAND
 */
#pragma D option quiet
fbt::wp_page_copy:entry { @[execname] = count(); }
