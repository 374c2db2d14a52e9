/* SPDX-License-Identifier: Apache-2.0 */
/* Restores data that waits in pseudo-terminals, independently of the terminal's settings. The
 * caller must be the only user of both ends meanwhile. */
#ifndef ROLLBOX_BASE_TTY_H
#define ROLLBOX_BASE_TTY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Typed input that was not read yet: a sequence of these, each followed by its bytes, padded to
 * 8. */
struct tty_typed {
    uint32_t length, kind; /* enum tty_kind */
};

enum tty_kind {
    TTY_LINE = 1, /* with its terminating character */
    TTY_END,      /* ended by an end of file, which is not among the bytes */
    TTY_REST,     /* not ended yet; or there are no lines in this mode */
};

#define TTY_MAX_TYPED 4095u /* the kernel's buffer, N_TTY_BUF_SIZE - 1 bytes */

/* Whether a character device is a terminal or a terminal's master. */
bool tty_is_one(int fd);
/* Writes to the terminal `fd`, so that its master reads these bytes. Does not wait if `fd` is
 * non-blocking. Returns 0 or -errno. */
int tty_put_output(int fd, const void *data, size_t length);
/* Types the input into `master`, so that the terminal `fd` has it as before. The caller must first
 * read all data that waits for the master, and the master must not be in packet mode. Returns 0,
 * -EBADMSG for malformed input, or -errno. */
int tty_put_input(int master, int fd, const void *typed, size_t length);

#endif
