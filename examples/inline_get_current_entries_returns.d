/*
 * Does each entry of the inline function fdput_pos() have its return?
 * Run: kinst -s examples/inline_get_current_entries_returns.d -c COMMAND
 */
#pragma D option quiet
kinst::fdput_pos:entry / execname == "deeds" / { in++; }
kinst::fdput_pos:return / execname == "deeds" / { out++; }
END { printf("in %d, out %d\n", in, out); }
