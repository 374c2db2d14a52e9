/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store job from the engine: layers by descriptor, and a JSON object on standard input that
 * describes them (docs/reference/store-jobs.md).
 *
 * Each descriptor is the root of one layer in the format of an overlay's upper directory, with one
 * subtree per place (p0, p1, ...). A layer without a subtree for a place changes nothing there.
 * Guests wrote the contents of the layers.
 */
#ifndef ROLLBOX_STORE_JOB_H
#define ROLLBOX_STORE_JOB_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"

#define JOB_MAX_BYTES (16u << 20)
#define JOB_MAX_SOURCES 1024

struct job_place {
    const char *part;    /* "p2" */
    const char *path;    /* inside the sandbox, and on the host */
    const char *base;    /* host directory or file below the layers; NULL: none */
    const json_t *under; /* host paths of layers that are this place as a whole (of an image, a
                            snapshot of the store), bottom first; NULL: none */
    bool is_file;
    uint64_t base_dev, base_ino; /* 0: not checked */
};

struct job {
    json_t *root; /* the owner of the texts below */
    struct job_place *places;
    size_t n_places;
    int *lower, *upper; /* descriptors, bottom first; ours now */
    size_t n_lower, n_upper;
    bool beside; /* the upper layers are on top of the first n_shared lower ones */
    size_t n_shared;
    bool text, force, digests;
    bool many;       /* of a sandbox of many users: the layers' owners are its ids, */
    size_t n_stored; /* of the first layers, which are the store's, ids begin at `stored_ids` */
    uint32_t stored_ids;
    /* export: the manifest of the image that the sandbox's root is made of; NULL: none. The first
     * layers, n_root, are the image's, and each of them is the root itself. `owner` is the id of
     * changed files in a sandbox of one user. */
    json_t *image;
    size_t n_root;
    uint32_t owner;
    int kept; /* commit: a socket that gets the directories that were replaced, instead of their
                 being removed; -EBADF */
    uint64_t max_changes, max_digested; /* diff: how many are listed, and bytes of files read for
                                           digests in all; 0: no limit */
    int64_t since_ns; /* commit: host files changed later (ctime) are conflicts; 0: not checked */
};

int job_read(int fd, struct job *ret_job, struct rollbox_error *error);
void job_done(struct job *job);

/* ---- the merged view of layers ---- */

/* The directories of one path, topmost first, which an overlay would merge. */
struct stack {
    int *fds; /* the structure's own */
    struct stat *stats;
    size_t n;
    bool with_base; /* the last one is the host's */
};

/* The entry with a name in a stack. */
struct found {
    bool there;
    bool whiteout;  /* a higher layer hides it: there is no entry, and the layers below do not count
                     */
    bool closed;    /* the layers below do not count */
    size_t source;  /* index in the stack that has it */
    struct stat st; /* of the topmost */
    struct stack below; /* for a directory: the directories that merge */
};

int stack_find(const struct stack *stack, const char *name, struct found *ret_found);
void found_done(struct found *found);
void stack_done(struct stack *stack);

/* All names in a stack, sorted, whiteouts included. */
struct names;
int stack_names(const struct stack *stack, struct names *ret_names);

/* ---- differences ---- */

/* One change. The descriptors of the parent directories are valid during the call; -EBADF: no such
 * directory. */
struct change {
    char kind;                    /* 'A', 'M', 'D' */
    const char *path;             /* below the place, no slash in front; "" is the place itself */
    const char *name, *old_name;  /* in new_parent, in old_parent */
    const struct stat *old, *new; /* NULL: not there */
    int old_parent, new_parent;
    bool old_is_host; /* no layer's, but the base's own */
    bool vanished; /* a D of something that is not there below: the host has removed it meanwhile */
};

typedef int (*change_visitor)(
    void *context, const struct change *change, struct rollbox_error *error);

/* Whether the entries of two directories with a name differ. 1, 0, or -errno. */
int changes_differ(const char *name, int old_parent, const struct stat *old, int new_parent,
    const struct stat *new);

/* Calls for every difference between the view of (base +) lower and the view with `upper` on top
 * (or on top of the shared layers, if they branch), parents before their entries, names sorted.
 * With `vanished`, calls for vanished entries, too. */
int changes_of_place(const struct job *job, const struct job_place *place, bool vanished,
    change_visitor visit, void *context, struct rollbox_error *error);

/* The stacks of a place: `upper` alone (or, if the two branch, with all layers below it), and the
 * part below it. `*ret_closed`: the top hides everything below. */
int place_open(const struct job *job, const struct job_place *place, struct stack *ret_upper,
    struct stack *ret_below, bool *ret_closed, struct rollbox_error *error);

/* The command: all places as one JSON object. */
int changes_json(const struct job *job, json_t **ret_json, struct rollbox_error *error);

#endif
