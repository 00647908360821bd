/*
 * Requests to block devices (Dynamic Tracing Guide, "io Provider").
 *
 * Sources, of Linux 5.10 to 7.3: block/blk-mq.c, include/trace/events/block.h.  io:::start is where
 * the kernel's event block_rq_issue is; a request has done its part each time that it completes.
 * Since Linux 5.11 these tracepoints do not pass the request's queue.
 */

#pragma D depends_on library bufinfo.d
#pragma D depends_on library fileinfo.d

provider io {
	probe start(struct request *rq) : (bufinfo_t *rq, devinfo_t *rq, fileinfo_t *rq) =
	    fbt::blk_mq_start_request:entry;
	probe done(struct request *rq) :
	    (bufinfo_t * = (struct done_request *)rq, devinfo_t *rq, fileinfo_t *rq) =
	    sdt:block::block_rq_complete;

	/* A thread waits for a request, of which it does not know which one that is. */
	probe wait__start() = fbt::io_schedule:entry, fbt::io_schedule_timeout:entry;
	probe wait__done() = fbt::io_schedule:return, fbt::io_schedule_timeout:return;
};
