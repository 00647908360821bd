/* What one may think of wc, and is wrong: kinst test examples/tests/one_read.d */
#pragma D test command "wc -l /etc/passwd"

fbt::vfs_read:entry /execname == "wc"/ { @reads[probefunc] = count(); wanted = 1; }

TEST "wc reads its file at once" { @reads["vfs_read"] == wanted; }
