/*
 * Which sizes does the kernel allocate with kmalloc()?
 * Run: kinst -s examples/kmalloc_sizes.d -c 'ls -R /proc/sys/net | wc -l'
 */
#pragma D option quiet
fbt::__kmalloc:entry { @["bytes"] = quantize(arg0); }
