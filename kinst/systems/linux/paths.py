"""What makes up the path of a file in Linux (fs/d_path.c has the walk that it is for)."""

from __future__ import annotations

from kinst.core.errors import KinstError
from kinst.core.system import Paths
from kinst.image.btf import Btf


def paths(btf: Btf) -> Paths | None:
    """None when this kernel's structures are others."""
    try:
        return Paths(
            fs=btf.offset("task_struct", "fs"),
            pwd=btf.offset("fs_struct", "pwd"),
            root=btf.offset("fs_struct", "root"),
            mount=btf.offset("path", "mnt"),
            dentry=btf.offset("path", "dentry"),
            parent=btf.offset("dentry", "d_parent"),
            name=btf.offset("dentry", "d_name.name"),
            length=btf.offset("dentry", "d_name.len"),
            hashed=btf.offset("dentry", "d_hash.pprev"),
            operations=btf.offset("dentry", "d_op"),
            own_name=btf.offset("dentry_operations", "d_dname"),
            top=btf.offset("vfsmount", "mnt_root"),
            public=btf.offset("mount", "mnt"),
            above=btf.offset("mount", "mnt_parent"),
            at=btf.offset("mount", "mnt_mountpoint"),
        )
    except KinstError:
        return None
