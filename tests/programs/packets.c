/* packets N: N frames out of dummy0 (the kernel's module dummy counts and drops them), each by a
 * send(2) of its own.  Meanwhile it is called "at work" (prctl(PR_SET_NAME)); some frames were sent
 * before.  Prints: "packets N". */
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>

static void must(int good, const char *what)
{
    if (!good) {
        perror(what);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    long n = argc > 1 ? strtol(argv[1], NULL, 0) : 0;
    struct ifreq device = {0};
    struct sockaddr_ll to = {0};
    char frame[64] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5};
    int out = socket(AF_PACKET, SOCK_RAW, 0);
    must(out >= 0, "socket");
    strcpy(device.ifr_name, "dummy0");
    must(ioctl(out, SIOCGIFFLAGS, &device) == 0, "dummy0");
    device.ifr_flags |= IFF_UP;
    must(ioctl(out, SIOCSIFFLAGS, &device) == 0, "up");
    must(ioctl(out, SIOCGIFINDEX, &device) == 0, "index");
    to.sll_family = AF_PACKET;
    to.sll_ifindex = device.ifr_ifindex;
    must(bind(out, (struct sockaddr *)&to, sizeof to) == 0, "bind");
    for (int k = 0; k < 20; k++)
        must(send(out, frame, sizeof frame, 0) == sizeof frame, "send");
    prctl(PR_SET_NAME, "at work");
    for (long k = 0; k < n; k++)
        must(send(out, frame, sizeof frame, 0) == sizeof frame, "send");
    prctl(PR_SET_NAME, "packets");
    printf("packets %ld\n", n);
    return 0;
}
