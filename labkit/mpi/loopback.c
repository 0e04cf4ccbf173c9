/* Preloaded into mpirun (LD_PRELOAD, ld.so(8)), has it listen nowhere; in a Slurm job, on loopback alone.
 *
 * Hydra binds the port to which its proxies on other nodes connect to all of a machine's addresses, and has no option
 * for fewer (MPICH 5.0.2, MPL_listen in src/mpl/src/sock/mpl_sockaddr.c; docs/upstream.md says when this can go:
 * https://github.com/pmodels/mpich/issues/6010). On one machine its proxy has a pair of
 * sockets instead, so nobody needs to connect at all. In a Slurm job, srun starts the proxy, which connects from this
 * machine. (A filter that drops all packets to the port would do, but not every kernel lets every user have one.)
 */
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* This is for mpirun and none of those that it starts. */
__attribute__((constructor)) static void stay_in_this_process(void) {
    const char *all = getenv("LD_PRELOAD"), *rest = all ? strpbrk(all, ": ") : NULL;
    if (rest)
        setenv("LD_PRELOAD", rest + 1, 1);
    else
        unsetenv("LD_PRELOAD");
}

int bind(int fd, const struct sockaddr *address, socklen_t length) {
    struct sockaddr_in loopback;
    if (address->sa_family == AF_INET && length == sizeof loopback) {
        memcpy(&loopback, address, length);
        loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address = (const struct sockaddr *)&loopback;
    }
    return syscall(SYS_bind, fd, address, length);
}

int listen(int fd, int backlog) {
    int family = 0, never = -1;
    socklen_t length = sizeof family;
    if (!getenv("SLURM_JOB_ID") && !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &length) && family == AF_INET)
        never = eventfd(0, 0); /* is never ready to be read: mpirun waits for a connection that does not come */
    if (never < 0 || dup2(never, fd) < 0)
        return syscall(SYS_listen, fd, backlog);
    close(never);
    return 0;
}
