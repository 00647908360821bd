/*
 * How often does a thread continue on another CPU?
 * Run: kinst -s examples/migrations.d -c 'for n in $(seq 30); do usleep 10000; done' sh
 */
#pragma D option quiet
self int cpu;
int changes;
syscall:::entry
/execname == $$1 && self->cpu && self->cpu != cpu + 1/
{
	changes++;
}
syscall:::entry
/execname == $$1/
{
	self->cpu = cpu + 1;
}
END { printf("cpu changes of %s: %d\n", $$1, changes); }
