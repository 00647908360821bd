/* Reads of wc: kinst test examples/tests/reads.d */
#pragma D test command "wc -l /etc/passwd"

kinst::vfs_read:0 { @reads = count(); n++; }
kinst::ksys_read:0 { @calls[probefunc] = count(); }
fbt::vfs_read:entry { self->start = timestamp; }
fbt::vfs_read:return /self->start/ {
	@time[execname] = quantize(timestamp - self->start);
	self->start = 0;
}

TEST "every read has a caller"
{
	@reads == n;
	@calls["ksys_read"] >= 2;
}

TEST "each read was timed, and none took a second" /@reads > 0/
{
	count(@time["wc"]) == @reads;
	max(@time) < 1000000000;
}
