/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of sockets: see sockmem.h for the model. Formats: sock_diag(7),
 * linux/{unix,inet,netlink}_diag.h. */
#include "sys/sockmem.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/netlink_diag.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "sys/proc.h"
#include "sys/syscalls.h"

#define GET_USERNS _IO(0xb7, 1) /* NS_GET_USERNS */
#define SOCKET_BYTES 2048       /* of the socket itself, its inode and its file */
#define QUEUE_LENGTH                                                                               \
    11 /* datagrams that wait at one Unix socket (net.unix.max_dgram_qlen, and one more) */
#define FEW_SENDERS                                                                                \
    64 /* that are gone, which any program may have for a moment: none of them had a larger buffer \
          than usual */
#define SHORT_SOCKET_BYTES 320
#define MAX_PROTOCOLS (1 << 20) /* bytes that tell of them: some 130 each */
#define MAX_CHILDREN 64

/* ---- a socket of that namespace ---- */

/* The network namespace of a process, and the user namespace that it belongs to. By one descriptor
 * of the process: its number may be another's by now. */
static int open_namespaces(
    pid_t pid, pid_t parent, int *ret_net, int *ret_owner, int *ret_protocols) {
    char path[32], text[512] = "";
    int its_parent = 0;

    snprintf(path, sizeof path, "/proc/%d", (int)pid);
    auto_close int process = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (process < 0)
        return -ESRCH;
    auto_close int stat = openat(process, "stat", O_RDONLY | O_CLOEXEC);
    if (stat < 0 || read(stat, text, sizeof text - 1) <= 0)
        return -ESRCH;
    const char *name_ends = strrchr(text, ')');
    if (!name_ends || sscanf(name_ends + 1, " %*c %d", &its_parent) != 1 || its_parent != parent)
        return -ESRCH;
    auto_close int net = openat(process, "ns/net", O_RDONLY | O_CLOEXEC);
    if (net < 0)
        return -errno;
    auto_close int protocols = openat(process, "net/protocols", O_RDONLY | O_CLOEXEC);
    if (protocols < 0)
        return -errno;
    *ret_owner = ioctl(net, GET_USERNS);
    if (*ret_owner < 0)
        return -errno;
    *ret_net = TAKE_FD(net);
    *ret_protocols = TAKE_FD(protocols);
    return 0;
}

/* Of a child that shares our descriptors, and nothing else: system calls only. Its socket takes the
 * place of ours that was kept for it. */
_Noreturn static void open_there(int net, int owner, int place) {
    int r = sys_setns(net, CLONE_NEWNET);

    /* An ordinary user has the rights that this takes in the namespace of the owner alone. */
    if (r < 0)
        r = sys_setns(owner, CLONE_NEWUSER);
    if (r == 0)
        r = sys_setns(net, CLONE_NEWNET);
    if (r == 0)
        r = (int)sys_call3(__NR_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (r >= 0) {
        int fd = r;

        r = (int)sys_call3(__NR_dup3, fd, place, O_CLOEXEC);
        sys_call1(__NR_close, fd);
    }
    sys_call1(__NR_exit_group, r < 0 ? -r : 0);
    __builtin_unreachable();
}

static int open_by_child(int net, int owner, int *ret_fd) {
    auto_close int place = eventfd(0, EFD_CLOEXEC);
    int status;

    if (place < 0)
        return -errno;
    pid_t pid = (pid_t)sys_clone(
        CLONE_FILES, NULL); /* no signal at its end: nobody else is to wait for it */
    if (pid < 0)
        return pid;
    if (pid == 0)
        open_there(net, owner, place);
    while (waitpid(pid, &status, __WALL) < 0)
        if (errno != EINTR)
            return -errno;
    if (!WIFEXITED(status))
        return -ECHILD;
    if (WEXITSTATUS(status))
        return -WEXITSTATUS(status);
    *ret_fd = TAKE_FD(place);
    return 0;
}

int sockmem_open(pid_t init_pid, struct sockmem *ret_sockmem) {
    pid_t pids[MAX_CHILDREN];
    ssize_t n = proc_children(init_pid, pids, MAX_CHILDREN);
    int r = n < 0 ? (int)n : -ESRCH, fd = -EBADF;

    for (ssize_t i = 0; i < n && r < 0; i++) {
        auto_close int net = -EBADF, owner = -EBADF, protocols = -EBADF;

        r = open_namespaces(pids[i], init_pid, &net, &owner, &protocols);
        if (r == 0 && (r = open_by_child(net, owner, &fd)) == 0)
            *ret_sockmem = (struct sockmem){ .fd = fd, .protocols = TAKE_FD(protocols) };
        else if (r < 0 && net >= 0)
            return r;
    }
    return r;
}

void sockmem_close(struct sockmem *sockmem) {
    close_fd(&sockmem->fd);
    close_fd(&sockmem->protocols);
}

/* ---- the sum ---- */

static uint64_t read_setting(const char *path, uint64_t least) {
    auto_buf struct buf text = BUF_INIT;
    int r = fd_read_file(path, 64, &text);

    buf_add(&text, "", 1);
    return MAX(r == 0 && !buf_failed(&text) ? strtoull(text.data, NULL, 10) : 0, least);
}

/* The most unread bytes that a Unix socket may have sent. SO_SNDBUF is at most twice this, and the
 * last message may exceed it. */
static uint64_t max_sent(void) {
    static uint64_t most;

    if (!most)
        most = 2 * read_setting("/proc/sys/net/core/wmem_max", 212992) + 65536;
    return most;
}

/* The same for a socket with the default SO_SNDBUF. */
static uint64_t usually_sent(void) {
    static uint64_t most;

    if (!most)
        most = 2 * read_setting("/proc/sys/net/core/wmem_default", 212992);
    return MIN(most, max_sent());
}

/* One of a message's attributes, which come after `before` bytes of it; NULL: there is none of this
 * type, or it has less than `size` bytes. */
static const struct nlattr *find_attribute(
    const struct nlmsghdr *header, size_t before, unsigned type, size_t size) {
    size_t at = NLMSG_HDRLEN + NLMSG_ALIGN(before);

    while (at + sizeof(struct nlattr) <= header->nlmsg_len) {
        const struct nlattr *a = (const void *)((const char *)header + at);

        if (a->nla_len < sizeof *a || a->nla_len > header->nlmsg_len - at)
            break;
        if (a->nla_type == type)
            return a->nla_len - sizeof *a >= size ? a : NULL;
        at += NLA_ALIGN(a->nla_len);
    }
    return NULL;
}

static void add_memory(const struct nlattr *attribute, struct sockmem *sum) {
    if (!attribute)
        return;
    const uint32_t *memory = (const void *)(attribute + 1);
    sum->bytes += (uint64_t)memory[SK_MEMINFO_RMEM_ALLOC] + memory[SK_MEMINFO_FWD_ALLOC] +
                  memory[SK_MEMINFO_WMEM_QUEUED] + memory[SK_MEMINFO_BACKLOG];
}

/* Charged for what waits is who has sent it. When that one is gone, all there is to see is the
 * length, of a stream; of packets, too, but those may have none; of datagrams nothing (see
 * unseen_bytes); and of a connection that is not accepted, that there is one. */
static void add_unix(const struct nlmsghdr *header, struct sockmem *sum) {
    const struct unix_diag_msg *message = NLMSG_DATA(header);
    const struct nlattr *memory = find_attribute(
        header, sizeof *message, UNIX_DIAG_MEMINFO, (SK_MEMINFO_WMEM_ALLOC + 1) * sizeof(uint32_t));
    const struct nlattr *peer =
        find_attribute(header, sizeof *message, UNIX_DIAG_PEER, sizeof(uint32_t));
    const struct nlattr *length =
        find_attribute(header, sizeof *message, UNIX_DIAG_RQLEN, sizeof(struct unix_diag_rqlen));
    const struct nlattr *connecting =
        find_attribute(header, sizeof *message, UNIX_DIAG_ICONS, sizeof(uint32_t));

    sum->bytes += SOCKET_BYTES;
    if (memory)
        sum->bytes += ((const uint32_t *)(const void *)(memory + 1))[SK_MEMINFO_WMEM_ALLOC];
    for (size_t i = 0;
         connecting && i < (connecting->nla_len - sizeof *connecting) / sizeof(uint32_t); i++)
        sum->bytes +=
            SOCKET_BYTES + (((const uint32_t *)(const void *)(connecting + 1))[i] ? 0 : max_sent());
    if (message->udiag_type == SOCK_DGRAM)
        sum->datagram_sockets++;
    else if (message->udiag_state != TCP_LISTEN && length &&
             (!peer || !*(const uint32_t *)(const void *)(peer + 1))) {
        uint32_t waits = ((const struct unix_diag_rqlen *)(const void *)(length + 1))->udiag_rqueue;
        bool is_unseen =
            message->udiag_type == SOCK_SEQPACKET && message->udiag_state == TCP_ESTABLISHED;

        sum->unseen_packets += is_unseen;
        sum->bytes += is_unseen ? 0
                                : MIN((uint64_t)waits * 1024,
                                      max_sent()); /* a message of one byte takes 768 */
    }
    sum->packet_sockets += message->udiag_type == SOCK_SEQPACKET;
}

static void add_inet(const struct nlmsghdr *header, struct sockmem *sum) {
    const struct nlattr *memory = find_attribute(header, sizeof(struct inet_diag_msg),
        INET_DIAG_SKMEMINFO, (SK_MEMINFO_BACKLOG + 1) * sizeof(uint32_t));

    /* A socket without this information is incomplete: a connection that ended within the last
     * minute, or one that is being opened. */
    sum->bytes += memory ? SOCKET_BYTES : SHORT_SOCKET_BYTES;
    add_memory(memory, sum);
}

static void add_netlink(const struct nlmsghdr *header, struct sockmem *sum) {
    sum->bytes += SOCKET_BYTES;
    add_memory(find_attribute(header, sizeof(struct netlink_diag_msg), NETLINK_DIAG_MEMINFO,
                   (SK_MEMINFO_BACKLOG + 1) * sizeof(uint32_t)),
        sum);
}

struct question {
    struct nlmsghdr header;
    union {
        struct unix_diag_req of_unix;
        struct inet_diag_req_v2 inet;
        struct netlink_diag_req netlink;
    };
};

/* A socket that is closed is in no list, but counts for its protocol until the last that it has
 * sent is read. For what waits in datagrams and packets there is a bound in that, and another one
 * in who could have them. */
static int unseen_bytes(const struct sockmem *sum, uint64_t *ret_bytes) {
    const uint64_t receivers = (uint64_t)sum->datagram_sockets * QUEUE_LENGTH + sum->unseen_packets;
    const uint64_t listed = (uint64_t)sum->datagram_sockets + sum->packet_sockets;
    auto_buf struct buf whole = BUF_INIT;

    *ret_bytes = 0;
    if (!receivers)
        return 0;
    /* A read gives a page at most, some thirty protocols, and the oldest come last: Unix is one of
     * those. */
    int r = fd_read_again(sum->protocols, MAX_PROTOCOLS, &whole);
    if (r < 0)
        return r;
    const char *row = strstr(whole.data, "\nUNIX "); /* streams have one of their own */
    unsigned long long living;
    if (!row || sscanf(row, " UNIX %*u %llu", &living) != 1)
        return -EBADMSG;
    const uint64_t senders = MIN(living > listed ? living - listed : 0, receivers),
                   few = MIN(senders, (uint64_t)FEW_SENDERS);
    *ret_bytes = few * usually_sent() + (senders - few) * max_sent();
    return 0;
}

struct socket_list {
    uint8_t family, protocol;
    unsigned kind;
    void (*add)(const struct nlmsghdr *header, struct sockmem *sum);
};

static const struct socket_list lists[] = {
    { AF_UNIX, 0, SOCKMEM_UNIX, add_unix },
    { AF_INET, IPPROTO_TCP, SOCKMEM_INET, add_inet },
    { AF_INET6, IPPROTO_TCP, SOCKMEM_INET, add_inet },
    { AF_INET, IPPROTO_UDP, SOCKMEM_INET, add_inet },
    { AF_INET6, IPPROTO_UDP, SOCKMEM_INET, add_inet },
    { AF_NETLINK, NDIAG_PROTO_ALL, SOCKMEM_NETLINK, add_netlink },
};

static int request_sockets(int fd, const struct socket_list *list) {
    struct question question = { 0 };
    size_t length = sizeof question.netlink;

    if (list->family == AF_UNIX) {
        question.of_unix = (struct unix_diag_req){ .sdiag_family = AF_UNIX,
            .udiag_states = ~0u,
            .udiag_show =
                UDIAG_SHOW_MEMINFO | UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN | UDIAG_SHOW_ICONS };
        length = sizeof question.of_unix;
    } else if (list->family == AF_NETLINK) {
        question.netlink = (struct netlink_diag_req){ .sdiag_family = AF_NETLINK,
            .sdiag_protocol = list->protocol,
            .ndiag_show = NDIAG_SHOW_MEMINFO };
    } else {
        question.inet = (struct inet_diag_req_v2){ .sdiag_family = list->family,
            .sdiag_protocol = list->protocol,
            .idiag_ext = 1 << (INET_DIAG_SKMEMINFO - 1),
            .idiag_states = ~0u };
        length = sizeof question.inet;
    }
    question.header = (struct nlmsghdr){ .nlmsg_len = (uint32_t)(NLMSG_HDRLEN + length),
        .nlmsg_type = SOCK_DIAG_BY_FAMILY,
        .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP };
    return send(fd, &question, question.header.nlmsg_len, 0) < 0 ? -errno : 0;
}

/* Reads the part of a list that the kernel has ready; the kernel prepares the next part meanwhile.
 * 1: this was the last part, or the kernel has no such list. */
static int take_part(struct sockmem *sum, const struct socket_list *list) {
    static _Alignas(struct nlmsghdr) char answer[65536];
    const struct nlmsghdr *header = (const void *)answer;
    ssize_t n = recv(sum->fd, answer, sizeof answer, MSG_DONTWAIT);

    if (n < 0)
        return -errno;
    for (size_t left = (size_t)n; left >= sizeof *header && header->nlmsg_len >= sizeof *header &&
                                  header->nlmsg_len <= left;) {
        size_t step = MIN((size_t)NLMSG_ALIGN(header->nlmsg_len), left);

        if (header->nlmsg_type == NLMSG_DONE)
            return 1;
        if (header->nlmsg_type == NLMSG_ERROR) {
            int error = ((const struct nlmsgerr *)NLMSG_DATA(header))->error;

            if (error == -ENOENT)
                return 1;
            return error ? error : -EBADMSG;
        }
        if (header->nlmsg_type == SOCK_DIAG_BY_FAMILY)
            list->add(header, sum);
        left -= step;
        header = (const void *)((const char *)header + step);
    }
    return 0;
}

int sockmem_usage(struct sockmem *sum, unsigned kinds, uint64_t limit_bytes, int64_t until_ns,
    uint64_t *ret_bytes) {
    uint64_t unseen = 0;
    int r = 0;

    if (!sum->list && !sum->is_asked)
        *sum = (struct sockmem){ .fd = sum->fd, .protocols = sum->protocols, .kinds = kinds };
    for (bool took = false;; took = true) {
        while (!sum->is_asked && sum->list < ARRAY_SIZE(lists) &&
               !(lists[sum->list].kind & sum->kinds))
            sum->list++;
        if (sum->list == ARRAY_SIZE(lists) || sum->bytes > limit_bytes)
            break;
        if (!sum->is_asked && (r = request_sockets(sum->fd, &lists[sum->list])) < 0)
            return r;
        sum->is_asked = true;
        if (took && clock_now_ns() >= until_ns)
            return 0;
        r = take_part(sum, &lists[sum->list]);
        if (r < 0)
            return r;
        sum->is_asked = !r;
        sum->list += (unsigned)r;
    }
    if (sum->bytes <= limit_bytes && (r = unseen_bytes(sum, &unseen)) < 0)
        return r;
    *ret_bytes = sum->bytes + unseen;
    sum->list = 0;
    return 1;
}
