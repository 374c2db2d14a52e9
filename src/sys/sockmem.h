/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What waits in a sandbox' sockets: memory of the kernel's that no process has, and that nothing counts where there is no memory
 * cgroup. The kernel tells it of each socket of a network namespace (sock_diag(7)) to whoever asks in that namespace; the socket
 * to ask with stays of it wherever it is used.
 */
#ifndef ROLLBOX_SYS_SOCKMEM_H
#define ROLLBOX_SYS_SOCKMEM_H

#include <stdint.h>
#include <sys/types.h>

/* A socket to ask with, in the network namespace of the child of init's that can be looked into first (init itself cannot). The
 * caller stays where it is: a child of its own goes there, for some hundred microseconds. -ESRCH: there is no such process,
 * -EPERM, -EMFILE, ... */
int sockmem_open(pid_t init_pid, int *ret_fd);

#define SOCKMEM_UNIX 1u
#define SOCKMEM_INET 2u         /* TCP and UDP */
#define SOCKMEM_NETLINK 4u

/* The memory of all sockets there of these kinds, theirs included that nobody has a descriptor of any more (they are on their way in
 * a message, or not accepted yet). What a Unix socket that is gone has sent, and nobody has read, is not told: it is taken for as
 * much as it can be. -errno if it cannot be told. Takes some 0.2 microseconds a socket. */
int sockmem_usage(int fd, unsigned kinds, uint64_t *ret_bytes);

#endif
