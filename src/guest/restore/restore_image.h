/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of restore: the loaded image, and the messages between init and the processes
 * that are being restored. */
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
 * The loaded image. It lies in one *region* of the address space where no process of the image has
 * anything, with everything else that a process needs until its memory is in place: the file, a
 * place for the vDSO, the first stacks of new threads, and the parked memory of all processes. A
 * process moves its own memory from there to its addresses by mremap(2), which moves page tables
 * and copies nothing, and unmaps the rest. The memory of a single process is at its addresses from
 * the beginning, except where the launcher has mappings of its own.
 */
struct restore_image {
    const struct image *header;
    const char *base; /* of the file */
    uint64_t region, region_end;
    uint64_t vdso_at; /* temporary place of the kernel's vDSO */
    uint64_t stacks;
    uint64_t *staged;   /* of each area: its present address; 0: it has no pages */
    uint64_t *together; /* of the first area of a group that was mapped as one, with the gaps
                           between: the end of the group; else 0 */
    struct restored_range
        memory[IMAGE_MAX_PROCESSES]; /* parked memory of a process and of all its descendants */
    const struct image_touch *touches;
    size_t n_touches;
    const struct image *before; /* the image that was loaded, after an incremental image took its
                                   place as `header`; else NULL */
    const char *before_base;
};

extern struct restore_image restored; /* restore/state.c */

#define RESTORE_STACK 16384u /* initial stack of a thread */

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

/* A single process with no group to join and no terminal: it exchanges no messages with init until
 * it gets its descriptors. It prepares itself, and reports only a failure, or the result with its
 * next message. */
static inline bool restored_is_by_itself(void) {
    const struct image_process *p = restored_process(0);

    return restored.header->processes.n == 1 && !restored.header->is_command &&
           p->kind == IMAGE_LIVING && p->session == p->pid && !p->terminal;
}

/* A message from init to a process: what to do. `index`: of a process or a file descriptor.
 * Descriptors come with RESTORE_TAKE_FDS and RESTORE_TAKE_MEMORY. After the last of these, or
 * RESTORE_COMPLETE if there is none (`is_last`), a process completes itself. A process with a
 * single thread creates that as well; others wait for RESTORE_MAKE_THREADS. `goes`: if all went
 * well, the process continues as after RESTORE_GO. */
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
    RESTORE_TAKE_SEGMENT,
};

struct restore_order {
    uint32_t kind, index;
    bool is_last, goes;
};

/* The reply to each message: 0 or -errno, and the step. */
struct restore_word {
    int32_t error;
    uint32_t step;
};

/* restore/load.c. Memory of a process and of all its descendants. A fork costs time for each page
 * that it inherits, and so does the end of a process, so each process inherits only what it or its
 * descendants need. */
void restore_keep_from_forks(uint32_t index);
void restore_take_to_forks(uint32_t index);
void restore_give_up(uint32_t index);

/* restore/incremental.c. Called in init, and then, with the same file, in each prepared process:
 * makes `restored` the incremental image. 0 or -errno, and then nothing has changed. */
int restore_take_incremental(int fd, bool is_init);
/* In a process: updates anonymous memory from the incremental image, and unmaps everything that it
 * does not mention, files included. 0 or -errno. */
int restore_incremental_memory(uint32_t index);
/* The area of the process that an area of the incremental image continues; NULL: it is new. */
const struct image_area *restore_before(uint32_t index, const struct image_area *area);
/* restore/trampoline.c: the region has grown. */
void restore_put_region(void);
/* restore/state.c. Maps empty memory for an area of the process; 0 or -errno. */
long restore_make_memory(const struct image_area *area);

/* restore/credentials.c, with many users. In each thread: takes the rights of the image, as far as
 * `allowed` (capabilities) has them. 0 or -errno; errno is not touched. */
long restore_take_rights(const struct image_thread *thread, uint64_t allowed);

/* restore/process.c. The code of a restored process from its fork on. */
_Noreturn void restore_become(const struct box *box, uint32_t index);
/* Init's record of each process. They are in one array, because each page that init writes to costs
 * time. The sockets, and that to the pid keeper, are init's descriptors, which each process
 * inherits until it has forked. */
struct restore_end {
    int ours, its;
    uint32_t fds, areas; /* how many it has received, or does not need */
    bool has_begun;      /* and its first reply has arrived */
    bool completes;      /* it has received everything, and completes itself */
    bool waits;          /* init waits for its reply */
};
/* restore/state.c */
extern struct restore_end restore_ends[IMAGE_MAX_PROCESSES];
extern int restore_pids; /* -1: there is no pid keeper */
/* Requests to the pid keeper, which has rights over the namespaces: the pid of the sandbox's next
 * task, and the id of the next System V shared memory. */
enum restore_keeper_kind { RESTORE_KEEPER_END, RESTORE_KEEPER_PID, RESTORE_KEEPER_SEGMENT };
struct restore_keeper_request {
    uint32_t kind, value;
};
/* Without a pid keeper, these do nothing. 0 or -errno. */
int restore_next_pid(uint32_t pid);
int restore_next_segment(uint32_t id);

/* restore/segments.c. In init: makes the segments of System V shared memory, with their content,
 * open to all processes. In each process: attaches that of an area, and its other
 * parts. In init, when all are attached: sets
 * owners and modes, and removes what was removed. 0 or -errno. */
int restore_make_segments(void);
long restore_attach_segment(const struct image_area *areas, uint32_t n, uint32_t index);
int restore_finish_segments(void);

/* restore/files.c, in init: creates the open files, each once. 0 or -errno, and which file
 * failed. */
int restore_open_files(const int *externals, size_t n_externals, int *fds, uint32_t *ret_file);

/* The same memory file, opened so that it cannot be mapped writable. -EACCES: its mode forbids
 * opening it. */
int restore_open_again(int fd, int access);

/* Adds the seals that would have prevented the shared mappings, when all of those exist. 0 or
 * -errno, and which file failed. */
int restore_seal(const int *fds, uint32_t *ret_file);

/* Adds the inotify watches, when no more files are opened. 0 or -errno, and which file failed. */
int restore_watch(const int *fds, uint32_t *ret_file);

/* Are there files other than those that were passed in, or segments of shared memory? */
bool restore_makes_files(void);

/* Settings that only the owner of the descriptors can make. 0 or -errno. */
int restore_fill_epoll(const struct image_process *process);

/* restore/terminals.c. In init before the processes exist; then in each process; then in init
 * again. 0, a descriptor, or -errno. */
int restore_make_terminals(void);
int restore_enter_terminal(const struct image_process *process);
int restore_set_foreground(const struct image_process *process);
int restore_open_terminal(const struct image_file *file);
size_t restore_leave_terminals(int *ret_masters);

/* restore/trampoline.c: steps that run after the program is unmapped. */
int restore_put_last(void); /* in the launcher */
void restore_await_threads(
    uint32_t n); /* until this many other threads of the process are ready to leave */
/* Offsets in a signal frame as the kernel reads it. At the first, which the kernel ignores, are the
 * signals that end the thread's interrupted call if one of them is pending. */
#define RESTORE_FRAME_SIGNALS 8
#define RESTORE_FRAME_RAX 144
#define RESTORE_FRAME_RIP 168
struct restore_trampoline {
    uint64_t frame, fs_base, gs_base, rseq, rseq_length, rseq_signature;
};
_Noreturn void restore_leave(const struct restore_trampoline *last,
    uint32_t n_others); /* the first thread: the others leave after it */
_Noreturn void restore_leave_thread(const struct restore_trampoline *last);

/* restore/track_from_birth.c. In a process: creates a userfaultfd, or -errno; and, once its memory
 * is in place, starts dirty tracking. */
int restore_make_tracker(void);
void restore_note(int tracker, const struct image_process *process);

#endif
