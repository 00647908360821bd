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

inline fileinfo_t fds[int fd] = xlate < fileinfo_t > (
    fd >= 0 && fd < curthread->files->fdt->max_fds ?
    curthread->files->fdt->fd[fd] : (struct file *)0);
