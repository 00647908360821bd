/*
 * Which programs copy pages when they write after a fork?
 * Run: kinst -s examples/copy_on_write.d -c 'for n in 1 2 3; do date | wc -c; done'
 */
#pragma D option quiet
fbt::wp_page_copy:entry { @[execname] = count(); }
