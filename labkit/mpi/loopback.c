/* Makes a run on one machine listen on loopback only: preloaded (LD_PRELOAD, ld.so(8)) into mpirun and PyTorch ranks, it
 * binds sockets to loopback that would listen on all of a machine's addresses.
 *
 * Hydra listens on all addresses for its proxies on other nodes, even if there are none, and has no option to restrict
 * them (MPICH 5.0.2; docs/contribute/upstream/mpich.md, https://github.com/pmodels/mpich/issues/6010). So does PyTorch's
 * TCPStore, whatever MASTER_ADDR is (PyTorch 2.13; https://github.com/pytorch/pytorch/issues/173909). Addresses get no
 * names.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Child processes, such as srun, bind as they like: remove this library from LD_PRELOAD. */
__attribute__((constructor)) static void stay_in_this_process(void) {
    const char *all = getenv("LD_PRELOAD"), *rest = all ? strpbrk(all, ": ") : NULL;
    if (rest)
        setenv("LD_PRELOAD", rest + 1, 1);
    else
        unsetenv("LD_PRELOAD");
}

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
        if (IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr)) /* serves IPv4 too: the IPv4 loopback address, in IPv6 notation */
            inet_pton(AF_INET6, "::ffff:127.0.0.1", &v6.sin6_addr);
        address = (const struct sockaddr *)&v6;
    }
    return syscall(SYS_bind, fd, address, length);
}

/* For its log, PyTorch 2.13 looks up the name of each address that it connects to. For ::ffff:127.0.0.1, which
 * /etc/hosts lacks, each connection would wait for a name server: https://github.com/pytorch/pytorch/issues/159007. */
int getnameinfo(const struct sockaddr *address, socklen_t length, char *host, socklen_t host_length, char *service,
                socklen_t service_length, int flags) {
    __typeof__(&getnameinfo) next = (__typeof__(&getnameinfo))dlsym(RTLD_NEXT, "getnameinfo");
    return next(address, length, host, host_length, service, service_length, flags | NI_NUMERICHOST);
}
