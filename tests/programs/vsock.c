/* vsock N: sends N messages of one byte to itself through AF_VSOCK, by the module vsock_loopback. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <linux/vm_sockets.h>

static void must(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        _exit(1);
    }
}

int main(int count, char **words)
{
    struct sockaddr_vm to = {.svm_family = AF_VSOCK, .svm_port = 1234, .svm_cid = VMADDR_CID_LOCAL};
    int n = count > 1 ? atoi(words[1]) : 1, server = socket(AF_VSOCK, SOCK_STREAM, 0);
    int client = socket(AF_VSOCK, SOCK_STREAM, 0), other;
    char byte = 'x';

    must(server >= 0 && client >= 0, "socket");
    must(!bind(server, (struct sockaddr *)&to, sizeof to) && !listen(server, 1), "listen");
    must(!connect(client, (struct sockaddr *)&to, sizeof to), "connect");
    must((other = accept(server, 0, 0)) >= 0, "accept");
    for (int i = 0; i < n; i++) {
        must(write(client, &byte, 1) == 1, "write");
        must(read(other, &byte, 1) == 1, "read");
    }
    return 0;
}
