/* SPDX-License-Identifier: Apache-2.0 */
/* The export runs in a thread, because the pipe must be read at the same time. */
#include "build/changes.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"

#define PIPE_BYTES (1 << 20)

struct exporting {
    struct rollbox_sandbox *sandbox;
    const char *snapshot;
    int to;
    int r;
    struct rollbox_error error;
};

static void *export_thread(void *context) {
    struct exporting *exporting = context;
    char path[32];

    snprintf(path, sizeof path, "/proc/self/fd/%d", exporting->to);
    exporting->r = rollbox_export(exporting->sandbox, exporting->snapshot, path, &exporting->error);
    close_fd(&exporting->to);
    return NULL;
}

int changes_read(struct rollbox_sandbox *sandbox, const char *snapshot,
    int (*take)(void *context, int archive, struct rollbox_error *error), void *context,
    struct rollbox_error *error) {
    struct exporting exporting = { .sandbox = sandbox, .snapshot = snapshot };
    pthread_t thread;
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, errno, "build",
            "cannot make a pipe: %s", strerror(errno));
    auto_close int from = ends[0];
    exporting.to = ends[1];
    (void)fcntl(from, F_SETPIPE_SZ, PIPE_BYTES);
    int r = pthread_create(&thread, NULL, export_thread, &exporting);
    if (r) {
        close_fd(&exporting.to);
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, r, "build",
            "cannot start a thread: %s", strerror(r));
    }
    r = take(context, from, error);
    /* A reader that fails breaks the pipe, and the export fails for this alone. An export that has
     * failed by itself has closed the pipe before. */
    struct pollfd pipe = { .fd = from };
    bool was_broken = r < 0 && !(poll(&pipe, 1, 0) == 1 && pipe.revents & POLLHUP);
    close_fd(&from);
    pthread_join(thread, NULL);
    if (exporting.r < 0 && exporting.error.code && !was_broken) {
        *error = exporting.error;
        return exporting.r;
    }
    return r;
}
