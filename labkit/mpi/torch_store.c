/* Preloaded into ranks (LD_PRELOAD, ld.so(8)), has what would listen on all of a machine's addresses listen on loopback.
 *
 * PyTorch's TCPStore, by which ranks find each other, binds its port to all addresses whatever MASTER_ADDR says, and
 * asks nobody who they are (PyTorch 2.13; docs/upstream.md: https://github.com/pytorch/pytorch/issues/173909).
 */
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int bind(int fd, const struct sockaddr *address, socklen_t length) {
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (address->sa_family == AF_INET && length == sizeof v4) {
        memcpy(&v4, address, length);
        if (v4.sin_addr.s_addr == htonl(INADDR_ANY))
            v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address = (const struct sockaddr *)&v4;
    } else if (address->sa_family == AF_INET6 && length == sizeof v6) {
        memcpy(&v6, address, length);
        if (IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr)) { /* serves both: loopback's IPv4 address, as IPv6 writes it */
            memset(&v6.sin6_addr.s6_addr[10], 0xff, 2);
            v6.sin6_addr.s6_addr[12] = 127;
            v6.sin6_addr.s6_addr[15] = 1;
        }
        address = (const struct sockaddr *)&v6;
    }
    return syscall(SYS_bind, fd, address, length);
}
