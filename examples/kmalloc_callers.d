/*
 * Which functions of the kernel call kmalloc(), and for how many bytes?  (caller)
 * Run: kinst -s examples/kmalloc_callers.d -c 'ls -R /proc/sys/net | wc -l'
 */
#pragma D option quiet
fbt::__kmalloc:entry { @[func(caller)] = sum(arg0); }
END { trunc(@, 10); printa("%40a %@10d\n", @); }
