/* Preloaded into Slurm's daemons (LD_PRELOAD, ld.so(8)), has them take connections from their own user and root alone.
 *
 * On one machine, they listen on loopback, where every user can connect. What others ask for, Slurm refuses; but those
 * who connect and say nothing have a thread of slurmctld each, until it has none for its owner's questions. Whose a
 * connection is, the kernel tells (sock_diag(7)); where it can't, all are taken. docs/upstream.md: when this can go.
 */
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* This is for the daemon and none of those that it starts. */
__attribute__((constructor)) static void stay_in_this_process(void) { unsetenv("LD_PRELOAD"); }

/* Whether another user has the other end; once closed, it is nobody's. */
static int is_a_strangers(int fd) {
    struct sockaddr_in own, other;
    socklen_t length = sizeof own, other_length = sizeof other;
    if (getsockname(fd, (struct sockaddr *)&own, &length) || getpeername(fd, (struct sockaddr *)&other, &other_length) ||
        own.sin_family != AF_INET || other.sin_family != AF_INET)
        return 0;
    struct {
        struct nlmsghdr header;
        struct inet_diag_req_v2 request;
    } question;
    memset(&question, 0, sizeof question);
    question.header.nlmsg_len = sizeof question;
    question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    question.header.nlmsg_flags = NLM_F_REQUEST;
    question.request.sdiag_family = AF_INET;
    question.request.sdiag_protocol = IPPROTO_TCP;
    question.request.idiag_states = ~0u;
    question.request.id.idiag_sport = other.sin_port;
    question.request.id.idiag_src[0] = other.sin_addr.s_addr;
    question.request.id.idiag_dport = own.sin_port;
    question.request.id.idiag_dst[0] = own.sin_addr.s_addr;
    question.request.id.idiag_cookie[0] = question.request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    struct {
        struct nlmsghdr header;
        struct inet_diag_msg told;
        char more[4096];
    } answer;
    int kernel = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG), stranger = 0;
    if (kernel < 0)
        return 0;
    if (send(kernel, &question, sizeof question, 0) == (ssize_t)sizeof question &&
        recv(kernel, &answer, sizeof answer, MSG_DONTWAIT) >= (ssize_t)(sizeof answer - sizeof answer.more) &&
        answer.header.nlmsg_type == SOCK_DIAG_BY_FAMILY) {
        struct inet_diag_msg *told = &answer.told;
        stranger = told->idiag_inode && told->idiag_state != TCP_LISTEN && told->idiag_uid && told->idiag_uid != geteuid();
    }
    close(kernel);
    return stranger;
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
    int taken = syscall(SYS_accept4, fd, address, length, flags);
    if (taken >= 0 && is_a_strangers(taken)) {
        close(taken);
        errno = EINTR; /* after which a daemon goes on without a word */
        return -1;
    }
    return taken;
}

int accept(int fd, struct sockaddr *address, socklen_t *length) { return accept4(fd, address, length, 0); }
