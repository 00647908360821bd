/*
 * How often does a thread come back on another CPU?
 * Run: kinst -s examples/migrations.d -c COMMAND
 */
#pragma D option quiet
self int cpu;
int changes;
fbt::__x64_sys_*:entry
/execname == "deeds" && self->cpu && self->cpu != cpu + 1/
{
	changes++;
}
fbt::__x64_sys_*:entry
/execname == "deeds"/
{
	self->cpu = cpu + 1;
}
END { printf("cpu changes of deeds: %d\n", changes); }
