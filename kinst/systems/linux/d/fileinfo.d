/*
 * An open file (Dynamic Tracing Guide, "io Provider").  fi_pathname has no conversion, since a path
 * needs a loop over the parent directories.
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
};

/*
 * The file of the first page of a request: a page of the page cache, whose mapping has low bits for
 * other pages (include/linux/page-flags.h, PAGE_MAPPING_FLAGS).  An inode of a device has no name.
 */
inline struct inode *request_inode[struct request *R] =
    R->bio == NULL || R->bio->bi_io_vec == NULL || R->bio->bi_io_vec->bv_page == NULL ||
    R->bio->bi_io_vec->bv_page->mapping == NULL ||
    ((uintptr_t)R->bio->bi_io_vec->bv_page->mapping & 3) ? (struct inode *)0 :
    R->bio->bi_io_vec->bv_page->mapping->host;
inline struct hlist_node *request_alias[struct request *R] =
    request_inode[R] == NULL ? (struct hlist_node *)0 : request_inode[R]->i_dentry.first;

translator fileinfo_t < struct request *R > {
    fi_name = request_alias[R] == NULL ? "<none>" : stringof(((struct dentry *)
        ((uintptr_t)request_alias[R] - offsetof(struct dentry, d_u.d_alias)))->d_name.name);
    fi_fs = request_inode[R] == NULL ? "<none>" : stringof(request_inode[R]->i_sb->s_type->name);
    fi_offset = request_inode[R] == NULL ? 0 :
        (R->bio->bi_io_vec->bv_page->index << 12) + R->bio->bi_io_vec->bv_offset;
    fi_oflags = refuse("a request does not know by which open file it was made");
    fi_dirname = refuse("a path needs a loop over the parent directories");
    fi_pathname = refuse("a path needs a loop over the parent directories");
    fi_mount = refuse("a request does not know the path of its file");
};

inline fileinfo_t fds[int fd] = xlate < fileinfo_t > (
    fd >= 0 && fd < curthread->files->fdt->max_fds ?
    curthread->files->fdt->fd[fd] : (struct file *)0);
