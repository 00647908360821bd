/*
 * A file (Dynamic Tracing Guide, "io Provider").
 *
 * Sources, of Linux 5.10 to 7.3: include/linux/fs.h, include/linux/mount.h, fs/mount.h.  0x4000 is
 * MNT_INTERNAL: a file system that is mounted nowhere, such as that of sockets and pipes.
 */

typedef struct fileinfo {
    string fi_name; string fi_fs; off_t fi_offset; int fi_oflags;
    string fi_dirname; string fi_pathname; string fi_mount;
} fileinfo_t;

translator fileinfo_t < struct file *F > {
    fi_name = F == NULL ? "<none>" : stringof(F->f_path.dentry->d_name.name);
    fi_fs = F == NULL ? "<none>" : stringof(F->f_inode->i_sb->s_type->name);
    fi_offset = F == NULL ? 0 : F->f_pos;
    fi_oflags = F == NULL ? 0 : F->f_flags;
    fi_dirname = F == NULL ? "<none>" : dirname(d_path(&F->f_path));
    fi_pathname = F == NULL ? "<none>" : d_path(&F->f_path);
    fi_mount = F == NULL || (F->f_path.mnt->mnt_flags & 0x4000) ? "<none>" :
        path_in_mount(F->f_path.mnt, NULL);
};

/*
 * The first mount of a file system, for a file of which it is not known by which mount it was
 * reached.  Until Linux 6.16, s_mounts and the member before mnt_devname are nodes of a list; later,
 * s_mounts is a pointer.
 */
inline struct vfsmount *superblock_mount[struct super_block *S] =
    *(uintptr_t *)&S->s_mounts == (uintptr_t)&S->s_mounts ? (struct vfsmount *)0 :
    &((struct mount *)(*(uintptr_t *)&S->s_mounts - (sizeof (S->s_mounts) == 8 ? 0 :
    offsetof(struct mount, mnt_devname) - sizeof (struct list_head))))->mnt;

/*
 * The file of the first page of a request: a page of the page cache, whose mapping has low bits for
 * other pages (include/linux/page-flags.h, PAGE_MAPPING_FLAGS).  An inode of a device has no name.
 */
inline struct inode *request_inode[struct request *R] =
    R->bio == NULL || R->bio->bi_io_vec == NULL || R->bio->bi_io_vec->bv_page == NULL ||
    R->bio->bi_io_vec->bv_page->mapping == NULL ||
    ((uintptr_t)R->bio->bi_io_vec->bv_page->mapping & 3) ? (struct inode *)0 :
    R->bio->bi_io_vec->bv_page->mapping->host;
/* A name of the inode: the last member of a directory entry is a node of the inode's list. */
inline uintptr_t request_alias[struct request *R] =
    request_inode[R] == NULL ? 0 : (uintptr_t)request_inode[R]->i_dentry.first;
inline struct dentry *request_entry[struct request *R] =
    request_alias[R] == 0 ? (struct dentry *)0 : (struct dentry *)
    (request_alias[R] + sizeof (struct hlist_node) - sizeof (struct dentry));

translator fileinfo_t < struct request *R > {
    fi_name = request_alias[R] == 0 ? "<none>" : stringof(request_entry[R]->d_name.name);
    fi_fs = request_inode[R] == NULL ? "<none>" : stringof(request_inode[R]->i_sb->s_type->name);
    fi_offset = request_inode[R] == NULL ? 0 :
        (R->bio->bi_io_vec->bv_page->index << 12) + R->bio->bi_io_vec->bv_offset;
    fi_oflags = refuse("a request does not know by which open file it was made");
    fi_dirname = request_alias[R] == 0 ? "<none>" :
        dirname(path_in_mount(superblock_mount[request_inode[R]->i_sb], request_entry[R]));
    fi_pathname = request_alias[R] == 0 ? "<none>" :
        path_in_mount(superblock_mount[request_inode[R]->i_sb], request_entry[R]);
    fi_mount = request_alias[R] == 0 ? "<none>" :
        path_in_mount(superblock_mount[request_inode[R]->i_sb], NULL);
};

/* A file that is not open: a path, or a directory entry. */
translator fileinfo_t < struct path *P > {
    fi_name = stringof(P->dentry->d_name.name);
    fi_fs = stringof(P->dentry->d_sb->s_type->name);
    fi_offset = 0;
    fi_oflags = 0;
    fi_dirname = dirname(d_path(P));
    fi_pathname = d_path(P);
    fi_mount = P->mnt->mnt_flags & 0x4000 ? "<none>" : path_in_mount(P->mnt, NULL);
};

translator fileinfo_t < struct dentry *D > {
    fi_name = stringof(D->d_name.name);
    fi_fs = stringof(D->d_sb->s_type->name);
    fi_offset = 0;
    fi_oflags = 0;
    fi_dirname = dirname(path_in_mount(superblock_mount[D->d_sb], D));
    fi_pathname = path_in_mount(superblock_mount[D->d_sb], D);
    fi_mount = path_in_mount(superblock_mount[D->d_sb], NULL);
};

inline struct file *fd_file[int fd] =
    fd >= 0 && fd < curthread->files->fdt->max_fds ?
    curthread->files->fdt->fd[fd] : (struct file *)0;
inline fileinfo_t fds[int fd] = xlate < fileinfo_t > (fd_file[fd]);
