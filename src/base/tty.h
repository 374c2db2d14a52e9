/* SPDX-License-Identifier: Apache-2.0 */
/* What waits in pseudo-terminals: put there as if it had come the usual way, but as it is, whatever
 * the terminal is set to. Whoever calls has both ends for himself meanwhile. */
#ifndef ROLLBOX_BASE_TTY_H
#define ROLLBOX_BASE_TTY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What has been typed and not been read yet: each of these, its bytes, padded to 8. */
struct tty_typed {
    uint32_t length, kind; /* enum tty_kind */
};

enum tty_kind {
    TTY_LINE = 1, /* with what ends it */
    TTY_END,      /* ended by an end of file, which is not among the bytes */
    TTY_REST,     /* not ended yet; or there are no lines in this mode */
};

#define TTY_MAX_TYPED 4095u /* what the kernel keeps, N_TTY_BUF_SIZE - 1: bytes and ends */

/* As one that is a character device: a terminal, or its master. */
bool tty_is_one(int fd);
/* Written to the terminal `fd`, so that its master reads these bytes. Does not wait where `fd` does
 * not. 0 or -errno. */
int tty_put_output(int fd, const void *data, size_t length);
/* Typed into `master`, so that the terminal `fd` has it as it was; what waits for the master must
 * be read before, and it is not to be in packet mode. 0, -EBADMSG if it is not of that form, or
 * -errno. */
int tty_put_input(int master, int fd, const void *typed, size_t length);

#endif
