/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs skopeo, which talks to registries: names, mirrors, credentials, TLS and proxies are its
 * affair.
 *
 * skopeo is a program of the host with a network. It gets an environment of few variables, no
 * inherited descriptors, a session of its own, no capabilities and no new privileges; with Landlock
 * it writes below one directory of the store alone, which is also its working directory. It dies
 * with this process. Its arguments contain no secret: credentials are in a file of that directory.
 *
 * What it fetched is not trusted: the caller compares digests again.
 */
#ifndef ROLLBOX_STORE_SKOPEO_H
#define ROLLBOX_STORE_SKOPEO_H

#include <stdbool.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"

#define SKOPEO_AUTHFILE "auth.json" /* in the working directory */

struct skopeo {
    char *program;
    int work;            /* the working directory; borrowed */
    bool insecure;       /* HTTP, and certificates of anybody */
    bool has_authfile;   /* SKOPEO_AUTHFILE exists; else skopeo looks where it looks by itself */
    unsigned stall_s;    /* ends skopeo after so long without progress */
    const char *subject; /* the reference, for messages */
    const char *verb;    /* "pull", "push" */
};

/* Called about ten times a second while skopeo runs. Returns the number of bytes so far, whose
 * growth is progress, or -errno after setting the error, which ends skopeo. */
typedef int64_t (*skopeo_watcher)(void *context, struct rollbox_error *error);

/* Finds the program. Errors: FEATURE_MISSING, with the command that installs it. */
int skopeo_find(struct skopeo *skopeo, struct rollbox_error *error);
void skopeo_done(struct skopeo *skopeo);

/* Puts credentials into SKOPEO_AUTHFILE: a copy of `authfile`, or the user and password in the file
 * `creds` ("-": standard input), for `host`. NULLs: nothing. */
int skopeo_authorize(struct skopeo *skopeo, const char *authfile, const char *creds,
    const char *host, struct rollbox_error *error);

/* Runs `skopeo ARGUMENTS` to its end. *to gets its standard output. The words of its errors become
 * an error of rollbox: NOT_FOUND, PATH_DENIED (credentials), RESOURCE_EXHAUSTED (disk), DAMAGED (a
 * wrong digest), IO. `watch` NULL: nothing is watched, and stall_s is the time for all of it. */
int skopeo_run(const struct skopeo *skopeo, const char *const *arguments, skopeo_watcher watch,
    void *context, struct buf *to, struct rollbox_error *error);

#endif
