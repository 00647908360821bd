/*
 * How does a D script begin and end?  (no kernel is needed)
 * Run: kinst -s examples/hello.d
 */
#pragma D option quiet
BEGIN { printf("hello from %d\n", $pid); exit(0); }
