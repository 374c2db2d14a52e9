/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hoards: kernel memory that a sandbox uses and that no limit counts. This module reads how much of
 * it the host has in all, and counts the objects of a sandbox that use it.
 *
 * Some objects have a known size: open files, mappings, seccomp filters. For others only an
 * indication is visible: open directories of an overlay, each of which may have a list of names in
 * the kernel, and file locks. A caller compares such indications with the growth of the host's
 * kernel memory.
 *
 * Counting reads much of /proc, so it should run in a process of its own.
 */
#ifndef ROLLBOX_SYS_HOARD_H
#define ROLLBOX_SYS_HOARD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct hoard_host {
    uint64_t files;        /* open files of the whole host (fs.file-nr) */
    uint64_t kernel_bytes; /* unreclaimable slab memory and vmalloc */
};

/* Reads the host's numbers from descriptors of /proc/sys/fs/file-nr and /proc/meminfo. Both reads
 * take some 30 times as long as the cheapest system call: a few microseconds on a small host, and
 * more where the kernel adds up many processors. Returns 0 or -errno. */
int hoard_read_host(int file_nr, int meminfo, struct hoard_host *ret_host);

/* The owners of file locks: a sample of the host's /proc/locks. Reading a very long list would hold
 * the kernel's lock for long. */
#define HOARD_LOCKS 4096
struct hoard_locks {
    size_t n; /* in the sample */
    struct hoard_lock {
        pid_t pid; /* -1: the lock belongs to an open file, or its process has ended; the inode then
                      identifies it */
        uint64_t inode;
    } locks[HOARD_LOCKS];
};

/* 0 or -errno. */
int hoard_read_locks(struct hoard_locks *ret_locks);

struct hoard {
    uint64_t files; /* descriptors of all processes; descriptors in flight in their sockets; and,
                       with `max_files`, file mappings */
    uint64_t list_bytes;    /* memory of name lists that the kernel may have for open overlay
                               directories; an estimate if there are many */
    uint64_t mapping_bytes; /* memory of mappings */
    uint64_t filters;       /* seccomp filters of all threads, apart from those of `init` */
    uint64_t locks;         /* locks within the sample */
};

/* Counts the objects of all processes below an init. Counting stops early at more than `max_files`
 * files (UINT64_MAX: no bound), or at more than `max_mapping_bytes` of mappings (0: do not count
 * mappings, because a control group counts them). Returns 0, or -errno if nothing is known. */
int hoard_count(pid_t init, const struct hoard_locks *locks, uint64_t max_files,
    uint64_t max_mapping_bytes, struct hoard *ret_hoard);

#endif
