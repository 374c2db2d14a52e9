/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of data that waits in a sandbox's sockets. It belongs to the kernel, not to a process, and
 * without a memory cgroup no limit counts it. The kernel reports it for each socket of a network
 * namespace (sock_diag(7)) to a socket that was created in that namespace. Such a socket keeps
 * working when a process outside holds it.
 */
#ifndef ROLLBOX_SYS_SOCKMEM_H
#define ROLLBOX_SYS_SOCKMEM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct sockmem {
    int fd;        /* the socket for the questions; -EBADF: not open */
    int protocols; /* /proc/net/protocols of that namespace */
    unsigned kinds,
        list;      /* of the current question: the kinds asked for, and the kernel's next list */
    bool is_asked; /* the question for that list has been sent */
    uint64_t bytes;
    uint32_t datagram_sockets, packet_sockets, unseen_packets;
};

/* Opens two descriptors in the network namespace of a sandbox, through the first child of init that
 * may be inspected (init may not). The caller stays in its namespace: a short-lived child enters
 * the other one, which takes some hundred microseconds. -ESRCH: no such process; -EPERM, -EMFILE,
 * ... */
int sockmem_open(pid_t init_pid, struct sockmem *ret_sockmem);
void sockmem_close(struct sockmem *sockmem);

#define SOCKMEM_UNIX 1u
#define SOCKMEM_INET 2u /* TCP and UDP */
#define SOCKMEM_NETLINK 4u

/* Adds up the memory of all sockets of these kinds in the namespace. Sockets without a descriptor
 * are included: sockets that are in flight in a message or were not accepted yet. Data that a
 * closed Unix socket has sent and no process has read is not reported; such a socket counts with
 * the maximum it can hold, except that some tens of them count as ordinary sockets.
 *
 * The kernel takes some 0.2 microseconds per socket, so one answer may need several calls. Returns
 * 0 if `until_ns` (CLOCK_MONOTONIC) has passed and more is to come; `fd` is then readable. Returns
 * 1 with the answer, or early with a partial sum above `limit_bytes`. Otherwise -errno. After an
 * error or a sum above the limit, the only valid call is sockmem_close. */
int sockmem_usage(struct sockmem *sockmem, unsigned kinds, uint64_t limit_bytes, int64_t until_ns,
    uint64_t *ret_bytes);

#endif
