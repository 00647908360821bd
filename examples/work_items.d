/*
 * Which functions does the kernel run from its work queues?
 * Run: kinst -s examples/work_items.d -c 'ls -R /proc/sys/net | wc -l'
 */
#pragma D option quiet
fbt::process_one_work:entry { @[func((uintptr_t)args[1]->func)] = count(); }
