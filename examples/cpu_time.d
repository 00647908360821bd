/*
 * For how long does each program run at most between two switches?  (vtimestamp, ns)
 * Run: kinst -s examples/cpu_time.d -c 'md5sum /bin/busybox'
 */
#pragma D option quiet
self uint64_t v;
fbt::schedule:entry
/self->v/
{
	@[execname] = max(vtimestamp - self->v);
}
fbt::schedule:entry { self->v = vtimestamp; }
