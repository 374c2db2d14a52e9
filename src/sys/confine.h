/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of rollbox gives up all rights that it does not need, before it reads untrusted bytes.
 *
 * A program that parses data of guests, servers or clients may be exploited by them. The attacker
 * then has the descriptors of the program, and no other access. Two layers enforce this: a list of
 * system calls (seccomp), and a Landlock domain that grants no file. On a kernel without Landlock
 * there is only the list.
 */
#ifndef ROLLBOX_SYS_CONFINE_H
#define ROLLBOX_SYS_CONFINE_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sys/uapi.h"

/* The rights that the program keeps. */
struct confine_service {
    const int *calls; /* system calls; mmap, mprotect and socket are not among them */
    size_t n_calls;
    bool may_connect; /* makes sockets of the two Internet families and connects them */
};

/*
 * Confines the calling process for good. It gives up root's id and all capabilities, cannot be
 * traced or dumped by its user, dies with its parent, opens no file, runs no program, and maps no
 * memory that can be executed. 0 or -errno; *ret_step then says which step failed.
 */
int confine_service(const struct confine_service *service, const char **ret_step);

/* --- Parts, for programs that keep more than that ----------------------------------------------
 */

#define CONFINE_FILTER_HEAD 6 /* instructions that confine_filter_head writes at the most */

/* Ends the process at a call of another architecture or of x32; loads the call's number. Returns
 * the number of instructions. */
unsigned short confine_filter_head(struct sock_filter *program);

/* Allows the calls of `service`, and memory that is not executable, and refuses all others; for all
 * threads of the process. It needs no_new_privs. 0 or -errno. */
int confine_calls(const struct confine_service *service);

/* No core file, and /proc/PID/mem is closed to processes of the same user. 0 or -errno. */
int confine_memory(void);

/* Landlock's version that the process may use: 0 without Landlock, or where ROLLBOX_KFEAT masks it.
 */
int confine_landlock_abi(void);

/* All rights of files that Landlock of this version knows. */
uint64_t confine_landlock_files(int abi);

#endif
