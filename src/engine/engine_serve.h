/* SPDX-License-Identifier: Apache-2.0 */
/* The engine as a function: of the program rollbox-engine, and of the process that the CLI forks
 * for a private engine of its own. */
#ifndef ROLLBOX_ENGINE_ENGINE_SERVE_H
#define ROLLBOX_ENGINE_ENGINE_SERVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct serve_options {
    const char *socket_path; /* of a shared engine; NULL: a private one, which serves the client on
                                `fd` (consumed) and ends with it */
    int fd;
    bool have_budget;
    uint64_t memory_budget; /* bytes; 0: no limit */
    bool expects_fixed; /* the first policy will have a seed or a clock of its own: what is started
                           ahead of it has no random addresses */
    /* NULL, or memory shared with the parent, all zero: what is named there when this process has
     * ended, paths one after the other and an empty one, are the directories of cgroups that it had
     * no time to remove. Where the parent does that, there is no need for a janitor. */
    char *leftovers;
    size_t leftovers_size;
    const char *log, *log_level,
        *log_format; /* of log_open; NULL: as the environment says (ROLLBOX_LOG and so on) */
};

/* Makes the operations known. Once, before engine_serve. */
void engine_set_operations(void);

/* Serves until told to end. Returns the exit status; the process is to end then. */
int engine_serve(const struct serve_options *options);

/* One line on standard error. Returns the exit status of an engine that cannot serve. */
int serve_complain(const char *what, const char *why);

#endif
