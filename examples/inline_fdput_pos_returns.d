/*
 * Does each entry of the inline function fdput_pos() have a return?
 * Run: kinst -s examples/inline_fdput_pos_returns.d -c 'wc -l /etc/passwd /proc/meminfo' wc
 */
#pragma D option quiet
kinst::fdput_pos:entry / execname == $$1 / { in++; }
kinst::fdput_pos:return / execname == $$1 / { out++; }
END { printf("in %d, out %d\n", in, out); }
