/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restoring processes from their image (process_image.h).
 *
 * A launcher, or a copy of one (GUEST_ZYGOTE), loads an image once: the memory of all its processes
 * is in its own address space then. Every sandbox cloned from it has that memory, so its init only
 * forks the processes: what is left to be done each does itself, ahead of need. The one sandbox
 * that a fork of what runs makes loads the image itself (GUEST_CREATE_LOADS), once it is set up
 * otherwise. An image of a tree goes on as it was, with its descriptors; one of a single process
 * may be for a command to be, which gets those of the command.
 */
#ifndef ROLLBOX_GUEST_RESTORE_RESTORE_H
#define ROLLBOX_GUEST_RESTORE_RESTORE_H

#include "base/wire.h"
#include "guest/internal.h"

/* In the launcher, or a sandbox's init, once: from a memory file that nobody writes to any more, or
 * (`progress`) whose pages are written meanwhile by who tells so there (struct image_progress); -1:
 * they are there. Waits for all but the pages, and makes room for those. 0 or -errno, with which it
 * is of no use any more; ECHILD: who writes is gone before the end. */
int restore_load(int fd, int progress, const struct plan *plan);
/* And then: the pages. Waits for them; 0 or -errno, in the same way. */
int restore_fill(void);
bool restore_is_tree(void); /* whether it is loaded, and not of a command */
bool restore_clocks(int64_t *ret_monotonic_ns,
    int64_t *ret_boottime_ns); /* of the tree, as they stood; false: there is none */
/* What it is going to touch: a memory file of struct image_touch. It costs only time if that is
 * wrong. */
void restore_expect(int fd);

/* In a new sandbox's init, as U0's root: keeps what it takes to give processes their old pids. 0 or
 * -errno. */
int restore_keep_pids(int proc_sys);
/* In its user namespace, before it gives up its rights: forks the processes. 0 or -errno; of a
 * command to be, what goes wrong is told by restore_resume. */
int restore_fork(const struct box *box);

struct restore_failure {
    int32_t error; /* errno; 0: none is known */
    uint32_t step; /* of those in restore_image.h */
    uint32_t pid;  /* whose; 0: nobody's */
};

/* A command to be goes on as one: the first four descriptors become its own. Its pid once it runs;
 * or -ENOENT if there is none, or none any more. */
pid_t restore_resume(
    const struct box *box, const struct exec_request *request, struct restore_failure *ret_failure);
/* It ends: another command is started in the sandbox. */
void restore_cancel(void);

/* What goes on is not what was loaded but what has become of it since, by an addition to that:
 * before restore_finish. 0 or -errno and the failure, with which the sandbox is of no use any more.
 */
int restore_incremental(
    const struct box *box, int incremental, struct restore_failure *ret_failure);
/* A tree goes on, unless it is only tried whether it could; `externals` are those of the image. 0
 * or -errno and the failure, with which the sandbox is of no use any more, as after a trial. The
 * masters of its commands' terminals, IMAGE_MAX_TERMINALS at most, are the caller's to close. */
int restore_finish(const struct box *box, const int *externals, size_t n_externals, bool is_dry_run,
    int *ret_masters, size_t *ret_n_masters, struct restore_failure *ret_failure);
/* Whether what the processes write to is noted from their start on: each gets its filter by itself
 * then, and init after they are forked. */
bool restore_are_noted(const struct box *box);

/* Whether the loaded tree has a process with that pid, inside, that may be a command: it lives, and
 * is init's own child. */
bool restore_has_command(uint32_t pid);
/* Then: a userfaultfd of each living process, in order, the caller's to close; IMAGE_MAX_NOTED at
 * most. How many: all have one, or 0. */
size_t restore_take_trackers(int *ret_trackers);
/* And then: what is left of the image goes, which nobody is to wait for; or it waits until then
 * (INT64_MAX: there is nothing), or until init makes a fork of its own. */
void restore_forget(void);
int64_t restore_rests_until_ns(void);
void restore_forget_rest(void);

/* quiesce.c, quiesce.h: a capturer of the sandbox's processes. GUEST_QUIESCE: its socket. 0 or
 * -errno. */
struct image_determinism;
struct image_process;
int quiesce_begin(const struct plan *plan, int take_socket);
/* It has said something, or is gone. */
void quiesce_serve(const struct plan *plan);
/* In a sandbox whose processes are restored, one after the other: before any of them can ask; for
 * each, with the listener that it has made; before they go on. 0 or -errno. */
int quiesce_resume(const struct box *box);
int quiesce_adopt(const struct image_process *process, int take_listener);
/* Both of these for the one process that is to be the sandbox's first command. */
int quiesce_begin_command(const struct plan *plan, int take_listener);
void quiesce_continue(const int *files, const int *externals, size_t n_externals);

#endif
