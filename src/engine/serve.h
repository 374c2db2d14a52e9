/* SPDX-License-Identifier: Apache-2.0 */
/* The engine as a function: of the program rollbox-engine, and of the process that the CLI forks for a private engine of its own. */
#ifndef ROLLBOX_ENGINE_SERVE_H
#define ROLLBOX_ENGINE_SERVE_H

#include <stdbool.h>
#include <stdint.h>

struct serve_options {
    const char *socket_path;    /* of a shared engine; NULL: a private one, which serves the client on `fd` (consumed) and ends with it */
    int fd;
    bool have_budget;
    uint64_t memory_budget;     /* bytes; 0: no limit */
};

/* Serves until told to end. Returns the exit status; the process is to end then. */
int serve(const struct serve_options *options);

/* One line on standard error. Returns the exit status of an engine that cannot serve. */
int serve_complain(const char *what, const char *why);

#endif
