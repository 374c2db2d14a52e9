/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restoring processes from their process image (process_image.h).
 *
 * A launcher, or a copy of one (GUEST_ZYGOTE), loads an image once: the memory of all its processes
 * is then in the zygote's own address space. Every sandbox that is cloned from the zygote has that
 * memory, so its init only forks the processes, ahead of need, and each process does the remaining
 * steps itself.
 *
 * An image of a process tree continues with its own descriptors. An image of a single process may
 * be the start of a command, which then gets the command's descriptors.
 */
#ifndef ROLLBOX_GUEST_RESTORE_RESTORE_H
#define ROLLBOX_GUEST_RESTORE_RESTORE_H

#include "base/wire.h"
#include "guest/internal.h"

/* In the launcher or its copy, once: loads an image from a memory file. The file is
 * complete (`progress` -1), or another process is writing its pages and reports that on the
 * socket `progress` (struct image_progress). Waits for everything except the pages, and
 * allocates memory for those. 0 or -errno, after which the caller is unusable; ECHILD: the
 * writer ended too early. */
int restore_load(int fd, int progress, const struct plan *plan);
/* Then: waits for the pages and copies them. 0 or -errno, as above. */
int restore_fill(void);
bool restore_is_tree(void); /* is a tree loaded, and not the start of a command? */
bool restore_clocks(int64_t *ret_monotonic_ns,
    int64_t *ret_boottime_ns); /* of the tree, at the dump; false: there is none */
/* Pages that the process is likely to touch: a memory file of struct image_touch. A wrong entry
 * only costs time. */
void restore_expect(int fd);

/* In a new sandbox's init, as U0's root: keeps the means to give processes their old pids. 0 or
 * -errno. */
int restore_keep_pids(const struct plan *plan, int proc_sys);
/* In its own user namespace, before init gives up its rights: forks the processes. 0 or -errno. For
 * the start of a command, restore_resume() reports errors instead. */
int restore_fork(const struct box *box);

struct restore_failure {
    int32_t error; /* 0: unknown */
    uint32_t step; /* a step of restore_image.h */
    uint32_t pid;  /* of the failed process; 0: none in particular */
};

/* Starts the command from its prepared process, with the first four descriptors of the request.
 * Returns its pid once it runs; -ENOENT if there is no such process, or no longer. */
pid_t restore_resume(
    const struct box *box, const struct exec_request *request, struct restore_failure *ret_failure);
/* Ends the prepared process, because another command is started in the sandbox. */
void restore_cancel(void);

/* Before restore_finish: applies an incremental image to the loaded one. 0 or -errno and the
 * failure, after which the sandbox is unusable. */
int restore_incremental(
    const struct box *box, int incremental, struct restore_failure *ret_failure);
/* Resumes a tree, or only tests whether it could; `externals` are the image's pipes to the outside.
 * 0 or -errno and the failure. After a failure or a test the sandbox is unusable. The caller closes
 * the masters of the commands' terminals, IMAGE_MAX_TERMINALS at most. */
int restore_finish(const struct box *box, const int *externals, size_t n_externals, bool is_dry_run,
    int *ret_masters, size_t *ret_n_masters, struct restore_failure *ret_failure);
/* Are the processes tracked from their start? Then each installs its filter itself, and init does
 * so after the fork. */
bool restore_are_noted(const struct box *box);

/* Does the loaded tree have a living process with that pid, inside the sandbox, that is a child of
 * init and so may be a command? */
bool restore_has_command(uint32_t pid);
/* Then: the userfaultfds of the living processes, in order; the caller closes them. Their number,
 * IMAGE_MAX_NOTED at most: one for each process, or 0. */
size_t restore_take_trackers(int *ret_trackers);
/* Then: unmaps the rest of the image without making anybody wait; or leaves it until the returned
 * time (INT64_MAX: there is nothing), or until init forks for its own purposes. */
void restore_forget(void);
int64_t restore_rests_until_ns(void);
void restore_forget_rest(void);

/* quiesce.c, quiesce.h: the dump worker of the sandbox's processes. GUEST_QUIESCE: its socket. 0 or
 * -errno. */
struct image_determinism;
struct image_process;
int quiesce_begin(const struct plan *plan, int take_socket);
/* The worker has sent a message, or is gone. */
void quiesce_serve(const struct plan *plan);
/* In a sandbox with restored processes, in this order: before any of them makes a call that init
 * answers; for each process, with its listener; before they resume. 0 or -errno. */
int quiesce_resume(const struct box *box);
int quiesce_adopt(const struct image_process *process, int take_listener);
/* The first two for the single process that becomes the sandbox's first command. */
int quiesce_begin_command(const struct plan *plan, int take_listener);
void quiesce_continue(const int *files, const int *externals, size_t n_externals);

#endif
