/* SPDX-License-Identifier: Apache-2.0 */
/* The standard streams, where the caller has closed some of them. */
#include <errno.h>
#include <fcntl.h>

#include "cli/cli.h"

static bool stdin_was_closed;

/* A closed standard stream would be taken by the next descriptor opened, and guest output be
 * written into an engine's socket. What is written to standard output fails, as it would have; a
 * guest's input is at its end, and nobody could be told that an error cannot be. */
int cli_open_standard_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0) {
            if (open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY) != fd)
                return -EBADF;
            stdin_was_closed |= fd == 0;
        }
    return 0;
}

bool cli_stdin_was_closed(void) {
    return stdin_was_closed;
}
