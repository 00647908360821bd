/* filework: every kind of operation on files, in the folder of its argument: a fixed number of each
 * between its two calls of getppid().  It ends with status 1 if a call does not do what it must. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void must(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        _exit(1);
    }
}

int main(int argc, char **argv)
{
    static char block[8192];
    struct iovec two[2] = {{block, 100}, {block + 100, 28}};
    struct stat about;
    char target[16];
    int some;
    must(argc == 2 && chdir(argv[1]) == 0, "chdir");
    getppid();
    must(mkdir("dir", 0700) == 0, "mkdir");
    int data = open("data", O_RDWR | O_CREAT | O_EXCL, 0600);
    int copy = open("copy", O_RDWR | O_CREAT | O_EXCL, 0600);
    must(data >= 0 && copy >= 0, "open");
    for (int k = 0; k < 5; k++)
        must(write(data, block, 1000) == 1000, "write");
    must(pwrite(data, block, 300, 0) == 300, "pwrite");
    for (int k = 0; k < 3; k++)
        must(writev(data, two, 2) == 128, "writev");
    must(pwritev(data, two, 2, 0) == 128, "pwritev");
    must(lseek(data, 0, SEEK_SET) == 0 && lseek(data, 10, SEEK_SET) == 10, "lseek");
    for (int k = 0; k < 4; k++)
        must(read(data, block, 700) == 700, "read");
    must(pread(data, block, 8192, 5000) == 384, "pread");
    for (int k = 0; k < 2; k++)
        must(readv(data, two, 2) == 128, "readv");
    must(preadv(data, two, 2, 0) == 128, "preadv");
    off_t at = 0;
    must(sendfile(copy, data, &at, 600) == 600, "sendfile");
    loff_t from = 0, to = 600;
    must(copy_file_range(data, &from, copy, &to, 900, 0) == 900, "copy_file_range");
    must(fsync(data) == 0 && fdatasync(data) == 0 && fsync(copy) == 0, "fsync");
    must(ioctl(data, FIONREAD, &some) == 0, "ioctl");
    must(flock(data, LOCK_EX) == 0 && flock(data, LOCK_UN) == 0, "flock");
    must(fcntl(data, F_SETFL, O_APPEND) == 0 && fcntl(data, F_GETFL) >= 0, "fcntl");
    must(fallocate(data, 0, 0, 16384) == 0, "fallocate");
    must(mmap(0, 4096, PROT_READ, MAP_SHARED, data, 0) != MAP_FAILED, "mmap");
    must(syscall(SYS_fstat, data, &about) == 0, "fstat");
    must(fstatat(AT_FDCWD, "copy", &about, 0) == 0, "fstatat");
    must(chmod("data", 0640) == 0 && fchmod(copy, 0640) == 0, "chmod");
    must(link("data", "other") == 0 && symlink("data", "short") == 0, "link");
    must(readlink("short", target, sizeof target) == 4, "readlink");
    must(rename("other", "third") == 0, "rename");
    int folder = open("dir", O_RDONLY | O_DIRECTORY);
    must(syscall(SYS_getdents64, folder, block, sizeof block) > 0, "getdents64");
    must(syscall(SYS_getdents64, folder, block, sizeof block) == 0, "getdents64");
    must(open("nowhere", O_RDONLY) < 0, "no such file");
    must(close(folder) == 0 && close(copy) == 0 && close(data) == 0, "close");
    must(close(999) < 0, "close(999)");
    must(unlink("third") == 0 && unlink("short") == 0 && unlink("copy") == 0, "unlink");
    must(unlink("data") == 0 && rmdir("dir") == 0, "rmdir");
    getppid();
    return 0;
}
