/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seccomp filter: generates the classic BPF program under which every process of a sandbox
 * runs. It does no I/O.
 *
 * A table (syscalls_x86_64.h) gives each system call a verdict. filter_build turns the table and
 * the options into a balanced binary search over ranges of call numbers, with argument checks for a
 * few calls at the end. The verdicts are: allow; EPERM (known, forbidden); ENOSYS (unknown, newer
 * than the table, or not needed by programs); another errno where programs expect it; and death of
 * the process for a call by another ABI (i386, x32). The filter is an allow-list: calls that the
 * table does not name get ENOSYS.
 */
#ifndef ROLLBOX_POLICY_FILTER_H
#define ROLLBOX_POLICY_FILTER_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* No program that filter_build makes is longer. */
#define FILTER_MAX_INSTRUCTIONS 1024

/* No access control list of a guest's is longer: 60 entries, which take 512 bytes. */
#define FILTER_ATTRIBUTE_BYTES 484

struct filter_options {
    /* The sandbox has no namespaces of its own: no AF_UNIX socket but a connected pair (a socket
     * could reach a host's path or abstract name), INET and NETLINK_ROUTE only with net_host, no
     * System V IPC or message queues (they would be the host's), no watching of directories, no
     * reading of attributes by name (Landlock does not hold it; of what is open it is allowed), and
     * nothing that changes another process by its pid: Landlock scopes signals and ptrace, but not
     * prlimit64, setpriority, sched_set* and ioprio_set. */
    bool process_isolation;
    bool net_host; /* the sandbox uses the host's network; matters only with process_isolation */
    /* No memory that is nobody's mapping: no memory cgroup would charge it to the sandbox.
     * memfd_create and System V IPC are ENOSYS (but see allow_segments), Landlock rulesets (any
     * number of rules each) EOPNOTSUPP, as where Landlock is switched off; what puts whole pages
     * into pipes and sockets for a byte of each (splice, vmsplice, tee, sendfile) is EINVAL, as it
     * is for kinds of files that cannot, so that programs read and write instead. */
    bool deny_uncharged;
    bool allow_segments;  /* even so, shared memory of System V: init bounds it for the whole
                             sandbox, or refuses it (guest/det/sysv_ipc_times.c) */
    bool allow_affinity;  /* sched_setaffinity of the caller itself has an effect (init's, under
                             serial; of its commands it is forged). Else it succeeds and changes
                             nothing */
    bool deny_setid_bits; /* set-user-id and set-group-id files cannot be made, because written
                             files land on the host */
    /* Modes, owners, times and attributes of files stay as they are. For a guest that runs with the
     * uid of the host's user and without a mount namespace: Landlock does not hold chmod, utime and
     * kin, so it could change any file of that user. chmod and utime do nothing and return 0 (so
     * that git, tar and cp work), chown is EPERM, setxattr EOPNOTSUPP. */
    bool keep_metadata;
    bool no_inet; /* only AF_UNIX sockets: with net none, other sockets could only fail, and leave
                     traces in counters */
    /* One seccomp listener, for init's own child: each command has it from its start, and the
     * kernel refuses a second to whom it holds (EBUSY). */
    bool allow_listener;
    bool allow_getfd;  /* for init: commands have a second filter that refuses it (determinism.c) */
    bool deny_reserve; /* fallocate only gives blocks back (else EOPNOTSUPP): it would take
                          gigabytes of a disk faster than anybody can look */
    bool no_sync; /* sync and syncfs have no effect: they would write the dirty data of the whole
                     host, and a process that waits for that cannot be killed */
    /* users many: chroot has an effect (else no process has the capability for it, and EPERM is
     * what the kernel would say), and without a network the kernel's audit system is one that is
     * not there: programs that change users continue then, and end at any other error. */
    bool many_users;
};

/* Writes the program to program[0..capacity). Returns the number of instructions, or -ENOBUFS
 * (FILTER_MAX_INSTRUCTIONS always suffice) or -ENOTSUP (an architecture without a table).
 * Deterministic: equal options give equal programs. */
int filter_build(
    const struct filter_options *options, struct sock_filter *program, size_t capacity);

/* Appends the program as text: one instruction a line, labels at jump targets, names of system
 * calls, errnos and fields of seccomp_data. 0 or -ENOMEM
 * (-EINVAL for an instruction that is none). */
int filter_disassemble(const struct sock_filter *program, size_t n, struct buf *to);

/* "openat", or NULL for a number that the table does not know. Static. */
const char *filter_syscall_name(unsigned number);

#endif
