"""Each read(2) is checked by rw_verify_area() once.  Needs kinst and pytest:

pytest examples/test_reads.py
pytest --kinst='--kernel 6.12 --cpus 4' examples/test_reads.py
"""


def test_every_read_is_verified_once(vm):
    result = vm.run(
        """
        fbt::vfs_read:entry { @reads = count(); self->in = 1; }
        fbt::rw_verify_area:entry /self->in/ { @checks = count(); }
        fbt::vfs_read:return { self->in = 0; }
        """,
        command="wc -l /etc/passwd",
        options={"fail": "all"},
    )
    assert result.status == 0, result.messages
    reads, checks = (result.aggregations[name][()] for name in ("reads", "checks"))
    assert reads == checks > 0
