/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shelves: processes that hold descriptors which the engine does not need now.
 *
 * A sandbox that lives has a handful of them, and how many one process may have is limited. When they get scarce, what belongs to sandboxes in which nothing is under way is given to a fork of the engine, with a limit of its own, that does nothing but hold it
 * and say when something stirs: a pipe that can be read, a process that has ended. The fork ends with the engine, and what it holds with it, as if the engine had held it. Who puts something there takes it back before using it.
 */
#ifndef ROLLBOX_ENGINE_SHELF_H
#define ROLLBOX_ENGINE_SHELF_H

#include <stddef.h>
#include <stdint.h>

#define SHELF_MOST_EACH 32 /* descriptors of one owner */

struct engine;
struct shelf;

/* Of one owner, who embeds it. */
struct shelved {
    struct shelf *shelf; /* NULL: nothing is there */
    uint32_t place;
    uint32_t n;
    void (*stirs)(struct shelved *shelved); /* once: something has happened to one of them, or they are lost */
};

/* Gives away fds[]; each tells of its events (EPOLL*; 0: of none). What the caller has of them is his to close. 0, or -errno: nothing is there. */
int shelf_put(struct engine *engine, struct shelved *shelved, const int *fds, const uint32_t *events, size_t n,
    void (*stirs)(struct shelved *shelved));
/* In the same order. 0; -EMFILE: there is no room for them here, and they stay where they are; -EPIPE: they are lost, and nothing is there any more. */
int shelf_take(struct shelved *shelved, int *fds);
/* They are closed, soon. */
void shelf_drop(struct shelved *shelved);
/* Ends the shelves on which nothing is. */
void shelf_tidy(struct engine *engine);

#endif
