/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dumping sockets: Unix sockets, and internet sockets of the sandbox's own network.
 *
 * Only the kernel's list of sockets (sock_diag(7)) tells which Unix sockets are connected. There is
 * a list for each network namespace, so a child enters the sandbox's namespace and reads it. Data
 * that waits to be read is peeked at and stays there.
 *
 * Both ends of a TCP connection are in the sandbox, and their addresses identify them. Restore
 * connects them again. Data that was sent is available at the other end once that end has
 * acknowledged it, which it does on request (TCP_QUICKACK). Data that does not fit there waits at
 * the sender, where only a process with rights over the network can read it (TCP_REPAIR).
 *
 * The other end of a connection to outside (outside.c) cannot be copied. Restore makes a connection
 * that has been reset, after the data that had arrived.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "dump/internal.h"
#include "sys/syscalls.h"

#define MAX_MESSAGES 4096u
#define BUFFER_LOCK 72    /* SO_BUF_LOCK, Linux 5.14 */
#define OPEN_BOUND 0x89e0 /* SIOCUNIXFILE: the file that a Unix socket was bound to */
#define ACK_TRIES 20
#define ACK_NS 500000
#define HOLDER_TRIES 4
#define END_TRIES 10 /* each twice as long as the previous one: half a second in all */

struct entry {
    uint32_t inode, peer;     /* peer 0: none */
    uint32_t queued, backlog; /* of a listening socket: waiting connections, and their limit */
    uint8_t state, shut;
    uint16_t unused;
};

/* ---- the list ---- */

static void add_entry(const struct nlmsghdr *header, struct buf *to) {
    const struct unix_diag_msg *m = NLMSG_DATA(header);
    struct entry entry = { .inode = m->udiag_ino, .state = m->udiag_state };
    const struct nlattr *attribute = (const void *)(m + 1),
                        *end = (const void *)((const char *)header + header->nlmsg_len);

    while ((const char *)end - (const char *)attribute >= (ptrdiff_t)sizeof *attribute &&
           attribute->nla_len >= sizeof *attribute &&
           attribute->nla_len <= (const char *)end - (const char *)attribute) {
        const void *data = attribute + 1;

        if (attribute->nla_type == UNIX_DIAG_PEER)
            memcpy(&entry.peer, data, sizeof entry.peer);
        if (attribute->nla_type == UNIX_DIAG_SHUTDOWN)
            memcpy(&entry.shut, data, sizeof entry.shut);
        if (attribute->nla_type == UNIX_DIAG_RQLEN) {
            const struct unix_diag_rqlen *length = data;
            entry.queued = length->udiag_rqueue;
            entry.backlog = length->udiag_wqueue;
        }
        attribute = (const void *)((const char *)attribute + NLA_ALIGN(attribute->nla_len));
    }
    buf_add(to, &entry, sizeof entry);
}

static int list_here(int unused, struct buf *to) {
    (void)unused;
    struct {
        struct nlmsghdr header;
        struct unix_diag_req request;
    } ask = {
        .header = { .nlmsg_len = sizeof ask,
            .nlmsg_type = SOCK_DIAG_BY_FAMILY,
            .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
        .request = { .sdiag_family = AF_UNIX,
            .udiag_states = ~0u,
            .udiag_show = UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN },
    };
    static _Alignas(struct nlmsghdr) char answer[65536];
    auto_close int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);

    if (fd < 0 || send(fd, &ask, sizeof ask, 0) < 0)
        return -errno;
    for (;;) {
        ssize_t n = recv(fd, answer, sizeof answer, 0);
        const struct nlmsghdr *header = (const void *)answer;

        if (n < 0)
            return -errno;
        for (size_t left = (size_t)n; left >= sizeof *header &&
                                      header->nlmsg_len >= sizeof *header &&
                                      header->nlmsg_len <= left;) {
            size_t step = MIN((size_t)NLMSG_ALIGN(header->nlmsg_len), left);

            if (header->nlmsg_type == NLMSG_DONE)
                return buf_failed(to) ? -ENOMEM : 0;
            if (header->nlmsg_type == NLMSG_ERROR)
                return ((const struct nlmsgerr *)NLMSG_DATA(header))->error;
            if (header->nlmsg_type == SOCK_DIAG_BY_FAMILY)
                add_entry(header, to);
            left -= step;
            header = (const void *)((const char *)header + step);
        }
    }
}

static int list_sockets(struct dump *c) {
    return c->sockets.length ? 0 : network_ask(c->current, list_here, -EBADF, &c->sockets);
}

static const struct entry *find_entry(const struct dump *c, uint64_t inode) {
    for (size_t i = 0; i < dump_count(&c->sockets, struct entry); i++)
        if (dump_entry(&c->sockets, i, struct entry)->inode == inode)
            return dump_entry(&c->sockets, i, struct entry);
    return NULL;
}

/* ---- one socket ---- */

static int get_option(int fd, int name) {
    int value = 0;
    socklen_t length = sizeof value;

    return getsockopt(fd, SOL_SOCKET, name, &value, &length) < 0 ? -errno : value;
}

static uint64_t get_timeout(int fd, int name) {
    struct timeval time = { 0 };
    socklen_t length = sizeof time;

    return getsockopt(fd, SOL_SOCKET, name, &time, &length) < 0
               ? 0
               : (uint64_t)time.tv_sec * 1000000u + (uint64_t)time.tv_usec;
}

static short poll_ready(int fd, short events) {
    struct pollfd one = { .fd = fd, .events = events };

    return poll(&one, 1, 0) < 0 ? POLLERR : one.revents;
}

/* Of a message; with many users. */
struct sender {
    bool is_there;
    uint32_t owner, group;
};

/* A restore sends all unread data as one sender. */
static bool is_other_sender(
    const struct dump *c, const struct cmsghdr *control, struct sender *sender) {
    struct ucred ucred;
    struct sender now = { .is_there = true };

    if (!c->options->many_users || control->cmsg_len < CMSG_LEN(sizeof ucred))
        return false;
    memcpy(&ucred, CMSG_DATA(control), sizeof ucred);
    credentials_peer(c, &ucred, &now.owner, &now.group);
    if (sender->is_there && (sender->owner != now.owner || sender->group != now.group))
        return true;
    *sender = now;
    return false;
}

/* One message, or the available part of a stream. 1; 0: no more data; or -errno. Where no more data
 * can come, an empty message after all others is the end. */
static int peek_one(struct dump *c, int fd, struct buf *to, bool may_end, uint64_t *seen,
    struct sender *sender, const char **ret_why) {
    int waiting = 0;
    char control[256];
    static const char nothing[8];

    if (ioctl(fd, FIONREAD, &waiting) < 0)
        return -errno;
    size_t room = MAX((size_t)waiting, (size_t)262144);
    uint64_t *length = buf_reserve(to, sizeof *length + room + 8);
    if (!length)
        return -ENOMEM;
    struct iovec part = { length + 1, room };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control
    };
    ssize_t n = recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    for (struct cmsghdr *part_of = n >= 0 ? CMSG_FIRSTHDR(&message) : NULL; part_of;
         part_of = CMSG_NXTHDR(&message, part_of)) {
        int fds[32];

        if (part_of->cmsg_type == SCM_CREDENTIALS && is_other_sender(c, part_of, sender)) {
            *ret_why = "a socket with unread data of several users (SO_PASSCRED)";
            return -EAGAIN;
        }
        if (part_of->cmsg_type != SCM_RIGHTS)
            continue;
        *ret_why = "a socket with descriptors that were sent and not received (SCM_RIGHTS)";
        memcpy(fds, CMSG_DATA(part_of), MIN(part_of->cmsg_len - CMSG_LEN(0), sizeof fds));
        for (size_t i = 0;
             i < (part_of->cmsg_len - CMSG_LEN(0)) / sizeof fds[0] && i < ARRAY_SIZE(fds); i++)
            close(fds[i]);
    }
    if (n < 0)
        return errno == EAGAIN || errno == EINVAL || errno == ENOTCONN ? 0 : -errno;
    if (*ret_why || message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) {
        *ret_why = "a socket with descriptors that were sent and not received (SCM_RIGHTS)";
        return -ENOTSUP;
    }
    if (may_end && !n && *seen >= (uint64_t)waiting)
        return 0;
    *seen += (uint64_t)n;
    memcpy(length, &(uint64_t){ (uint64_t)n }, sizeof *length);
    to->length += sizeof *length + (size_t)n;
    buf_add(to, nothing, (8 - (size_t)n % 8) % 8);
    return 1;
}

static int peek_data(struct dump *c, int fd, struct image_file *to, const char **ret_why) {
    auto_buf struct buf data = BUF_INIT;
    int before = get_option(fd, SO_PEEK_OFF), zero = 0, r = 0;
    bool may_end =
        to->type == SOCK_STREAM || (to->type == SOCK_SEQPACKET && (to->is_shut & 1u || !to->peer));
    struct sender sender = { .owner = to->owner, .group = to->group };
    uint64_t seen = 0;

    if (setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &zero, sizeof zero) < 0)
        return -errno;
    for (unsigned i = 0; i < MAX_MESSAGES; i++) {
        r = peek_one(c, fd, &data, may_end, &seen, &sender, ret_why);
        if (r <= 0)
            break;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &before, sizeof before);
    if (r < 0)
        return r;
    to->sender = sender.owner;
    to->sender_group = sender.group;
    to->data_length = data.length;
    to->data = dump_blob(c, data.data ? data.data : "", data.length);
    return buf_failed(&data) ? -ENOMEM : 0;
}

static int refuse_socket(const char **ret_why, const char *why) {
    *ret_why = why;
    return -ENOTSUP;
}

static int dump_name(struct dump *c, int fd, struct image_file *to) {
    struct sockaddr_storage name;
    socklen_t length = sizeof name;

    if (getsockname(fd, (void *)&name, &length) < 0)
        return -errno;
    to->name = dump_blob(c, &name, MIN(length, (socklen_t)sizeof name));
    to->name_length = length;
    length = sizeof name;
    if ((to->domain == AF_INET || to->domain == AF_INET6) &&
        getpeername(fd, (void *)&name, &length) == 0) {
        to->remote = dump_blob(c, &name, MIN(length, (socklen_t)sizeof name));
        to->remote_length = length;
    }
    return 0;
}

/* A closed connection no longer knows its remote address. Restore connects it to a made-up one: its
 * own address with any port. */
static void invent_remote(struct dump *c, struct image_file *to) {
    struct sockaddr_in6 name = { 0 };

    memcpy(&name, c->blobs.data + to->name, MIN(to->name_length, sizeof name));
    name.sin6_port = 0; /* IPv4 has the port in the same place */
    to->remote = dump_blob(c, &name, to->name_length);
    to->remote_length = to->name_length;
}

static void dump_tuning(int fd, struct image_file *to) {
    static const int names[] = { TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT };
    struct linger linger;
    socklen_t length = sizeof linger;

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        int value = 0;
        socklen_t room = sizeof value;

        if (getsockopt(fd, IPPROTO_TCP, names[i], &value, &room) == 0)
            to->tuning[i] = (uint32_t)value;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &length) == 0 && linger.l_onoff)
        to->tuning[ARRAY_SIZE(names)] = (uint32_t)linger.l_linger + 1;
}

/* Linux 4.1; the C library's declaration ends earlier. */
struct tcp_info_more {
    struct tcp_info info;
    uint64_t pacing_rate, max_pacing_rate, bytes_acked;
};

/* The state of a connection. 0: not connected; 1; or -ENOTSUP and a reason. */
static int look_at_state(int fd, struct image_file *to, const char **ret_why) {
    struct tcp_info_more more = { 0 };
    socklen_t length = sizeof more;

    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &more, &length) < 0)
        return -errno;
    dump_tuning(fd, to);
    switch (more.info.tcpi_state) {
    case TCP_LISTEN: /* check_waiting */
        to->backlog = MAX(more.info.tcpi_sacked, 1u);
        return 0;
    case TCP_CLOSE:
        /* A socket that was never connected has not been shut down. */
        if (!(poll_ready(fd, POLLRDHUP) & POLLRDHUP))
            return 0;
        /* Reading the error would take it from the process. It is ECONNREFUSED where nothing was
         * ever acknowledged, not even the request to connect. */
        if (poll_ready(fd, 0) & POLLERR)
            to->failure = more.bytes_acked ? IMAGE_RESET : IMAGE_REFUSED;
        else
            to->is_shut = 2;
        to->mode = (to->mode & S_IFMT) | 1;
        return 1;
    case TCP_SYN_SENT:
        if (!outside_is_remote(fd))
            return refuse_socket(ret_why, "a TCP connection that is being opened");
        to->failure = IMAGE_REFUSED;
        return 1;
    case TCP_CLOSING:
    case TCP_LAST_ACK:
        if (!outside_is_remote(fd))
            return refuse_socket(ret_why, "a TCP connection that is being closed");
        to->failure = IMAGE_RESET;
        return 1;
    case TCP_ESTABLISHED:
    case TCP_CLOSE_WAIT:
    case TCP_FIN_WAIT1: /* await_arrival */
    case TCP_FIN_WAIT2:
        break;
    default:
        return refuse_socket(ret_why, "a TCP connection that is being opened or closed");
    }
    if (poll_ready(fd, POLLPRI) & POLLPRI)
        return refuse_socket(ret_why, "a TCP connection with urgent data");
    to->is_shut =
        (more.info.tcpi_state == TCP_FIN_WAIT1 || more.info.tcpi_state == TCP_FIN_WAIT2 ? 2u : 0) |
        (more.info.tcpi_state != TCP_CLOSE_WAIT && poll_ready(fd, POLLRDHUP) & POLLRDHUP ? 1u : 0);
    to->mode = (to->mode & S_IFMT) |
               (more.info.tcpi_state ==
                   TCP_CLOSE_WAIT); /* until sockets_connect(): the other end may be gone */
    return 1;
}

/* Does the sandbox have a network of its own, so that a copy of it can use the same port? */
static bool has_network(const struct dump *c) {
    struct stat own, its;

    return stat("/proc/self/ns/net", &own) == 0 &&
           fstatat(c->current->proc, "ns/net", &its, 0) == 0 && own.st_ino != its.st_ino;
}

static int dump_inet(struct dump *c, int fd, struct image_file *to, const char **ret_why) {
    static const struct {
        int level, name;
        uint32_t bit;
    } options[] = {
        { SOL_SOCKET, SO_REUSEADDR, IMAGE_REUSE_ADDRESS },
        { SOL_SOCKET, SO_REUSEPORT, IMAGE_REUSE_PORT },
        { SOL_SOCKET, SO_KEEPALIVE, IMAGE_KEEP_ALIVE },
        { SOL_SOCKET, SO_BROADCAST, IMAGE_BROADCAST },
        { IPPROTO_IPV6, IPV6_V6ONLY, IMAGE_V6_ONLY },
        { IPPROTO_TCP, TCP_NODELAY, IMAGE_NO_DELAY },
    };
    int waiting = 0, r = 0;

    to->protocol = (uint32_t)get_option(fd, SO_PROTOCOL);
    if (to->protocol != IPPROTO_TCP && to->protocol != IPPROTO_UDP)
        return refuse_socket(ret_why, "a network socket that is neither TCP nor UDP");
    if (!has_network(c))
        return refuse_socket(ret_why, "a socket in the host's network");
    if (to->protocol == IPPROTO_TCP)
        r = look_at_state(fd, to, ret_why);
    else if (ioctl(fd, FIONREAD, &waiting) == 0 && (waiting || poll_ready(fd, POLLIN) & POLLIN) &&
             !outside_may_lose(fd))
        r = refuse_socket(ret_why, "a datagram socket with unread data whose sender is unknown");
    if (r < 0)
        return r;
    to->fixed = (uint32_t)MAX(get_option(fd, BUFFER_LOCK), 0);
    for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
        int value = 0;
        socklen_t length = sizeof value;

        if (getsockopt(fd, options[i].level, options[i].name, &value, &length) == 0 && value)
            to->options |= options[i].bit;
    }
    to->is_alone = r == 0;
    r = dump_name(c, fd, to);
    if (r == 0 && !to->is_alone && !to->remote_length)
        invent_remote(c, to);
    return r;
}

/* The socket receives datagrams from others, and sends to another socket or to none. */
static bool is_one_way(const struct dump *c, const struct entry *entry) {
    const struct entry *other = find_entry(c, entry->peer);

    return other && other->peer != entry->inode;
}

struct bound_file {
    uint64_t device, inode, names;
};

static int look_at_bound(int fd, struct buf *to) {
    auto_close int file = ioctl(fd, OPEN_BOUND);
    struct stat st;

    if (file < 0 || fstat(file, &st) < 0)
        return -errno;
    const struct bound_file found = { st.st_dev, st.st_ino, st.st_nlink };
    buf_add(to, &found, sizeof found);
    return buf_failed(to) ? -ENOMEM : 0;
}

static bool find_bound(struct dump *c, int fd, struct bound_file *ret_file) {
    auto_buf struct buf answer = BUF_INIT;

    if (network_ask(c->current, look_at_bound, fd, &answer) < 0 ||
        answer.length != sizeof *ret_file)
        return false;
    memcpy(ret_file, answer.data, sizeof *ret_file);
    return true;
}

/* The socket has a name, but no file at its path: the file was moved or removed. Restore binds such
 * a socket and removes the file. A process with another root may have bound it below that one. */
static bool is_moved(struct dump *c, int fd, const char *path) {
    struct bound_file bound;
    struct stat st;
    const int r = memory_find_path(c->current, path, &st);

    if (r == 0 && !dump_has_other_root(c->current))
        return false;
    if (r == 0)
        return !find_bound(c, fd, &bound) || st.st_dev != bound.device || st.st_ino != bound.inode;
    return r == -ENOENT && (!find_bound(c, fd, &bound) || bound.names > 0);
}

static int dump_unix(
    struct dump *c, int fd, uint64_t inode, struct image_file *to, const char **ret_why) {
    struct ucred peer = { 0 };
    socklen_t length = sizeof peer;
    int r = list_sockets(c), waiting = 0;
    const struct entry *entry = r < 0 ? NULL : find_entry(c, inode);

    if (r < 0)
        return r;
    if (!entry)
        return refuse_socket(ret_why, "a socket that was opened outside of the sandbox");
    to->passes_credentials = get_option(fd, SO_PASSCRED) > 0;
    if (c->options->many_users && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0)
        credentials_peer(c, &peer, &to->owner, &to->group);
    to->is_alone = entry->state != TCP_ESTABLISHED ||
                   (to->type == SOCK_DGRAM && (!entry->peer || is_one_way(c, entry)));
    to->peer = entry->peer; /* inode, until sockets_connect() */
    to->is_shut = entry->shut;
    if (!to->is_alone && poll_ready(fd, POLLPRI) & POLLPRI)
        return refuse_socket(ret_why, "a socket with urgent data");
    if (!to->is_alone)
        return peek_data(c, fd, to, ret_why);
    if (entry->state == TCP_LISTEN && entry->queued)
        return refuse_socket(ret_why, "a socket with connections that have not been accepted");
    if (entry->state == TCP_LISTEN)
        to->backlog = MAX(entry->backlog, 1u);
    if (to->type == SOCK_DGRAM && ioctl(fd, FIONREAD, &waiting) == 0 && waiting)
        return refuse_socket(ret_why, "a datagram socket with unread data whose sender is unknown");
    r = dump_name(c, fd, to);
    const char *path = c->blobs.data + to->name + sizeof(sa_family_t);
    if (r < 0 || to->name_length <= sizeof(sa_family_t) || !*path)
        return r;
    if (*path != '/')
        return refuse_socket(ret_why, "a socket that is bound to a relative path");
    return is_moved(c, fd, path)
               ? refuse_socket(ret_why, "a socket whose path has changed since it was bound")
               : 0;
}

int sockets_dump(
    struct dump *c, int fd, uint64_t inode, struct image_file *to, const char **ret_why) {
    to->kind = IMAGE_FILE_SOCKET;
    to->domain = (uint32_t)get_option(fd, SO_DOMAIN);
    to->type = (uint32_t)get_option(fd, SO_TYPE);
    to->buffers[0] = (uint64_t)get_option(fd, SO_SNDBUF);
    to->buffers[1] = (uint64_t)get_option(fd, SO_RCVBUF);
    to->patience[0] = get_timeout(fd, SO_SNDTIMEO);
    to->patience[1] = get_timeout(fd, SO_RCVTIMEO);
    if (to->domain == AF_UNIX)
        return dump_unix(c, fd, inode, to, ret_why);
    if (to->domain == AF_INET || to->domain == AF_INET6)
        return dump_inet(c, fd, to, ret_why);
    return refuse_socket(ret_why, "a socket that is neither Unix, TCP nor UDP");
}

/* ---- connections ---- */

static bool is_connection(const struct image_file *file) {
    return file->kind == IMAGE_FILE_SOCKET && !file->is_alone && file->domain != AF_UNIX;
}

static int copy_of(const struct dump *c, size_t index) {
    const struct known_file *known = dump_entry(&c->known, index, struct known_file);
    auto_close int process = sys_pidfd_open(known->pid, 0);

    return process < 0 ? process : sys_pidfd_getfd(process, known->number, 0);
}

/* IPv4 addresses are compared in either notation. */
static bool is_address(const struct dump *c, uint64_t a, uint64_t b) {
    struct sockaddr_in6 both[2];
    const uint64_t from[] = { a, b };

    for (size_t i = 0; i < ARRAY_SIZE(both); i++) {
        struct sockaddr_in v4;

        memcpy(&both[i], c->blobs.data + from[i], sizeof both[i]);
        memcpy(&v4, c->blobs.data + from[i], sizeof v4);
        if (both[i].sin6_family == AF_INET) {
            memset(&both[i].sin6_addr, 0, 10);
            memset((char *)&both[i].sin6_addr + 10, 0xff, 2);
            memcpy((char *)&both[i].sin6_addr + 12, &v4.sin_addr, sizeof v4.sin_addr);
        }
    }
    return both[0].sin6_port == both[1].sin6_port &&
           !memcmp(&both[0].sin6_addr, &both[1].sin6_addr, sizeof both[0].sin6_addr);
}

static const struct dump_process *dump_process_of(const struct dump *c, size_t index) {
    pid_t pid = dump_entry(&c->known, index, struct known_file)->pid;

    for (size_t i = 0; i < c->n_dump_processes; i++)
        if (c->dump_processes[i]->pid == pid)
            return c->dump_processes[i];
    return NULL;
}

/* Restore makes one that has been reset, with its own address alone. */
static int cut(struct dump *c, struct image_file *file) {
    file->failure = IMAGE_RESET;
    file->mode &= S_IFMT;
    invent_remote(c, file);
    return 0;
}

/* Is the end of the stream about to arrive? On a busy machine, a kernel worker delivers what
 * loopback otherwise delivers within the call, and the process that closed the other end may
 * continue before that. It may also be ending, and close its files only after a while: so the other
 * end is looked for after several tries. */
static bool ends_soon(struct dump *c, size_t index, bool *ret_is_outside) {
    auto_close int fd = copy_of(c, index);
    struct tcp_info info = { .tcpi_state = TCP_ESTABLISHED };

    for (unsigned tries = 0; fd >= 0 && info.tcpi_state == TCP_ESTABLISHED && tries < END_TRIES;
         tries++) {
        socklen_t length = sizeof info;

        nanosleep(&(struct timespec){ .tv_nsec = ACK_NS << tries }, NULL);
        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) < 0)
            return false;
        if (tries == HOLDER_TRIES && info.tcpi_state == TCP_ESTABLISHED &&
            outside_is_held(dump_process_of(c, index), fd)) {
            *ret_is_outside = true;
            return false;
        }
    }
    return info.tcpi_state == TCP_CLOSE_WAIT;
}

static int find_other(struct dump *c, size_t index) {
    struct image_file *file = dump_entry(&c->files, index, struct image_file);
    const struct sockaddr *remote = (const void *)(c->blobs.data + file->remote);
    bool is_outside = outside_is_address(remote);

    if (file->failure)
        return 0;
    for (size_t i = 0; i < dump_count(&c->files, struct image_file); i++) {
        const struct image_file *other = dump_entry(&c->files, i, struct image_file);

        if (i != index && is_connection(other) && is_address(c, file->name, other->remote) &&
            is_address(c, file->remote, other->name)) {
            file->peer = (uint32_t)i + 1;
            return 0;
        }
    }
    /* The stream has ended, and no process has the other end. Nobody inside can have an address of
     * the world outside, so restore connects it to another. */
    if (file->mode & 1) {
        if (is_outside)
            invent_remote(c, file);
        return 0;
    }
    if (is_outside)
        return cut(c, file);
    if (ends_soon(c, index, &is_outside)) {
        file->mode |= 1;
        return 0;
    }
    if (is_outside)
        return cut(c, file);
    return dump_refuse(c, ENOTSUP,
        "descriptor %d of one of them is a TCP connection whose other end is in no process of the "
        "sandbox, or has not been accepted",
        dump_entry(&c->known, index, struct known_file)->number);
}

/* Waits for data in flight to an end that no process has. It is acknowledged at once. */
static int await_arrival(struct dump *c, size_t index) {
    const struct image_file *file = dump_entry(&c->files, index, struct image_file);
    auto_close int fd = file->peer || file->failure ? -EBADF : copy_of(c, index);
    int waiting = 0;

    if (file->peer || file->failure)
        return 0;
    for (unsigned tries = 0; fd >= 0 && tries < ACK_TRIES; tries++) {
        if (ioctl(fd, TIOCOUTQ, &waiting) < 0)
            return -errno;
        if (!waiting)
            return 0;
        nanosleep(&(struct timespec){ .tv_nsec = ACK_NS }, NULL);
    }
    if (fd >= 0)
        return dump_refuse(c, EAGAIN,
            "descriptor %d of one of them is a TCP connection that is being closed",
            dump_entry(&c->known, index, struct known_file)->number);
    return MIN(fd, 0);
}

enum tcp_queue { RECEIVED = 1, SENT = 2 }; /* TCP_RECV_QUEUE, TCP_SEND_QUEUE */

/* The sequence number at the end of a queue, and `n` bytes from the beginning of it. Leaving repair
 * mode clears the permission to reuse the address. */
static int peek_queue(int fd, enum tcp_queue queue, size_t n, struct buf *to) {
    int on = 1, which = queue, off = -1 /* TCP_REPAIR_OFF_NO_WP */,
        reuse = get_option(fd, SO_REUSEADDR), r = 0;
    uint32_t end = 0;
    socklen_t length = sizeof end;
    char *room = buf_reserve(to, sizeof end + n + 1);

    if (reuse < 0 || !room)
        return reuse < 0 ? reuse : -ENOMEM;
    if (setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) < 0)
        return -errno;
    if (setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, &which, sizeof which) < 0 ||
        getsockopt(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, &end, &length) < 0)
        r = -errno;
    ssize_t got = r == 0 && n ? recv(fd, room + sizeof end, n, MSG_PEEK | MSG_DONTWAIT) : 0;
    if (got < 0)
        r = -errno;
    if (setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &off, sizeof off) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse) < 0)
        r = -errno;
    memcpy(room, &end, sizeof end);
    to->length += sizeof end + (size_t)MAX(got, (ssize_t)0);
    return r;
}

static int peek_received(int fd, struct buf *to) {
    return peek_queue(fd, RECEIVED, 0, to);
}

/* And before that, the amount that is not acknowledged. At the end of a stream it is one more than
 * the bytes. Acknowledged data leaves the queue meanwhile. */
static int peek_sent(int fd, struct buf *to) {
    int waiting = 0, then = -1, r = 0;

    for (unsigned tries = 0; r == 0 && then != waiting && tries < ACK_TRIES; tries++) {
        to->length = 0;
        if (ioctl(fd, TIOCOUTQ, &waiting) < 0)
            return -errno;
        buf_add(to, &waiting, sizeof waiting);
        r = peek_queue(fd, SENT, (size_t)waiting, to);
        if (r == 0 && ioctl(fd, TIOCOUTQ, &then) < 0)
            return -errno;
    }
    if (r < 0)
        return r;
    return then == waiting ? 0 : -EAGAIN;
}

static int next_of(const struct dump_process *s, int fd, uint32_t *ret_next) {
    auto_buf struct buf received = BUF_INIT;
    int r = network_ask(s, peek_received, fd, &received);

    if (r == 0 && received.length < sizeof *ret_next)
        r = -EIO;
    if (r == 0)
        memcpy(ret_next, received.data, sizeof *ret_next);
    return r;
}

/* Adds the sender's unacknowledged data from sequence number `next` on. The receiver has the
 * rest. */
static int add_unsent(const struct dump_process *sender, int from, uint32_t next, struct buf *to) {
    auto_buf struct buf sent = BUF_INIT;
    uint32_t end;
    int waiting, r = network_ask(sender, peek_sent, from, &sent);
    const size_t head = sizeof waiting + sizeof end;

    if (r < 0)
        return r;
    if (sent.length < head)
        return -EIO;
    memcpy(&waiting, sent.data, sizeof waiting);
    memcpy(&end, sent.data + sizeof waiting, sizeof end);
    size_t n = sent.length - head, is_ended = (size_t)waiting - n, missing = (uint32_t)(end - next);
    if (!missing)
        return 0;
    if (missing < is_ended || missing - is_ended > n)
        return -EAGAIN;
    buf_add(to, sent.data + sent.length - (missing - is_ended), missing - is_ended);
    return buf_failed(to) ? -ENOMEM : 0;
}

static int add_arrived(int fd, struct buf *to) {
    int waiting = 0;

    if (ioctl(fd, FIONREAD, &waiting) < 0)
        return -errno;
    char *room = waiting ? buf_reserve(to, (size_t)waiting) : NULL;
    if (waiting && (!room || recv(fd, room, (size_t)waiting, MSG_PEEK | MSG_DONTWAIT) != waiting))
        return room ? -EIO : -ENOMEM;
    to->length += (size_t)waiting;
    return 0;
}

/* All data that was sent to an end and not read, wherever it is. Some of it may move from sender to
 * receiver meanwhile. */
static int add_stream(const struct dump_process *sender, int from, int fd, struct buf *to) {
    const size_t before = to->length;
    uint32_t next = 0, then = 1;
    int unsent = 0, r = 0;

    for (unsigned tries = 0; r == 0 && next != then && tries < ACK_TRIES; tries++) {
        to->length = before;
        /* Acknowledged data has arrived. In this order no data is missed. */
        if (from >= 0 && ioctl(from, TIOCOUTQ, &unsent) < 0)
            return -errno;
        if (!unsent)
            return add_arrived(fd, to);
        r = sender ? next_of(sender, fd, &next) : -ESRCH;
        if (r == 0)
            r = add_arrived(fd, to);
        if (r == 0)
            r = add_unsent(sender, from, next, to);
        if (r == 0)
            r = next_of(sender, fd, &then);
    }
    if (r < 0)
        return r;
    return next == then ? 0 : -EAGAIN;
}

static uint64_t limit_at(const char *path) {
    char text[32] = "";
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);

    return fd >= 0 && read(fd, text, sizeof text - 1) > 0 ? 2 * strtoull(text, NULL, 10) : 0;
}

/* The process that restores the socket may be limited to default buffer sizes. Half of a buffer is
 * certain to be available for data. */
static bool has_room(const struct image_file *file, const struct image_file *other, size_t length) {
    uint64_t room = MIN(file->buffers[1], limit_at("/proc/sys/net/core/rmem_max")) +
                    (other ? MIN(other->buffers[0], limit_at("/proc/sys/net/core/wmem_max")) : 0);

    return length <= room / 2 || length < 65536;
}

static int peek_connection(struct dump *c, size_t index) {
    static const char nothing[8];
    struct image_file *file = dump_entry(&c->files, index, struct image_file);
    auto_buf struct buf data = BUF_INIT;
    auto_close int fd = copy_of(c, index);
    auto_close int other = file->peer ? copy_of(c, file->peer - 1) : -EBADF;
    const struct dump_process *sender = file->peer ? dump_process_of(c, file->peer - 1) : NULL;
    uint64_t length = 0;

    if (fd < 0)
        return fd;
    buf_add(&data, &length, sizeof length);
    int r = add_stream(sender, other, fd, &data);
    length = data.length - sizeof length;
    if (r < 0 || !length)
        return r;
    if (!has_room(file,
            file->peer ? dump_entry(&c->files, file->peer - 1, struct image_file) : NULL, length))
        return dump_refuse(c, EAGAIN,
            "descriptor %d of one of them is a TCP connection with more unread data than a new "
            "connection can hold",
            dump_entry(&c->known, index, struct known_file)->number);
    buf_add(&data, nothing, (8 - length % 8) % 8);
    if (buf_failed(&data))
        return -ENOMEM;
    memcpy(data.data, &length, sizeof length);
    file->data_length = data.length;
    file->data = dump_blob(c, data.data, data.length);
    return 0;
}

static bool is_inside(const struct dump *c, uint64_t inode) {
    for (size_t i = 0; i < dump_count(&c->known, struct known_file); i++) {
        const struct known_file *known = dump_entry(&c->known, i, struct known_file);

        if (known->kind == IMAGE_FILE_SOCKET && known->inode == inode)
            return true;
    }
    return false;
}

/* Connections that wait to be accepted can be left out of a copy if their other ends are outside,
 * because those stay with the origin. */
static int check_waiting(struct dump *c, size_t index) {
    const struct image_file *file = dump_entry(&c->files, index, struct image_file);
    auto_buf struct buf others = BUF_INIT;
    struct tcp_info info = { 0 };
    socklen_t length = sizeof info;

    if (file->kind != IMAGE_FILE_SOCKET || file->domain == AF_UNIX || !file->backlog)
        return 0;
    auto_close int fd = copy_of(c, index);
    if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) < 0)
        return fd < 0 ? fd : -errno;
    if (!info.tcpi_unacked)
        return 0;
    bool are_outside = outside_waiting(dump_process_of(c, index), fd, &others) == 0 &&
                       others.length == info.tcpi_unacked * sizeof(uint64_t);
    for (size_t i = 0; are_outside && i < others.length / sizeof(uint64_t); i++) {
        const uint64_t inode = *dump_entry(&others, i, uint64_t);

        are_outside = inode && !is_inside(c, inode);
    }
    return are_outside ? 0
                       : dump_refuse(c, ENOTSUP,
                             "descriptor %d of one of them is a socket with connections that have "
                             "not been accepted",
                             dump_entry(&c->known, index, struct known_file)->number);
}

static int connect_internet(struct dump *c) {
    static int (*const steps[])(
        struct dump *, size_t) = { find_other, await_arrival, peek_connection };
    int r = 0;

    c->current = NULL;
    for (size_t i = 0; i < dump_count(&c->files, struct image_file) && r == 0; i++)
        r = check_waiting(c, i);
    for (size_t step = 0; step < ARRAY_SIZE(steps) && r == 0; step++)
        for (size_t i = 0; i < dump_count(&c->files, struct image_file) && r == 0; i++)
            if (is_connection(dump_entry(&c->files, i, struct image_file)))
                r = steps[step](c, i);
    return r < 0 && !c->error->code ? dump_fail(c, "its connections", r) : r;
}

static int connect_local(struct dump *c) {
    size_t n = dump_count(&c->files, struct image_file);

    for (size_t i = 0; i < n; i++) {
        struct image_file *file = dump_entry(&c->files, i, struct image_file);
        const struct known_file *known = dump_entry(&c->known, i, struct known_file);
        size_t other = 0;

        if (file->kind != IMAGE_FILE_SOCKET || file->domain != AF_UNIX || !file->peer)
            continue;
        while (other < n &&
               (dump_entry(&c->known, other, struct known_file)->kind != IMAGE_FILE_SOCKET ||
                   dump_entry(&c->known, other, struct known_file)->inode != file->peer))
            other++;
        if (other == n) {
            c->current = NULL;
            return dump_refuse(c, ENOTSUP,
                "descriptor %d of one of them is a socket whose other end is outside of the "
                "sandbox or has not been accepted",
                known->number);
        }
        file->peer = (uint32_t)other + 1;
        const struct image_file *to = dump_entry(&c->files, other, struct image_file);
        if (file->is_alone && (!to->is_alone || to->name_length <= sizeof(sa_family_t))) {
            c->current = NULL;
            return dump_refuse(c, ENOTSUP,
                "descriptor %d of one of them is a datagram socket that is connected to a socket "
                "without a name, or to one that is connected itself",
                known->number);
        }
    }
    return 0;
}

int sockets_connect(struct dump *c) {
    int r = connect_local(c);

    return r < 0 ? r : connect_internet(c);
}
