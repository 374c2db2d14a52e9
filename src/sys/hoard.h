/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the kernel holds for the things of a sandbox, and that no limit counts: what the host
 * has of it in all, and of which things a sandbox has how many.
 *
 * Some of it can be counted and has a known size: open files, mappings, seccomp filters. Of the
 * rest only a sign can be seen: open directories of overlays, which may have a list of names each,
 * and locks of files. A caller sets such a sign against the growth of the host's kernel memory.
 *
 * Counting reads /proc at length. It belongs in a process of its own.
 */
#ifndef ROLLBOX_SYS_HOARD_H
#define ROLLBOX_SYS_HOARD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct hoard_host {
    uint64_t files;        /* open files of the whole host (fs.file-nr) */
    uint64_t kernel_bytes; /* slabs that cannot be reclaimed, and vmalloc */
};

/* The descriptors are of /proc/sys/fs/file-nr and /proc/meminfo. Takes some 30 microseconds. 0 or
 * -errno. */
int hoard_read_host(int file_nr, int meminfo, struct hoard_host *ret_host);

/* Who has locks of files: a sample of the host's /proc/locks. Reading all of many would take the
 * kernel's lock for long. */
#define HOARD_LOCKS 4096
struct hoard_locks {
    size_t n; /* in the sample */
    struct hoard_lock {
        pid_t pid; /* -1: of an open file, or of a process that is gone: its inode tells */
        uint64_t inode;
    } locks[HOARD_LOCKS];
};

/* 0 or -errno. */
int hoard_read_locks(struct hoard_locks *ret_locks);

struct hoard {
    uint64_t files; /* descriptors of all processes, those on their way in sockets that they have
                       open, and where `max_files` is told, mappings of files */
    uint64_t list_bytes; /* what lists of names the kernel can have for those that are directories
                            of overlays; an estimate where there are many */
    uint64_t mapping_bytes; /* for mappings */
    uint64_t filters;       /* seccomp filters of all threads beyond those that `init` has */
    uint64_t locks;         /* of the sample */
};

/* Of all processes below an init. With more files than `max_files` (UINT64_MAX: any number will do)
 * nothing else has to be known, and with more than `max_mapping_bytes` no more mappings; 0: none,
 * as where a control group counts them. 0, or -errno: nothing can be told. */
int hoard_count(pid_t init, const struct hoard_locks *locks, uint64_t max_files,
    uint64_t max_mapping_bytes, struct hoard *ret_hoard);

#endif
