/* Many kinds of system calls, a few times each: processes, files, directories, memory, pipes,
 * sockets, signals, timers, polling, locks.  What fails is passed over: what is wanted is that
 * much of the kernel runs, not that all of it succeeds.
 *
 * Several copies may run at once: each has a folder of its own for all that has a name.  Nothing
 * here waits for what may not come; a copy that waits all the same says where, and ends. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE = 150 }; /* seconds for one of main's steps, on a host that has no time */

static char buffer[1 << 16];
static char own[64]; /* folder */
static const char *step = "start";
static volatile int line;
static volatile sig_atomic_t caught;

/* The result of a call that may fail. */
#define any(call) ((void)(line = __LINE__, (call)))

static void catch(int number)
{
	caught += number;
}

static void hung(int number)
{
	char text[100];
	int length = snprintf(text, sizeof text, "variety: %s hangs, behind line %d\n", step, line);

	any(write(2, text, length));
	_exit(number);
}

/* Ends the process if this is not called again in time; children have no such timer. */
static void begin(const char *name)
{
	static timer_t timer;
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN };
	struct itimerspec once = { .it_value = { PATIENCE, 0 } };

	step = name;
	if (!timer) {
		signal(SIGRTMIN, hung);
		any(timer_create(CLOCK_MONOTONIC, &event, &timer));
	}
	any(timer_settime(timer, 0, &once, NULL));
}

static void files(const char *folder)
{
	char name[256], other[256];
	struct statfs fs;
	struct stat st;
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 100 };
	struct iovec two[2] = { { buffer, 100 }, { buffer + 1000, 5000 } };
	struct timespec times[2] = { { 1, 2 }, { 3, 4 } };

	snprintf(name, sizeof name, "%s/file", folder);
	snprintf(other, sizeof other, "%s/other", folder);
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
	any(write(fd, buffer, sizeof buffer));
	any(writev(fd, two, 2));
	any(pwrite(fd, buffer, 9000, 4095));
	any(fsync(fd));
	any(lseek(fd, 3, SEEK_SET));
	any(lseek(fd, 0, SEEK_HOLE));
	any(read(fd, buffer, 10000));
	any(readv(fd, two, 2));
	any(pread(fd, buffer, 100, 5));
	any(ftruncate(fd, 5000));
	any(ftruncate(fd, 1 << 20));
	any(fallocate(fd, 0, 0, 1 << 17));
	any(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 8192));
	any(fcntl(fd, F_SETLK, &lock));
	any(fcntl(fd, F_GETLK, &lock));
	any(flock(fd, LOCK_EX));
	any(flock(fd, LOCK_UN));
	any(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK));
	int again = dup(fd), high = fcntl(fd, F_DUPFD_CLOEXEC, 100);
	close(again);
	close(high);
	any(fstat(fd, &st));
	any(fstatfs(fd, &fs));
	any(fchmod(fd, 0600));
	any(fchown(fd, 1, 1));
	any(futimens(fd, times));
	any(fsetxattr(fd, "trusted.some", "value", 5, 0));
	any(fgetxattr(fd, "trusted.some", buffer, 100));
	any(flistxattr(fd, buffer, 100));
	any(fremovexattr(fd, "trusted.some"));
	any(posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED));
	any(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	any(link(name, other));
	any(rename(other, name));
	any(unlink(other));
	any(symlink(name, other));
	any(readlink(other, buffer, 100));
	any(stat(other, &st));
	any(lstat(other, &st));
	any(access(other, R_OK | W_OK));
	any(truncate(other, 17));
	int out = open(other, O_RDWR | O_NOFOLLOW);
	any(out < 0 ? unlink(other) : close(out));
	out = open(other, O_RDWR | O_CREAT | O_EXCL, 0600);
	any(sendfile(out, fd, NULL, 5000));
	any(copy_file_range(fd, NULL, out, NULL, 3000, 0));
	any(syscall(SYS_renameat2, AT_FDCWD, name, AT_FDCWD, other, 2));
	any(ftruncate(fd, 1 << 17));
	char *map = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map != MAP_FAILED) {
		for (int i = 0; i < 1 << 16; i += 1000)
			map[i]++;
		any(msync(map, 1 << 16, MS_SYNC));
		any(munmap(map, 1 << 16));
	}
	close(out);
	close(fd);
	unlink(name);
	unlink(other);
	snprintf(name, sizeof name, "%s/folder", folder);
	any(mkdir(name, 0755));
	for (int i = 0; i < 20; i++) {
		snprintf(other, sizeof other, "%s/folder/%d", folder, i);
		close(open(other, O_CREAT | O_WRONLY, 0600));
	}
	any(mknod(other, S_IFIFO | 0600, 0));
	DIR *dir = opendir(name);
	if (dir) {
		while (readdir(dir))
			;
		closedir(dir);
	}
	any(chdir(name));
	any(getcwd(buffer, 100) != NULL);
	any(chdir("/"));
	any(rmdir(name));
	for (int i = 0; i < 20; i++) {
		snprintf(other, sizeof other, "%s/folder/%d", folder, i);
		unlink(other);
	}
	snprintf(other, sizeof other, "%s/folder/fifo", folder);
	any(mkfifo(other, 0600));
	int fifo = open(other, O_RDWR | O_NONBLOCK);
	any(write(fifo, buffer, 10));
	any(read(fifo, buffer, 10));
	close(fifo);
	unlink(other);
	rmdir(name);
}

static void mounts(void)
{
	static const char *const kinds[] = { "tmpfs", "ramfs", "proc", "sysfs" };

	char place[100];

	snprintf(place, sizeof place, "%s/mnt", own);
	any(mkdir(place, 0755));
	for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		if (mount("none", place, kinds[i], 0, ""))
			continue;
		if (i < 2)
			files(place);
		any(mount("none", place, NULL, MS_REMOUNT | MS_RDONLY, ""));
		any(umount2(place, i & 1 ? MNT_DETACH : 0));
	}
	any(rmdir(place));
}

static void read_all(const char *name)
{
	int fd = open(name, O_RDONLY | O_NONBLOCK);
	for (int i = 0; fd >= 0 && i < 8 && read(fd, buffer, sizeof buffer) > 0; i++)
		;
	close(fd);
}

static void pseudo(void)
{
	static const char *const names[] = {
		"/proc/self/maps", "/proc/self/smaps", "/proc/self/status", "/proc/self/stat",
		"/proc/self/mounts", "/proc/self/mountinfo", "/proc/self/limits", "/proc/self/io",
		"/proc/self/cmdline", "/proc/self/environ", "/proc/self/wchan", "/proc/self/sched",
		"/proc/self/cgroup", "/proc/self/statm", "/proc/self/auxv", "/proc/self/pagemap",
		"/proc/stat", "/proc/meminfo", "/proc/vmstat", "/proc/zoneinfo", "/proc/slabinfo",
		"/proc/cpuinfo", "/proc/interrupts", "/proc/loadavg", "/proc/uptime", "/proc/swaps",
		"/proc/modules", "/proc/timer_list", "/proc/buddyinfo", "/proc/iomem", "/proc/locks",
		"/proc/net/dev", "/proc/net/tcp", "/proc/net/udp", "/proc/net/unix", "/proc/net/route",
		"/proc/net/snmp", "/proc/net/sockstat", "/proc/net/arp", "/proc/filesystems",
		"/proc/diskstats", "/proc/partitions", "/proc/schedstat", "/proc/softirqs",
		"/proc/sys/kernel/random/uuid", "/proc/sys/vm/overcommit_memory", "/proc/key-users",
		"/proc/sys/fs/file-nr", "/proc/sys/kernel/hostname", "/proc/vmallocinfo",
		"/sys/kernel/uevent_seqnum", "/sys/devices/system/cpu/online",
		"/sys/class/net/lo/statistics/rx_bytes", "/sys/kernel/mm/transparent_hugepage/enabled",
		"/dev/urandom", "/dev/zero", "/dev/null", "/dev/kmsg", "/dev/full",
	};

	for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
		read_all(names[i]);
	int fd = open("/proc/sys/kernel/hostname", O_WRONLY);
	any(write(fd, "variety\n", 8));
	close(fd);
}

static void *other_thread(void *fd)
{
	char c;

	any(read(*(int *)fd, &c, 1));
	any(sched_yield());
	return NULL;
}

static void memory(void)
{
	size_t size = 4 << 20;
	char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (map == MAP_FAILED)
		return;
	for (size_t i = 0; i < size; i += 4096 * 3)
		map[i] = 1;
	any(madvise(map, size, MADV_SEQUENTIAL));
	any(mprotect(map + 8192, 8192, PROT_READ));
	any(mprotect(map + 8192, 8192, PROT_READ | PROT_WRITE));
	any(mincore(map, 1 << 16, (unsigned char *)buffer));
	any(mlock(map, 1 << 16));
	any(munlock(map, 1 << 16));
	any(madvise(map, 1 << 20, MADV_DONTNEED));
	any(madvise(map, 1 << 20, MADV_FREE));
	any(madvise(map, size, MADV_HUGEPAGE));
	pid_t child = fork(); /* copy on write */
	if (!child) {
		for (size_t i = 0; i < size; i += 4096 * 5)
			map[i]++;
		_exit(3);
	}
	any(waitpid(child, NULL, 0));
	map = mremap(map, size, size * 2, MREMAP_MAYMOVE);
	if (map != MAP_FAILED)
		any(munmap(map, size * 2));
	int fd = memfd_create("memory", MFD_ALLOW_SEALING);
	any(write(fd, buffer, 10000));
	any(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	close(fd);
	int shm = shmget(IPC_PRIVATE, 8192, IPC_CREAT | 0600);
	char *at = shmat(shm, NULL, 0);
	if (at != (char *)-1) {
		*at = 1;
		any(shmdt(at));
	}
	any(shmctl(shm, IPC_RMID, NULL));
	any(brk(sbrk(1 << 16)));
	struct iovec here = { buffer, 1000 }, there = { buffer + 2000, 1000 };
	any(process_vm_readv(getpid(), &here, 1, &there, 1, 0));
}

static void messages(void)
{
	struct { long kind; char text[20]; } message = { 1, "hello" };
	struct sembuf add = { 0, 1, 0 };
	int queue = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
	any(msgsnd(queue, &message, 20, 0));
	any(msgrcv(queue, &message, 20, 0, IPC_NOWAIT));
	any(msgctl(queue, IPC_RMID, NULL));
	int semaphore = semget(IPC_PRIVATE, 2, IPC_CREAT | 0600);
	any(semop(semaphore, &add, 1));
	any(semctl(semaphore, 0, IPC_RMID));
}

static void pipes(void)
{
	int one[2], two[2];
	pthread_t thread;

	if (pipe2(one, 0) || pipe2(two, O_NONBLOCK))
		return;
	struct pollfd polled[2] = { { one[0], POLLIN, 0 }, { two[1], POLLOUT, 0 } };
	any(poll(polled, 2, 1));
	any(write(one[1], buffer, 9000));
	any(splice(one[0], NULL, two[1], NULL, 4096, SPLICE_F_NONBLOCK));
	any(tee(one[0], two[1], 1000, SPLICE_F_NONBLOCK));
	struct iovec piece = { buffer, 3000 };
	any(vmsplice(two[1], &piece, 1, SPLICE_F_NONBLOCK));
	any(fcntl(two[1], F_SETPIPE_SZ, 1 << 17));
	any(read(one[0], buffer, sizeof buffer));
	any(read(two[0], buffer, sizeof buffer));
	if (!pthread_create(&thread, NULL, other_thread, &one[0])) {
		usleep(2000);
		any(write(one[1], "x", 1));
		pthread_join(thread, NULL);
	}
	fd_set set;
	FD_ZERO(&set);
	FD_SET(one[0], &set);
	struct timeval soon = { 0, 1000 };
	any(select(one[0] + 1, &set, NULL, NULL, &soon));
	int poller = epoll_create1(0), event = eventfd(0, EFD_NONBLOCK);
	struct epoll_event wanted = { .events = EPOLLIN }, seen[4];
	any(epoll_ctl(poller, EPOLL_CTL_ADD, one[0], &wanted));
	any(epoll_ctl(poller, EPOLL_CTL_ADD, event, &wanted));
	any(epoll_wait(poller, seen, 4, 1));
	any(write(event, "\1\0\0\0\0\0\0\0", 8));
	any(write(one[1], "y", 1));
	any(epoll_wait(poller, seen, 4, 1));
	any(epoll_ctl(poller, EPOLL_CTL_DEL, one[0], NULL));
	any(read(event, buffer, 8));
	int watch = inotify_init1(IN_NONBLOCK);
	char watched[100];
	snprintf(watched, sizeof watched, "%s/watched", own);
	any(inotify_add_watch(watch, own, IN_ALL_EVENTS));
	close(open(watched, O_CREAT | O_RDWR, 0600));
	unlink(watched);
	any(read(watch, buffer, 4096));
	for (int k = 0; k < 2; k++) {
		close(one[k]);
		close(two[k]);
	}
	close(poller);
	close(event);
	close(watch);
}

static void exchange(int from, int to)
{
	struct iovec piece = { buffer, 2000 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
	char control[CMSG_SPACE(sizeof(int))] = "";

	any(send(from, buffer, 3000, MSG_DONTWAIT));
	any(recv(to, buffer, 1000, MSG_DONTWAIT | MSG_PEEK));
	any(recv(to, buffer, sizeof buffer, MSG_DONTWAIT));
	any(sendmsg(from, &message, MSG_DONTWAIT));
	any(recvmsg(to, &message, MSG_DONTWAIT));
	message.msg_control = control;
	message.msg_controllen = sizeof control;
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &from, sizeof from);
	any(sendmsg(from, &message, MSG_DONTWAIT | MSG_NOSIGNAL));
	any(recvmsg(to, &message, MSG_DONTWAIT));
}

static void sockets(int family, int kind)
{
	int size = 100000, pair[2], on = 1;
	socklen_t length = sizeof size;
	union {
		struct sockaddr any;
		struct sockaddr_in four;
		struct sockaddr_in6 six;
		struct sockaddr_un un;
	} address = { .any.sa_family = family };
	socklen_t known = family == AF_UNIX ? sizeof address.un : family == AF_INET ?
			  sizeof address.four : sizeof address.six;

	char path[sizeof address.un.sun_path] = "";

	if (family == AF_UNIX) {
		snprintf(address.un.sun_path, sizeof address.un.sun_path, "%s/socket", own);
		strcpy(path, address.un.sun_path);
		if (!socketpair(AF_UNIX, kind, 0, pair)) {
			exchange(pair[0], pair[1]);
			any(shutdown(pair[0], SHUT_WR));
			close(pair[0]);
			close(pair[1]);
		}
	} else if (family == AF_INET) {
		address.four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	} else {
		address.six.sin6_addr = in6addr_loopback;
	}
	int server = socket(family, kind, 0), client = socket(family, kind, 0);
	any(setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
	any(setsockopt(server, SOL_SOCKET, SO_RCVBUF, &size, sizeof size));
	any(getsockopt(server, SOL_SOCKET, SO_SNDBUF, &size, &length));
	any(bind(server, &address.any, known));
	any(getsockname(server, &address.any, &known));
	any(listen(server, 5));
	any(connect(client, &address.any, known));
	if (kind == SOCK_STREAM) {
		/* If the connection failed there is none to wait for. */
		struct pollfd come = { server, POLLIN, 0 };
		any(poll(&come, 1, 1000));
		any(fcntl(server, F_SETFL, O_NONBLOCK));
		int peer = accept4(server, &address.any, &known, SOCK_CLOEXEC | SOCK_NONBLOCK);
		any(getpeername(client, &address.any, &known));
		exchange(client, peer);
		exchange(peer, client);
		any(shutdown(peer, SHUT_RDWR));
		close(peer);
	} else {
		exchange(client, server);
	}
	close(client);
	close(server);
	if (family == AF_UNIX)
		unlink(path);
}

static void loopback(void)
{
	/* struct ifreq, without linux/if.h */
	struct { char name[16]; short flags; char rest[22]; } request = { "lo", 0x41, "" };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	any(syscall(SYS_ioctl, fd, 0x8914, &request)); /* SIOCSIFFLAGS: up and running */
	close(fd);
	fd = socket(AF_NETLINK, SOCK_RAW, 0);
	struct { unsigned length; unsigned short type, flags; unsigned seq, pid; char family[16]; }
		dump = { 32, 18, 0x301, 1, 0, "" }; /* RTM_GETLINK, all */
	any(send(fd, &dump, 32, 0));
	any(recv(fd, buffer, sizeof buffer, MSG_DONTWAIT));
	close(fd);
}

static void signals(void)
{
	struct sigaction action = { .sa_handler = catch };
	stack_t stack = { .ss_sp = buffer, .ss_size = 16384 };
	sigset_t set, before;

	any(sigaltstack(&stack, NULL));
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGALRM, &action, NULL);
	raise(SIGUSR1);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigprocmask(SIG_BLOCK, &set, &before);
	union sigval value = { 5 };
	any(sigqueue(getpid(), SIGUSR2, value));
	any(sigpending(&before));
	int fd = signalfd(-1, &set, SFD_NONBLOCK);
	any(read(fd, buffer, 128));
	close(fd);
	raise(SIGUSR2);
	struct timespec soon = { 0, 1000000 };
	any(sigtimedwait(&set, NULL, &soon));
	/* The signal may come before its wait begins: it is blocked until then. */
	struct itimerval timer = { .it_value = { 0, 2000 } };
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	sigprocmask(SIG_BLOCK, &set, &before);
	sigdelset(&before, SIGALRM);
	setitimer(ITIMER_REAL, &timer, NULL);
	any(sigsuspend(&before));
	sigprocmask(SIG_SETMASK, &before, NULL);
	pid_t child = fork();
	if (!child) {
		any(prctl(PR_SET_NAME, "variety-child"));
		pause();
		_exit(0);
	}
	any(kill(child, SIGSTOP));
	any(waitpid(child, NULL, WUNTRACED));
	any(kill(child, SIGCONT));
	any(kill(child, SIGKILL));
	any(waitpid(child, NULL, 0));
	child = fork();
	if (!child) {
		any(ptrace(PTRACE_TRACEME, 0, 0, 0));
		raise(SIGSTOP);
		_exit(0);
	}
	any(waitpid(child, NULL, 0));
	any(ptrace(PTRACE_PEEKUSER, child, 0, 0));
	any(ptrace(PTRACE_CONT, child, 0, 0));
	any(waitpid(child, NULL, 0));
}

static void times_and_limits(void)
{
	struct timespec now, short_time = { 0, 100000 };
	struct itimerspec one = { .it_value = { 0, 1000000 } };
	struct rlimit limit;
	struct rusage usage;
	struct sched_param param;
	struct sysinfo info;
	struct utsname name;
	struct tms spent;
	cpu_set_t cpus;
	timer_t timer;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
	syscall(SYS_gettimeofday, buffer, 0);
	nanosleep(&short_time, NULL);
	clock_nanosleep(CLOCK_REALTIME, 0, &short_time, NULL);
	int fd = timerfd_create(CLOCK_MONOTONIC, 0);
	any(timerfd_settime(fd, 0, &one, NULL));
	any(read(fd, buffer, 8));
	close(fd);
	struct sigevent event = { .sigev_notify = SIGEV_NONE };
	if (!timer_create(CLOCK_MONOTONIC, &event, &timer)) {
		timer_settime(timer, 0, &one, NULL);
		timer_delete(timer);
	}
	getrlimit(RLIMIT_NOFILE, &limit);
	setrlimit(RLIMIT_NOFILE, &limit);
	getrusage(RUSAGE_SELF, &usage);
	times(&spent);
	sysinfo(&info);
	uname(&name);
	any(getpriority(PRIO_PROCESS, 0));
	any(setpriority(PRIO_PROCESS, 0, 1));
	sched_getparam(0, &param);
	param.sched_priority = 1;
	any(sched_setscheduler(0, SCHED_FIFO, &param));
	param.sched_priority = 0;
	any(sched_setscheduler(0, SCHED_OTHER, &param));
	sched_getaffinity(0, sizeof cpus, &cpus);
	for (int cpu = 0; cpu < 2; cpu++) {
		CPU_ZERO(&cpus);
		CPU_SET(cpu, &cpus);
		any(sched_setaffinity(0, sizeof cpus, &cpus));
		sched_yield();
	}
	CPU_SET(0, &cpus);
	any(sched_setaffinity(0, sizeof cpus, &cpus));
	int word = 1;
	any(syscall(SYS_futex, &word, FUTEX_WAIT, 1, &short_time, NULL, 0));
	any(syscall(SYS_futex, &word, FUTEX_WAKE, 1, NULL, NULL, 0));
	any(getgroups(100, (gid_t *)buffer));
	any(setgroups(1, (gid_t[]){ 5 }));
	any(umask(022));
	any(getrandom(buffer, 100, 0));
}

static void processes(char *self)
{
	for (volatile int k = 0; k < 3; k++) {
		pid_t child = k == 1 ? vfork() : fork();
		if (!child) {
			if (k == 2) {
				any(unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID));
				any(setsid());
				any(setresgid(5, 5, 5));
				any(setresuid(5, 5, 5));
			}
			execl(self, self, "child", NULL);
			_exit(1);
		}
		siginfo_t info;
		any(waitid(P_PID, child, &info, WEXITED));
	}
	int terminal = posix_openpt(O_RDWR | O_NOCTTY);
	if (terminal >= 0 && !grantpt(terminal) && !unlockpt(terminal)) {
		struct termios settings;
		char *name = ptsname(terminal);
		int end = name ? open(name, O_RDWR | O_NOCTTY | O_NONBLOCK) : -1;
		any(tcgetattr(end, &settings));
		settings.c_lflag &= ~ICANON;
		any(tcsetattr(end, TCSANOW, &settings));
		any(write(terminal, "text\n", 5));
		any(read(end, buffer, 100));
		close(end);
	}
	close(terminal);
}

int main(int count, char **words)
{
	int rounds = count > 1 ? atoi(words[1]) : 1;

	if (count > 1 && !strcmp(words[1], "child"))
		return 0;
	signal(SIGPIPE, SIG_IGN);
	loopback();
	snprintf(own, sizeof own, "/tmp/variety.%d", getpid());
	any(mkdir(own, 0755));
	for (int k = 0; k < rounds; k++) {
		begin("files");
		files(own);
		begin("mounts");
		mounts();
		begin("pseudo");
		pseudo();
		begin("memory");
		memory();
		begin("messages");
		messages();
		begin("pipes");
		pipes();
		begin("sockets of unix");
		sockets(AF_UNIX, SOCK_STREAM);
		sockets(AF_UNIX, SOCK_DGRAM);
		begin("sockets of IPv4");
		sockets(AF_INET, SOCK_STREAM);
		sockets(AF_INET, SOCK_DGRAM);
		begin("sockets of IPv6");
		sockets(AF_INET6, SOCK_STREAM);
		sockets(AF_INET6, SOCK_DGRAM);
		begin("signals");
		signals();
		begin("times and limits");
		times_and_limits();
		begin("processes");
		processes("/proc/self/exe");
	}
	rmdir(own);
	return 0;
}
