/* SPDX-License-Identifier: Apache-2.0 */
/* The files agent: reads, writes and transfers files for the client library, inside the sandbox.
 * files.c has the model, base/transfer.h the protocol. */
#ifndef ROLLBOX_GUEST_FILES_H
#define ROLLBOX_GUEST_FILES_H

#include <stdint.h>

/* Users of the sandbox (init/users.h). Both return 0, -TRANSFER_UNKNOWN_USER or -errno. */
struct files_users {
    int (*act_as)(const char *user); /* this process, for all that follows */
    int (*find)(const char *owner, uint32_t *ret_uid, uint32_t *ret_gid);
};

/* Serves requests on a connected SOCK_SEQPACKET socket until its other end closes, then ends the
 * process. The caller is a forked child of init in the state of a command before execve: the
 * guest's ids, no capabilities (with many users root's), its Landlock domain and seccomp filter,
 * working directory "/". Other descriptors should be closed. */
_Noreturn void files_serve(int socket, const struct files_users *users);

/* In init, when no agent can be started: answers that the client may try again. Nothing of the
 * request has been done. */
void files_refuse(int socket);

#endif
