/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private files on the store's disk (disk_at store).
 *
 * In place of a tmpfs each sandbox has a directory, an *upper*, below one of the engine's own:
 * STORE/boxes/PID-RANDOM/NUMBER. The launcher's template has the engine's directory, and init binds
 * the sandbox's own from there. Places, layers and copies work as with a tmpfs. This module does
 * what a tmpfs does by itself: it removes the files at the end, and limits their size.
 *
 * The end: with the last reference an upper is moved to "gone", where a janitor deletes it, so that
 * the loop never waits for a deletion. The janitor outlives the engine and removes its directory.
 * It is a fork of the engine, and the engine's directory is locked by flock. So a later engine, or
 * rollbox store gc, removes a directory that nobody has locked.
 *
 * The size: only a quota could enforce a limit on a file system that others use. So the engine
 * looks at the free space of the file system, as often as a guest could have used up the rest of
 * its limit. It has those uppers measured (disk_usage_worker.h) that could have grown past their
 * limit since their last measurement, and each of them now and then, because others may have freed
 * space meanwhile. An upper over its limit may shrink but not grow: if it does, its processes are
 * killed. A guest can notice a walk, and move directories to a part that was walked already. So if
 * directories moved, and either more space has gone since the last reliable walk than the sandbox
 * had left, or that walk is some time ago, its processes are paused for another walk.
 */
#ifndef ROLLBOX_ENGINE_BOX_DISK_UPPER_H
#define ROLLBOX_ENGINE_BOX_DISK_UPPER_H

#include <stdbool.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "base/list.h"
#include "loop/loop.h"

struct box;
struct engine;
struct layer;

/* Whether the processes of its sandbox are paused for a walk. */
enum upper_stillness {
    UPPER_RUNS,
    UPPER_HOLD_REQUESTED,
    UPPER_REFUSED,  /* they would not */
    UPPER_STANDS,   /* until it is measured */
    UPPER_THAW_DUE, /* it is, and init has not received the thaw yet */
};

enum upper_over { UPPER_WITHIN, UPPER_NEWLY_OVER, UPPER_KNOWN_OVER };

/* The last walk under which nothing can have moved. */
struct upper_sure {
    uint64_t bytes, entries, room_bytes, room_entries;
    int64_t at_ns;
};

/* The pause of its sandbox's processes for a walk. */
struct upper_hold {
    enum upper_stillness state;
    struct loop_task refused;
    bool has_refused;      /* the last time */
    int64_t since_ns;      /* they are paused */
    int64_t not_before_ns; /* the next one */
};

struct disk_upper {
    struct engine *engine;
    unsigned references;
    uint64_t number;
    struct layer *layer; /* that it has become: immutable from then on; NULL: it is a box's yet */
    void (*measured)(struct disk_upper *upper); /* of a layer: a walk has ended */
    uint64_t bytes, entries;                    /* as of the last look */
    bool is_measured;                           /* there was one; of a layer: since it is one */
    bool is_deep;
    enum upper_over over;                        /* as of the last look */
    uint64_t tolerated_bytes, tolerated_entries; /* what it had when it was first found over its
                                                    limit; 0: it is not over */
    uint64_t room_bytes, room_entries;           /* on the file system then */
    int64_t measured_ns, pause_ns;
    struct upper_sure sure;
    struct upper_hold hold;
    struct list in_queue; /* of those to be measured */
    bool is_outdated;     /* it has changed since the walk that is under way began */
};

/* The store's directory, which is made if it does not exist; both are the caller's. */
int disk_upper_open_store(
    const struct engine *engine, char **ret_path, int *ret_fd, struct rollbox_error *error);

/* The host's directory of the engine's uppers, made the first time: with the store, if there is
 * none. The engine's. Errors: INVALID_ARGUMENT, PATH_DENIED, NOT_FOUND, FEATURE_MISSING (the file
 * system cannot hold them), RESOURCE_EXHAUSTED, IO. */
int disk_upper_directory(struct engine *engine, const char **ret_path, struct rollbox_error *error);
void disk_upper_finish(struct engine *engine);

/* For a job that may outlive the engine and reads layers: while it has this descriptor, the
 * caller's, nobody deletes them. -EBADF: there are none. */
int disk_upper_lend(const struct engine *engine);

/* An empty one, of the ids of a launcher; program: disk_at store. 0 or -errno. */
int disk_upper_new(struct engine *engine, uint32_t id_base, struct disk_upper **ret_upper);
struct disk_upper *disk_upper_get(struct disk_upper *upper);
struct disk_upper *disk_upper_put(struct disk_upper *upper);
/* Calls `show` for its directory: a mount with that map, the caller's, or -errno. */
int disk_upper_show(const struct disk_upper *upper, int map,
    int (*show)(int map, int directory, const char *path, unsigned flags));
void upper_field(const struct disk_upper *upper, struct buf *message); /* of CREATE and COPY */
void disk_upper_measure(struct disk_upper *upper); /* soon; of a layer `measured` is called then */
void disk_upper_watch(struct box *box); /* it is ready, or something begins to run in it */
/* The answer of its init or its owner: its processes are paused; or refused (a positive errno), or
 * the request is void. False: it was asked of another, which is gone, and this one need not wait.
 */
bool disk_upper_stands(struct box *box, int error);
void disk_upper_is_left(struct box *box);

#endif
