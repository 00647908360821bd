/*
 * Where does the inline function fdget_pos() run?  (caller and offset of each copy)
 * Run: kinst -s examples/inline_fdget_pos.d -c 'wc -l /etc/passwd /proc/meminfo'
 */
#pragma D option quiet
kinst::fdget_pos:entry { @[probefunc, probename] = count(); }
