/*
 * How deep is the kernel's stack when memory is allocated?
 * Run: kinst -s examples/depth_of_stacks.d -c 'ls -R /proc/sys/net | wc -l'
 */
#pragma D option quiet
fbt::kmem_cache_alloc:entry { @["frames"] = lquantize(stackdepth, 0, 60, 5); }
