/*
 * How long do processes live?
 * Run: kinst -s examples/lifetimes.d -c 'sleep 0.01; date | wc -c'
 */
#pragma D option quiet
fbt::wake_up_new_task:entry { born[args[0]->pid] = timestamp; }
fbt::do_exit:entry
/born[pid]/
{
	printf("%-16s %6d %8d us\n", execname, pid, (timestamp - born[pid]) / 1000);
	born[pid] = 0;
}
