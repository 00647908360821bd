/*
 * Operations on files (illumos Dynamic Tracing Guide, "fsinfo Provider").  args[0] is the file,
 * args[1] the number of bytes that are asked for, or 0: Linux has no function that gets both the
 * file and the number of bytes that were read.
 *
 * Sources, of Linux 5.10 to 7.3: fs/read_write.c, fs/splice.c, security/security.c.  All calls of
 * these functions are calls: in seven kernels the compiler has put none of them into its callers
 * (rw_verify_area(), through which every read and write goes, is put into them).  Functions named
 * security_*() are those that the kernel asks before each operation that it begins.  The types of
 * a system call's arguments are not known if the compiler has put its function into its caller.
 */

#pragma D depends_on library fileinfo.d

provider fsinfo {
	probe read(struct file *file, char *to, size_t count) :
	    (fileinfo_t *file, int64_t = count) = fbt::vfs_read:entry;
	/* readv(2), preadv(2): files that take several buffers; 0 is READ. */
	probe read(struct file *file, struct iov_iter *iter, loff_t *at, int type) :
	    (fileinfo_t *file, int64_t = iter->count) = fbt::do_iter_readv_writev:entry / type == 0 /;
	/* Copies within the kernel: sendfile(2), splice(2) and copy_file_range(2). */
	probe read(int to, int from, loff_t *at, size_t count) :
	    (fileinfo_t * = fd_file[from], int64_t = count) = fbt::do_sendfile:entry;
	probe read(struct file *from, loff_t *start, struct file *to, loff_t *at, size_t count) :
	    (fileinfo_t *from, int64_t = count) = fbt::do_splice:entry;
	probe read(struct file *from, loff_t start, struct file *to, loff_t at, size_t count) :
	    (fileinfo_t *from, int64_t = count) = fbt::vfs_copy_file_range:entry;

	probe write(struct file *file, const char *from, size_t count) :
	    (fileinfo_t *file, int64_t = count) = fbt::vfs_write:entry;
	/*
	 * Before Linux 6.6, copies within the kernel came here, too, with an iter of pages (ITER_BVEC);
	 * the iter's kind is its first byte, whose lowest bit was 1 for writes in Linux 5.10.
	 */
	probe write(struct file *file, struct iov_iter *iter, loff_t *at, int type) :
	    (fileinfo_t *file, int64_t = iter->count) = fbt::do_iter_readv_writev:entry
	    / type == 1 && (*(uint8_t *)iter & ~1) != (ITER_BVEC & ~1) /;
	probe write(int to, int from, loff_t *at, size_t count) :
	    (fileinfo_t * = fd_file[to], int64_t = count) = fbt::do_sendfile:entry;
	probe write(struct file *from, loff_t *start, struct file *to, loff_t *at, size_t count) :
	    (fileinfo_t *to, int64_t = count) = fbt::do_splice:entry;
	probe write(struct file *from, loff_t start, struct file *to, loff_t at, size_t count) :
	    (fileinfo_t *to, int64_t = count) = fbt::vfs_copy_file_range:entry;

	probe open(struct file *file) : (fileinfo_t *file, int64_t = 0) =
	    fbt::security_file_open:entry;
	/* close(2); the files of a program that ends are closed without it. */
	probe close(unsigned int fd) : (fileinfo_t * = fd_file[fd], int64_t = 0) =
	    syscall::close:entry / fd_file[fd] != NULL /;
	probe close(int64_t fd) : (fileinfo_t * = fd_file[fd], int64_t = 0) =
	    syscall::close:entry / fd_file[fd] != NULL /;
	/* The last use of an open file ends; 0x80000 is FMODE_OPENED, which a failed open(2) lacks. */
	probe inactive(struct file *file) : (fileinfo_t *file, int64_t = 0) =
	    fbt::__fput:entry / file->f_mode & 0x80000 /;
	probe ioctl(struct file *file) : (fileinfo_t *file, int64_t = 0) =
	    fbt::security_file_ioctl:entry;
	probe readdir(struct file *file) : (fileinfo_t *file, int64_t = 0) = fbt::iterate_dir:entry;
	probe fsync(unsigned int fd) : (fileinfo_t * = fd_file[fd], int64_t = 0) =
	    syscall::fsync:entry / fd_file[fd] != NULL /;
	probe fsync(int64_t fd) : (fileinfo_t * = fd_file[fd], int64_t = 0) =
	    syscall::fsync:entry / fd_file[fd] != NULL /;
	probe fsync(unsigned int fd) : (fileinfo_t * = fd_file[fd], int64_t = 0) =
	    syscall::fdatasync:entry / fd_file[fd] != NULL /;
	probe fsync(int64_t fd) : (fileinfo_t * = fd_file[fd], int64_t = 0) =
	    syscall::fdatasync:entry / fd_file[fd] != NULL /;
	probe seek(unsigned int fd) : (fileinfo_t * = fd_file[fd], int64_t = 0) =
	    syscall::lseek:entry / fd_file[fd] != NULL /;
	probe seek(int64_t fd) : (fileinfo_t * = fd_file[fd], int64_t = 0) =
	    syscall::lseek:entry / fd_file[fd] != NULL /;
	probe map(struct file *file) : (fileinfo_t *file, int64_t = 0) =
	    fbt::security_mmap_file:entry / file != NULL /;
	probe frlock(struct file *file) : (fileinfo_t *file, int64_t = 0) =
	    fbt::security_file_lock:entry;
	/* 4 is F_SETFL. */
	probe setfl(struct file *file, unsigned int cmd) : (fileinfo_t *file, int64_t = 0) =
	    fbt::security_file_fcntl:entry / cmd == 4 /;
	probe space(struct file *file, int mode, loff_t at, loff_t length) :
	    (fileinfo_t *file, int64_t = length) = fbt::vfs_fallocate:entry;

	probe getattr(const struct path *path) : (fileinfo_t * = (struct path *)path, int64_t = 0) =
	    fbt::security_inode_getattr:entry;
	/* Since Linux 5.12, the first argument says how users of the mount are numbered. */
	probe setattr(struct dentry *entry, struct iattr *to) :
	    (fileinfo_t *entry, int64_t = 0) = fbt::security_inode_setattr:entry;
	probe setattr(struct user_namespace *users, struct dentry *entry, struct iattr *to) :
	    (fileinfo_t *entry, int64_t = 0) = fbt::security_inode_setattr:entry;
	probe setattr(struct mnt_idmap *users, struct dentry *entry, struct iattr *to) :
	    (fileinfo_t *entry, int64_t = 0) = fbt::security_inode_setattr:entry;
	probe create(struct inode *dir, struct dentry *entry) : (fileinfo_t *entry, int64_t = 0) =
	    fbt::security_inode_create:entry;
	probe mkdir(struct inode *dir, struct dentry *entry) : (fileinfo_t *entry, int64_t = 0) =
	    fbt::security_inode_mkdir:entry;
	probe rmdir(struct inode *dir, struct dentry *entry) : (fileinfo_t *entry, int64_t = 0) =
	    fbt::security_inode_rmdir:entry;
	probe remove(struct inode *dir, struct dentry *entry) : (fileinfo_t *entry, int64_t = 0) =
	    fbt::security_inode_unlink:entry;
	probe link(struct dentry *old, struct inode *dir, struct dentry *entry) :
	    (fileinfo_t *old, int64_t = 0) = fbt::security_inode_link:entry;
	probe symlink(struct inode *dir, struct dentry *entry) : (fileinfo_t *entry, int64_t = 0) =
	    fbt::security_inode_symlink:entry;
	probe rename(struct inode *dir, struct dentry *old) : (fileinfo_t *old, int64_t = 0) =
	    fbt::security_inode_rename:entry;
	probe readlink(struct dentry *entry) : (fileinfo_t *entry, int64_t = 0) =
	    fbt::security_inode_readlink:entry;

	probe lookup() = refuse("Linux looks most names up without calling a function");
	probe access() = refuse("Linux tests permissions for each part of a path: fbt::inode_permission:entry");
	probe poll() = refuse("each kind of file has a function of its own: syscall::poll:entry, syscall::select:entry");
	probe getpage() = refuse("pages are in a cache: sdt:filemap::mm_filemap_add_to_page_cache has those that were not");
	probe putpage() = refuse("pages are in a cache: io:::start has what is written");
	probe addmap() = refuse("fsinfo:::map");
	probe delmap() = refuse("Linux unmaps addresses, of which several files may be part: syscall::munmap:entry");
	probe rwlock() = refuse("a lock is part of each file system's own functions");
	probe rwunlock() = refuse("a lock is part of each file system's own functions");
};
