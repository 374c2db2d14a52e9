/* SPDX-License-Identifier: Apache-2.0 */
/* The files agent: reads, writes and transfers files for the client library, from inside the
 * sandbox. files.c has the model, base/transfer.h what is said. */
#ifndef ROLLBOX_GUEST_FILES_H
#define ROLLBOX_GUEST_FILES_H

/* Serves requests on a connected SOCK_SEQPACKET socket until its other end closes, then ends the
 * process. For a forked child of init that is already all that a command of the sandbox is before
 * execve: the guest's ids, no capabilities, its Landlock domain, its seccomp filter, a working
 * directory of "/". Other descriptors should be closed. */
_Noreturn void files_serve(int socket);

/* In init, instead, when there can be no agent now: says so, that the client may try again. Nothing
 * of the request has been done. */
void files_refuse(int socket);

#endif
