/*
 * A request to a block device (Dynamic Tracing Guide, "io Provider").  Its device is the whole disk,
 * to which the kernel sends requests for partitions, too.
 *
 * Sources: include/linux/blk-mq.h, include/linux/blkdev.h and include/linux/blk_types.h of Linux
 * 5.17 to 7.3: bit 0 of the operation means that data go to the device; a flush has none.  A dev_t in the kernel has
 * 20 bits for the minor number (include/linux/kdev_t.h).
 */

typedef struct bufinfo {
    int b_flags; size_t b_bcount; uintptr_t b_addr; uint64_t b_lblkno; uint64_t b_blkno;
    size_t b_resid; size_t b_bufsize; uintptr_t b_iodone; int b_error; dev_t b_edev;
} bufinfo_t;

translator bufinfo_t < struct request *R > {
    b_flags = (R->cmd_flags & 1 ? B_WRITE : (R->cmd_flags & 0xff) == REQ_OP_FLUSH ? 0 : B_READ) |
        (R->cmd_flags & 1 << __REQ_SYNC ? 0 : B_ASYNC);
    b_bcount = R->__data_len;
    b_addr = refuse("the data of a request are in several pages");
    b_lblkno = R->__sector;
    b_blkno = R->__sector;
    b_resid = refuse("a request counts only what is left to do: b_bcount");
    b_bufsize = R->__data_len;
    b_iodone = (uintptr_t)R->end_io;
    b_error = 0;
    b_edev = R->q->disk->major << 20 | R->q->disk->first_minor;
};

/* A request that is done, or a part of it: arg1 of the probe is its error, EIO for most (5). */
struct done_request { uint8_t unused; };

translator bufinfo_t < struct done_request *D > {
    b_flags = xlate < bufinfo_t > ((struct request *)D).b_flags | (arg1 == 0 ? 0 : B_ERROR);
    b_bcount = ((struct request *)D)->__data_len;
    b_addr = refuse("the data of a request are in several pages");
    b_lblkno = ((struct request *)D)->__sector;
    b_blkno = ((struct request *)D)->__sector;
    b_resid = refuse("a request counts only what is left to do: b_bcount");
    b_bufsize = ((struct request *)D)->__data_len;
    b_iodone = (uintptr_t)((struct request *)D)->end_io;
    b_error = arg1 == 0 ? 0 : 5;
    b_edev = xlate < bufinfo_t > ((struct request *)D).b_edev;
};

typedef struct devinfo {
    int dev_major; int dev_minor; int dev_instance;
    string dev_name; string dev_statname; string dev_pathname;
} devinfo_t;

translator devinfo_t < struct request *R > {
    dev_major = R->q->disk->major;
    dev_minor = R->q->disk->first_minor;
    dev_instance = R->q->disk->first_minor;
    dev_name = stringof(R->q->disk->disk_name);
    dev_statname = stringof(R->q->disk->disk_name);
    dev_pathname = strjoin("/dev/", stringof(R->q->disk->disk_name));
};
