/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of a checkpoint are resumed in a session's box.
 *
 * init receives, once, which of its processes are commands, and gets a new pipe for each pipe that
 * led out of the dumped sandbox. From then on these commands are runs like any other, but no client
 * waits for them: the ends of their pipes are kept until a client claims them.
 */
#include "engine/session/restore.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/wire.h"
#include "engine/box/box.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/dirty_tracking.h"
#include "engine/command/command.h"
#include "engine/command/output.h"
#include "engine/command/stream.h"
#include "engine/core/log.h"
#include "engine/run/run.h"
#include "engine/session/session.h"
#include "engine/store_job/backing.h"

/* The sandbox's end of a new pipe in the place of one that was captured; the other is ours. */
static int make_pipe(
    struct session *session, struct run *run, const struct checkpoint_pipe *pipe, int *ret_end) {
    int ends[2];
    struct stat st;

    if (run && (pipe->slot == 1 || pipe->slot == 2))
        return output_open(&run->outputs[pipe->slot - 1], run, ret_end);
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    *ret_end = ends[pipe->is_written];
    stream_let_open(session->engine, *ret_end);
    int ours = ends[!pipe->is_written];
    if (run) {
        run->fds.pipes[pipe->slot] =
            (struct run_pipe){ .inode = fstat(ours, &st) == 0 ? st.st_ino : 0,
                .is_written = pipe->is_written,
                .kept = ours };
    } else if (pipe->is_written) {
        (void)fcntl(ours, F_SETFL, O_NONBLOCK);
        drain_add(session->engine, session->number, ours);
    } else
        close(ours);
    return 0;
}

int restore_start(struct session *session,
    struct run *(*adopt)(struct session *, const struct checkpoint_command *),
    struct rollbox_error *error) {
    const struct checkpoint *checkpoint = session->checkpoint->pending_restore;
    const bool applies_incremental = checkpoint_is_incremental_on(checkpoint, session->box);
    auto_free struct run **runs = calloc(checkpoint->n_commands + 1, sizeof *runs);
    auto_buf struct buf message = BUF_INIT;
    int ends[FD_MESSAGE_MAX_FDS],
        r = !runs                                                                     ? -ENOMEM
            : applies_incremental || session->box->lower.restored_image == checkpoint ? 0
                                                                                      : -ESTALE;
    size_t n = 0;

    wire_begin(&message, GUEST_RESTORE, 0);
    for (size_t i = 0; i < checkpoint->n_commands && r == 0; i++) {
        runs[i] = adopt(session, &checkpoint->commands[i]);
        if (!runs[i]) {
            r = -ENOMEM;
            break;
        }
        wire_add_u64(&message, GUEST_TARGET, runs[i]->init.serial);
        wire_add_u64(&message, GUEST_PROCESS, (uint64_t)checkpoint->commands[i].pid);
    }
    for (size_t i = 0; i < checkpoint->n_pipes && r == 0; i++) {
        const struct checkpoint_pipe *pipe = &checkpoint->pipes[i];

        r = make_pipe(session, pipe->command < 0 ? NULL : runs[pipe->command], pipe, &ends[n]);
        n += r == 0;
    }
    if (r == 0 && !buf_failed(&message))
        ((struct wire_header *)(void *)message.data)->flags |=
            (session->is_dry_run ? GUEST_RESTORE_TRIAL : 0) |
            (applies_incremental ? GUEST_RESTORE_INCREMENTAL : 0);
    if (r == 0 && applies_incremental) {
        r = MIN(ends[n] = checkpoint_open_to_read(checkpoint->image), 0);
        n += r == 0;
    }
    if (r == 0)
        r = wire_send_patiently(session->box->socket, &message, ends, n);
    while (n)
        close(ends[--n]);
    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "restore",
            "the processes of the snapshot cannot be handed to the sandbox: %s", strerror(-r));
    box_count_files(session->box);
    box_expect_start(session->box);
    return 0;
}

static struct run *run_of(struct session *session, pid_t pid) {
    list_for_each(node, &session->commands.runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->init.main_pid == pid && run->state == RUN_STARTING)
            return run;
    }
    return NULL;
}

int restore_take_terminals(struct session *session, int *fds, size_t n_fds) {
    const struct checkpoint *checkpoint = session->checkpoint->pending_restore;
    int r = 0;

    if (!checkpoint || n_fds != checkpoint->n_terminals)
        return checkpoint ? -EPROTO : 0;
    for (size_t i = 0; i < n_fds && r == 0; i++) {
        int command = checkpoint->terminals[i], master = TAKE_FD(fds[i]);
        struct run *run = command < 0 ? NULL : run_of(session, checkpoint->commands[command].pid);

        if (run)
            r = output_adopt(&run->outputs[0], master);
        else if (fcntl(master, F_SETFL, O_NONBLOCK) == 0)
            drain_add(session->engine, session->number, master);
        else
            close(master);
    }
    return r;
}

void restore_done(struct session *session) {
    struct guest_record started = { .kind = GUEST_STARTED };

    box_expect_nothing(session->box);
    if (session->checkpoint->pending_restore->backing_ref.backing) {
        backing_ref_put(&session->checkpoint->backing_ref);
        session->checkpoint->backing_ref =
            backing_ref_of(&session->checkpoint->pending_restore->backing_ref);
    }
    session->checkpoint->pending_restore = checkpoint_put(session->checkpoint->pending_restore);
    session->checkpoint->restore_state = RESTORE_WAITS;
    session->files.dirty = true;
    list_for_each(node, &session->commands.runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->state == RUN_STARTING)
            run_answer(run, &started);
    }
}
