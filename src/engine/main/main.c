/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox-engine: its command line.
 *
 * - rollbox-engine --fd N is a private engine. It serves the one client on descriptor N and ends
 * with it, and closes the descriptors above N.
 * - rollbox-engine --socket PATH is a shared engine. It serves all clients of the same user that
 *   connect, and ends on SIGTERM or SIGINT.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/log.h"
#include "engine/engine_serve.h"
#include "policy/policy.h"
#include "sys/syscalls.h"

int main(int argc, char **argv) {
    struct serve_options options = { .fd = -1 };

    for (int i = 1; i < argc; i++) {
        char *end;

        if (!strcmp(argv[i], "--fd") && i + 1 < argc) {
            long number = strtol(argv[++i], &end, 10);
            if (*end || number < 0 || number > 1 << 20 ||
                fcntl((int)number, F_SETFD, FD_CLOEXEC) < 0)
                return serve_complain("--fd", "must be an open descriptor");
            options.fd = (int)number;
            /* A private engine has its socket and the standard streams. It closes all other
             * descriptors that its starter left open. */
            if (sys_close_range((unsigned)options.fd + 1, ~0u, 0) < 0)
                return serve_complain(
                    "--fd", "cannot close inherited descriptors: close_range is refused");
        } else if (!strcmp(argv[i], "--socket") && i + 1 < argc) {
            options.socket_path = argv[++i];
        } else if (!strcmp(argv[i], "--memory-budget") && i + 1 < argc) {
            if (policy_parse_size(argv[++i], &options.memory_budget) < 0)
                return serve_complain(
                    "--memory-budget", "must be a size such as 16G; 0 for no limit");
            options.have_budget = true;
        } else if (!strcmp(argv[i], "--log") && i + 1 < argc) {
            options.log = argv[++i];
        } else if (!strcmp(argv[i], "--log-level") && i + 1 < argc) {
            options.log_level = argv[++i];
        } else if (!strcmp(argv[i], "--log-format") && i + 1 < argc) {
            options.log_format = argv[++i];
        } else if (!strcmp(argv[i], "--version")) {
            puts("rollbox-engine " ROLLBOX_VERSION);
            return 0;
        } else {
            return serve_complain(argv[i],
                "unknown; use --socket PATH [--memory-budget SIZE] [--log FILE|-] "
                "[--log-level LEVEL] [--log-format text|json] (see rollbox-engine(1))");
        }
    }
    if ((options.fd < 0) == !options.socket_path)
        return serve_complain("arguments", "use --socket PATH (see rollbox-engine(1))");
    engine_set_operations();
    return engine_serve(&options);
}
