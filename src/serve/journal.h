/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server's state that outlives it (--state DIR): one append-only file of lines, each a digest
 * and a JSON object. What a line means is its writer's matter; see journal_open.
 *
 * A line is written by one write, so a process that is killed leaves at most a torn last line,
 * which the next opening cuts off. A line whose digest is wrong ends the reading there, too. So it
 * survives every end of the server.
 *
 * Its writer forces the file to disk within JOURNAL_SYNC_MS of a change, in a thread, and not
 * before each answer: a write to disk takes as long as many runs. A crash of the machine loses that
 * time at the most. Running sandboxes do not survive that either.
 *
 * The file is rewritten, from what its writers still need, when it has grown to more than twice
 * that, and when a line could not be written. A lock keeps a second server away.
 */
#ifndef ROLLBOX_SERVE_JOURNAL_H
#define ROLLBOX_SERVE_JOURNAL_H

#include <jansson.h>
#include <stddef.h>

#define JOURNAL_SYNC_MS 250

struct journal;

struct journal_user {
    /* Called for each line at the opening, the oldest first. */
    void (*replay)(void *data, const json_t *line);
    /* Writes the lines that are still needed, by journal_add. */
    void (*dump)(void *data, struct journal *journal);
    /* Lines were added that are not on disk: journal_file is to be synchronised. May be NULL. */
    void (*changed)(void *data);
    /* A line could not be written (-errno, such as -ENOSPC): journal_mend is to be called until all
     * is written. Or all is written again (0). May be NULL. */
    void (*troubled)(void *data, int error);
    void *data;
};

/* Reads DIR/journal, which is made if it is missing, and rewrites it. The directory is opened here,
 * so that a confined process can write in it. 0 or -errno; -EWOULDBLOCK: another server has it. */
int journal_open(
    const char *directory, const struct journal_user *user, struct journal **ret_journal);
/* Appends a line. `line` is consumed. 0 or -errno; a NULL journal keeps nothing: 0. */
int journal_add(struct journal *journal, json_t *take_line);
/* After a line could not be written: rewrites the file with all lines that are needed now, and the
 * lost ones among them. 0, or -errno as long as that fails. */
int journal_mend(struct journal *journal);
/* A copy of the file's descriptor, for fsync; or -errno. */
int journal_file(const struct journal *journal);

#endif
