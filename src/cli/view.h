/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's view of one command in a session: its streams, relayed until it ends or the client
 * detaches, its terminal, and its result.
 *
 * The streams are pipes to and from the engine. A command with a terminal has one output stream,
 * and the caller's terminal is raw meanwhile: the command receives keys, signals and sizes. With
 * --json nothing is streamed, and the result has the output.
 */
#ifndef ROLLBOX_CLI_VIEW_H
#define ROLLBOX_CLI_VIEW_H

#include <rollbox/rollbox.h>

#include "cli/keys.h"
#include "cli/options.h"
#include "cli/copy_stream.h"

struct view {
    const struct options *options;
    struct rollbox_sandbox *sandbox;
    struct rollbox_run *run;
    struct copy_stream pump;
    struct keys keys; /* that detach */
    const char *id;
    bool attached;     /* to another client's command: signals end only us */
    bool one_off;      /* the sandbox ends with us, so the command cannot be left */
    bool terminal;     /* our terminal is lent to the command */
    bool left;         /* by a signal that is not for the command */
    bool detached;     /* by the detach keys */
    int resize_fds[2]; /* a pipe: the size of our terminal changed */
};

/* The other ends of the streams, for the engine. */
struct view_ends {
    int input;
    int streams[2];
};

/* Reads --detach-keys, too. 0, or an exit status after a line. */
int view_init(struct view *view, const struct options *options);
void view_done(struct view *view);

/* Makes the requested pipes and their relays. 0, or an exit status after a line. */
int view_open(struct view *view, bool input, bool output, bool errors, struct view_ends *ret_ends);
void view_ends_close(struct view_ends *ends);

/* Lends our terminal to the command. 0, or an exit status after a line: -t is not possible with
 * other input. */
int view_lend_terminal(struct view *view);

/* Tells the command the size of our terminal. */
void view_tell_size(const struct view *view);

/* Starts the command with the effects of --interactive, --tty, --detach and --json. 0, or an exit
 * status after a line. */
int view_start(struct view *view, struct rollbox_exec_options *exec, bool input, bool tty);

/* Moves the streams until the command has ended or is left, and reports its result. Returns the
 * exit status. */
int view_follow(struct view *view, uint64_t output_limit);

/* An argv that starts a shell: bash where the sandbox has it, else sh. `string` is a login shell's
 * command, or NULL. */
void view_shell(const char *string, bool is_login, const char *argv[6]);

/* --env, and with a terminal the kind of ours. NULL when out of memory. *ret_term is for free()
 * after the array. */
const char **view_environment(const struct options *options, bool tty, char **ret_term);

/* A new id for a command. 0 or -errno. */
int view_make_id(char id[13]);

#endif
