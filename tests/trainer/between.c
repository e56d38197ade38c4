/* Sends every TCP connection that a program makes over IPv4 to the port $BETWEEN of this host, with the port that was meant as its first
   two bytes: what an attacker in the network between two hosts can do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int connect(int fd, const struct sockaddr *to, socklen_t length)
{
    int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    const char *port = getenv("BETWEEN");
    int type = 0;
    socklen_t size = sizeof type;
    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size);
    if (!port || type != SOCK_STREAM || to->sa_family != AF_INET)
        return real(fd, to, length);
    struct sockaddr_in other = *(const struct sockaddr_in *)to;
    in_port_t meant = other.sin_port;
    other.sin_port = htons(atoi(port));
    int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    int result = real(fd, (struct sockaddr *)&other, sizeof other);
    if (result == 0 && write(fd, &meant, 2) != 2)
        result = -1;
    fcntl(fd, F_SETFL, flags);
    return result;
}
