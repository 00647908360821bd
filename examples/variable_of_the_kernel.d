/*
 * By how much does a clock variable of the kernel advance?
 * Run: kinst -s examples/variable_of_the_kernel.d -c 'sleep 0.1'
 */
#pragma D option quiet
BEGIN { from = `jiffies; }
END { printf("jiffies grew by %d\n", `jiffies - from); }
