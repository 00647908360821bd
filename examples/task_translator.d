/*
 * Which processes fork, and which process is their parent?  (a translator of one's own)
 * Run: kinst -s examples/task_translator.d -c 'date | wc -c'
 */
#pragma D option quiet
struct who { int pid; string name; string parent; };
translator struct who < struct task_struct *t > {
	pid = t->tgid;
	name = stringof(t->comm);
	parent = stringof(t->real_parent->comm);
};
fbt::kernel_clone:entry
{
	printf("%6d %-16s <- %s\n", xlate <struct who> (curthread).pid,
	    xlate <struct who> (curthread).name, xlate <struct who> (curthread).parent);
}
