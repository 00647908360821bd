/*
 * What does dtrace(1) print when a clause is empty?
 * Run: kinst -s examples/default_output.d -c 'sh -c date; true'
 */
syscall::getppid:entry { }
