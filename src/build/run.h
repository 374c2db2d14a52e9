/* SPDX-License-Identifier: Apache-2.0 */
/* RUN: a command in a sandbox of many users whose root is the image so far. */
#ifndef ROLLBOX_BUILD_RUN_H
#define ROLLBOX_BUILD_RUN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include <rollbox/rollbox.h>

#include "build/caches.h"
#include "build/dockerfile.h"
#include "build/progress.h"
#include "store/add_layer.h"

/* The engine, policy and store that all sandboxes of a build share. */
struct runner {
    const json_t *policy;          /* the caller's */
    const char *socket;            /* of a shared engine; NULL: a private one */
    struct rollbox_engine *engine; /* started when first needed */
    struct progress *progress;
    int store;
};

struct run_file {
    char *path;
    char *data;
    size_t length;
    unsigned mode;
    bool is_secret;
};

struct run_step {
    const char *image; /* an image of the store; it has the layers of the list */
    struct words argv, env;
    const char *cwd, *user;
    bool offline;           /* without a network, also if the policy allows one */
    struct run_file *files; /* there during the command, and not in the layer */
    size_t n_files;
    struct caches caches;
    json_t *tmpfs;        /* of the policy: empty directories; NULL: none */
    const char *agent;    /* the socket of an SSH agent; NULL: none */
    struct words mounts;  /* paths of mounts */
    struct binds *binds;  /* of build_files.c: what the image has to have besides; NULL: none */
    struct words dropped; /* paths whose changes are no part of the layer */
};

void run_step_done(struct run_step *step);

/* Runs the command, and adds what it has changed to the layers. *ret_status: the command's exit
 * status; 128 + n for a signal. The layers are unchanged unless it is 0. */
int run_execute(struct runner *runner, struct run_step *step, struct layer_list *layers,
    int *ret_status, struct rollbox_error *error);

/* Downloads a URL by the host's curl in a sandbox that reaches what the policy allows. *ret_fd: an
 * unnamed file with the content. */
int run_fetch(
    struct runner *runner, const char *url, size_t limit, int *ret_fd, struct rollbox_error *error);

void runner_done(struct runner *runner);

#endif
