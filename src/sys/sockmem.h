/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What waits in a sandbox's sockets: memory of the kernel's that no process has, and that nothing
 * counts where there is no memory cgroup. The kernel tells it of each socket of a network namespace
 * (sock_diag(7)) to whoever asks in that namespace; the socket to ask with stays of it wherever it
 * is used.
 */
#ifndef ROLLBOX_SYS_SOCKMEM_H
#define ROLLBOX_SYS_SOCKMEM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct sockmem {
    int fd;               /* asks; -EBADF: not open */
    int protocols;        /* of that namespace, /proc/net/protocols */
    unsigned kinds, list; /* of the answer under way: what it is about, and which of the kernel's
                             lists is next */
    bool is_asked;        /* for that list */
    uint64_t bytes;
    uint32_t datagram_sockets, packet_sockets, unseen_packets;
};

/* In the network namespace of the child of init's that can be looked into first (init itself
 * cannot). The caller stays where it is: a child of its own goes there, for some hundred
 * microseconds. -ESRCH: there is no such process, -EPERM, -EMFILE, ... Two descriptors. */
int sockmem_open(pid_t init_pid, struct sockmem *ret_sockmem);
void sockmem_close(struct sockmem *sockmem);

#define SOCKMEM_UNIX 1u
#define SOCKMEM_INET 2u /* TCP and UDP */
#define SOCKMEM_NETLINK 4u

/* The memory of all sockets there of these kinds, theirs included that nobody has a descriptor of
 * any more (they are on their way in a message, or not accepted yet). What a Unix socket that is
 * gone has sent, and nobody has read, is not told: it is taken for as much as it can be, but for
 * some tens of such sockets, which are taken for ordinary ones. Takes some 0.2 microseconds a
 * socket, so an answer may take several calls: 0 is returned when it is `until_ns`
 * (CLOCK_MONOTONIC) and there is more to come, for which `fd` is readable; 1 with the answer, or
 * with what there is as soon as that is more than `limit_bytes`; or -errno. After an error, or an
 * answer above the limit, it can only be closed. */
int sockmem_usage(struct sockmem *sockmem, unsigned kinds, uint64_t limit_bytes, int64_t until_ns,
    uint64_t *ret_bytes);

#endif
