/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of a session, and their pipes and terminals, as a checkpoint has them. */
#include "engine/session/dump_commands.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/dump_job.h"
#include "engine/checkpoint/dump_worker.h"
#include "engine/command/command.h"
#include "engine/command/run_text.h"
#include "engine/command/stream.h"
#include "engine/session/session.h"

static void add_pipe(
    struct checkpoint *checkpoint, uint64_t inode, int command, unsigned slot, bool is_written) {
    checkpoint->pipes[checkpoint->n_pipes++] = (struct checkpoint_pipe){
        .inode = inode, .command = command, .slot = slot, .is_written = is_written
    };
}

static int add_terminal(struct checkpoint *checkpoint, int *masters, int master, int command) {
    if (checkpoint->n_terminals == DUMP_WORKER_MAX_TERMINALS)
        return -E2BIG; /* no devpts has as many */
    masters[checkpoint->n_terminals] = master;
    checkpoint->terminals[checkpoint->n_terminals++] = command;
    return 0;
}

static int note_command(struct checkpoint *checkpoint, int *masters, const struct run *run) {
    struct checkpoint_command *command = &checkpoint->commands[checkpoint->n_commands];
    size_t prefix = sizeof run->session->number;
    int index = (int)checkpoint->n_commands;
    struct stat st;

    command->description = run_describe(run);
    if (!command->description)
        return -ENOMEM;
    checkpoint->n_commands++;
    if (run->operation.length > prefix) {
        command->operation_length = run->operation.length - prefix;
        memcpy(command->operation, run->operation.id + prefix, command->operation_length);
    }
    command->pid = run->init.main_pid;
    command->output_limit = run->limits.output_limit;
    command->has_terminal = run->terminal.is_wanted;
    if (run->limits.timeout_ms > 0)
        command->timeout_ms =
            MAX(run->limits.timeout_ms - (clock_now_ns() - run->limits.started_ns) / 1000000,
                (int64_t)1);
    if (run->terminal.is_wanted)
        return run->outputs[0].fd < 0
                   ? 0
                   : add_terminal(checkpoint, masters, run->outputs[0].fd, index);
    for (unsigned i = 0; i < ARRAY_SIZE(run->outputs); i++)
        if (run->outputs[i].fd >= 0 && fstat(run->outputs[i].fd, &st) == 0)
            add_pipe(checkpoint, st.st_ino, index, i + 1, true);
    for (unsigned i = 0; i < ARRAY_SIZE(run->fds.pipes); i++)
        if (run->fds.pipes[i].inode)
            add_pipe(checkpoint, run->fds.pipes[i].inode, index, i, run->fds.pipes[i].is_written);
    return 0;
}

int dump_commands_note(const struct session *session, struct checkpoint *checkpoint, int *masters) {
    uint64_t drains[DUMP_JOB_MAX_PIPES];
    int drained[DUMP_WORKER_MAX_TERMINALS], r = 0;
    size_t n_drains = drain_inodes(session->engine, session->number, drains, ARRAY_SIZE(drains)),
           n_runs = 0;

    list_for_each(node, &session->commands.runs)
        n_runs++;
    checkpoint->commands = calloc(n_runs + 1, sizeof *checkpoint->commands);
    checkpoint->pipes = calloc(n_runs * (ARRAY_SIZE(((struct run *)0)->fds.pipes) + 2) + n_drains +
                                   session->commands.n_orphan_pipes + 1,
        sizeof *checkpoint->pipes);
    checkpoint->terminals = calloc(DUMP_WORKER_MAX_TERMINALS, sizeof *checkpoint->terminals);
    if (!checkpoint->commands || !checkpoint->pipes || !checkpoint->terminals)
        return -ENOMEM;
    list_for_each(node, &session->commands.runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->state == RUN_RUNNING && run->init.serial &&
            (r = note_command(checkpoint, masters, run)) < 0)
            return r;
    }
    size_t n_masters =
        drain_terminals(session->engine, session->number, drained, ARRAY_SIZE(drained));
    for (size_t i = 0; i < n_masters && r == 0; i++)
        r = add_terminal(checkpoint, masters, drained[i], -1);
    for (size_t i = 0; i < n_drains; i++)
        add_pipe(checkpoint, drains[i], -1, 1, true);
    for (size_t i = 0; i < session->commands.n_orphan_pipes; i++)
        add_pipe(checkpoint, session->commands.orphan_pipes[i].inode, -1,
            session->commands.orphan_pipes[i].is_written,
            session->commands.orphan_pipes[i].is_written);
    return r;
}
