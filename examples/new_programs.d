/*
 * Which programs are started, by which process, and which cannot be?
 * Run: kinst -s examples/new_programs.d -c 'cat /etc/passwd | wc -l; /bin/busybox true; /no/such; true'
 */
#pragma D option quiet
proc:::exec { self->path = stringof(args[0]); }
proc:::exec-success { printf("%d, child of %d, runs %s\n", pid, ppid, self->path); self->path = 0; }
proc:::exec-failure { printf("%d cannot run %s: error %d\n", pid, self->path, args[0]); self->path = 0; }
