/*
 * Do as many bytes leave a pipe as enter it?
 * Run: kinst -s examples/pipe_bytes.d -c 'for n in 1 2 3; do echo hello | { read word; }; done' sh
 */
#pragma D option quiet
int64_t in, out;
fbt::pipe_write:return / execname == $$1 && (long)arg1 > 0 / { in += arg1; }
fbt::pipe_read:return / execname == $$1 && (long)arg1 > 0 / { out += arg1; }
END { printf("writers: %d, readers: %d\n", in, out); }
