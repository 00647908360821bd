/*
 * From which slab caches are objects allocated?
 * Run: kinst -s examples/caches.d -c 'ls -R /proc/sys/net | wc -l'
 */
#pragma D option quiet
fbt::kmem_cache_alloc:entry { @[stringof(args[0]->name)] = count(); }
