/* SPDX-License-Identifier: Apache-2.0 */
/* The standard streams, where the caller has closed some of them. */
#include <errno.h>
#include <fcntl.h>

#include "cli/cli.h"

static bool stdin_was_closed;

/* The next opened descriptor would take the place of a closed standard stream, and guest output
 * would be written into an engine's socket. Writes to standard output fail, as before; a guest's
 * input is at its end; and an error message would have no reader. */
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
