/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of restoring share: the loaded image, and what init and the processes to be say to
 * each other. */
#ifndef ROLLBOX_GUEST_RESTORE_RESTORE_IMAGE_H
#define ROLLBOX_GUEST_RESTORE_RESTORE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "guest/guest.h"
#include "guest/restore/restore.h"
#include "image/process_image.h"

struct restored_range {
    uint64_t start, end;
};

/*
 * The loaded image. It lies, with all else that a process needs until its memory is in place, in
 * one *region* of the address space in which no process of the image has anything: the file, a
 * place for the vDSO, the stacks that new threads begin on, and the memory of all processes,
 * parked. A process moves its own from there to where it belongs (mremap(2), which moves tables and
 * no bytes), and gives the rest up. That of a process that is alone lies where it belongs from the
 * beginning, but for what the launcher has something in the place of.
 */
struct restore_image {
    const struct image *header;
    const char *base; /* of the file */
    uint64_t region, region_end;
    uint64_t vdso_at; /* where the kernel's is put meanwhile */
    uint64_t stacks;
    uint64_t *staged;   /* of each area: where it is; 0: it has no pages */
    uint64_t *together; /* of the first of some that are in place, and were mapped as one with what
                           is between them: where that ends; else 0 */
    struct restored_range memory[IMAGE_MAX_PROCESSES]; /* where that of a process and of all that
                                                          descend from it is parked */
    const struct image_touch *touches;
    size_t n_touches;
    const struct image *before; /* what was loaded, once `header` is an addition to it; NULL */
    const char *before_base;
};

extern struct restore_image restored; /* restore/state.c */

#define RESTORE_STACK 16384u /* of a thread, until it goes on */

#define restored_table(part, type) image_table(restored.header, restored.base, part, type)

static inline const char *restored_text(uint64_t at) {
    return restored.base + at;
}

static inline const struct image_process *restored_process(uint32_t index) {
    return restored_table(processes, struct image_process) + index;
}

static inline bool restored_is_memory(const struct image_area *area) {
    return area->kind == IMAGE_ANONYMOUS || area->kind == IMAGE_STACK;
}

static inline bool restored_is_in_place(const struct image_area *area) {
    return restored.staged[area - restored_table(areas, struct image_area)] == area->start;
}

static inline uint64_t restored_are_together(const struct image_area *first) {
    return restored.together[first - restored_table(areas, struct image_area)];
}

/* One that is alone, has no group to join and no terminal: nothing is to be said between the two
 * until it gets its descriptors. It prepares itself, and tells how that went only where it went
 * wrong, or with the next word. */
static inline bool restored_is_by_itself(void) {
    const struct image_process *p = restored_process(0);

    return restored.header->processes.n == 1 && !restored.header->is_command &&
           p->kind == IMAGE_LIVING && p->session == p->pid && !p->terminal;
}

/* From init to a process: what to do; `index`: of a process, or file descriptor. Descriptors come
 * with RESTORE_TAKE_FDS, RESTORE_TAKE_MEMORY. With the last of them, or RESTORE_COMPLETE where
 * there is none (`is_last`), a process completes itself; one with a single thread makes that, too,
 * and others wait for RESTORE_MAKE_THREADS. `goes`: as after RESTORE_GO, if all that went well. */
enum restore_order_kind {
    RESTORE_MAKE_CHILD = 1,
    RESTORE_JOIN_GROUP,
    RESTORE_END,
    RESTORE_REAP,
    RESTORE_AWAIT_END,
    RESTORE_PREPARE,
    RESTORE_TAKE_FDS,
    RESTORE_TAKE_MEMORY,
    RESTORE_COMPLETE,
    RESTORE_MAKE_THREADS,
    RESTORE_GO,
    RESTORE_SET_FOREGROUND,
    RESTORE_INCREMENTAL,
    RESTORE_SAY,
};

struct restore_order {
    uint32_t kind, index;
    bool is_last, goes;
};

/* And back, after each: 0 or -errno, and the step. */
struct restore_word {
    int32_t error;
    uint32_t step;
};

/* restore/load.c. Of a process and all that descend from it. A fork writes down each page that it
 * takes along, and its end each that it had: so it gets what it is to have and no more. */
void restore_keep_from_forks(uint32_t index);
void restore_take_to_forks(uint32_t index);
void restore_give_up(uint32_t index);

/* restore/incremental.c. In init, and then, with the same file, in each process that is prepared:
 * `restored` is the addition from there on. 0 or -errno, and then nothing has changed. */
int restore_take_incremental(int fd, bool is_init);
/* In a process: memory without files becomes what the addition says, and what it says nothing of
 * goes, files included. 0 or -errno. */
int restore_incremental_memory(uint32_t index);
/* The area of the process that one of the addition's goes on with; NULL: it is new. */
const struct image_area *restore_before(uint32_t index, const struct image_area *area);
/* restore/trampoline.c: the region has become longer. */
void restore_put_region(void);
/* restore/state.c. Memory without pages, where an area of the process is to be; 0 or -errno. */
long restore_make_memory(const struct image_area *area);

/* restore/process.c. What the fork of a process to be does from its birth on. */
_Noreturn void restore_become(const struct box *box, uint32_t index);
/* What init keeps of each process, side by side, as each page that it writes to costs. The sockets,
 * and that of who keeps the pids, are descriptors of init's, which each process has, too, until it
 * has forked. */
struct restore_end {
    int ours, its;
    uint32_t fds, areas; /* how many it has, or has no need of */
    bool has_begun;      /* and we have its word */
    bool completes;      /* has been told all that there is for it, and completes itself */
    bool waits;          /* for its word */
};
/* restore/state.c */
extern struct restore_end restore_ends[IMAGE_MAX_PROCESSES];
extern int restore_pids; /* -1: nobody does */
/* The next task of the sandbox will have this pid. 0 or -errno. */
int restore_next_pid(uint32_t pid);

/* restore/files.c, in init: makes the open files, each once. 0 or -errno, and which. */
int restore_open_files(const int *externals, size_t n_externals, int *fds, uint32_t *ret_file);

/* The same memory file, which cannot be mapped to be written to; -EACCES: its mode forbids it to be
 * opened. */
int restore_read_only(int fd);

/* When all have mapped what they share: seals that would have kept them from it. 0 or -errno, and
 * of which file. */
int restore_seal(const int *fds, uint32_t *ret_file);

/* When nobody opens anything any more: what inotify watches. 0 or -errno, and of which file. */
int restore_watch(const int *fds, uint32_t *ret_file);

/* Others than those that were brought along. */
bool restore_makes_files(void);

/* Things that only who has the descriptors can do. 0 or -errno. */
int restore_fill_epoll(const struct image_process *process);

/* restore/terminals.c. In init, before the processes are made; then in each of them; and in init
 * again. 0, a descriptor, or -errno. */
int restore_make_terminals(void);
int restore_enter_terminal(const struct image_process *process);
int restore_set_foreground(const struct image_process *process);
int restore_open_terminal(const struct image_file *file);
size_t restore_leave_terminals(int *ret_masters);

/* restore/trampoline.c: what is done without a program. */
int restore_put_last(void); /* in the launcher */
void restore_await_threads(
    uint32_t n); /* until so many others of this process have only to leave */
/* Places in a frame, as the kernel reads it; at the first, where it reads nothing, are the signals
 * by which the call that the thread was in ends if one of them is pending. */
#define RESTORE_FRAME_SIGNALS 8
#define RESTORE_FRAME_RAX 144
#define RESTORE_FRAME_RIP 168
struct restore_trampoline {
    uint64_t frame, fs_base, gs_base, rseq, rseq_length, rseq_signature;
};
_Noreturn void restore_leave(const struct restore_trampoline *last,
    uint32_t n_others); /* the first thread: the others leave after it is there */
_Noreturn void restore_leave_thread(const struct restore_trampoline *last);

/* restore/track_from_birth.c. In a process: a userfaultfd, or -errno; and, once it has its memory,
 * what it writes to is noted from here on. */
int restore_make_tracker(void);
void restore_note(int tracker, const struct image_process *process);

#endif
