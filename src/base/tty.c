/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores the unread input of a pseudo-terminal.
 *
 * Bytes written to the master reach the terminal with a delay, and the terminal's settings may be
 * restored only after that. So the bytes are typed with echo on: each byte is echoed once it has
 * arrived. An end of file is not echoed, so a letter and the erase key follow it. The special keys
 * are bytes that the input does not contain.
 */
#include "base/tty.h"

#include "base/cleanup.h"

#include <asm/termbits.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define GET_MODES 0x802c542a /* TCGETS2 */
#define SET_MODES 0x402c542b /* TCSETS2 */
#define ECHO_MS 2000

bool tty_is_one(int fd) {
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISCHR(st.st_mode);
}

static int write_all(int fd, const unsigned char *data, size_t length) {
    while (length) {
        ssize_t n = write(fd, data, length);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        data += n;
        length -= (size_t)n;
    }
    return 0;
}

int tty_put_output(int fd, const void *data, size_t length) {
    struct termios2 modes, raw;

    if (!length)
        return 0;
    if (ioctl(fd, (int)GET_MODES, &modes) < 0)
        return -errno;
    raw = modes;
    raw.c_oflag &= ~(tcflag_t)OPOST;
    if (ioctl(fd, (int)SET_MODES, &raw) < 0)
        return -errno;
    int r = write_all(fd, data, length);
    return ioctl(fd, (int)SET_MODES, &modes) < 0 ? -errno : r;
}

/* Reads the next value at `*at`. False at the end of the data, or if the value is malformed. */
static bool next_typed(const unsigned char *data, size_t length, size_t *at,
    struct tty_typed *ret_typed, const unsigned char **ret_bytes) {
    if (length - *at < sizeof *ret_typed)
        return false;
    memcpy(ret_typed, data + *at, sizeof *ret_typed);
    if (ret_typed->length > TTY_MAX_TYPED || ret_typed->length > length - *at - sizeof *ret_typed ||
        ret_typed->kind < TTY_LINE || ret_typed->kind > TTY_REST)
        return false;
    *ret_bytes = data + *at + sizeof *ret_typed;
    *at += sizeof *ret_typed + ((ret_typed->length + 7) & ~7u);
    if (*at > length)
        *at = length;
    return true;
}

/* Finds `n` bytes that do not occur in the input and do not end a line. */
static bool find_keys(const bool *is_used, unsigned char *keys, size_t n) {
    for (unsigned key = 1; key < 256 && n; key++)
        if (!is_used[key])
            keys[--n] = (unsigned char)key;
    return !n;
}

static int await_echo(int master, size_t n) {
    char echo[256];

    while (n) {
        struct pollfd one = { .fd = master, .events = POLLIN };
        int ready = poll(&one, 1, ECHO_MS);
        ssize_t got = ready > 0 ? read(master, echo, MIN(n, sizeof echo)) : 0;

        if ((ready < 0 || got < 0) && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 || ready < 0 ? -errno : -ETIMEDOUT;
        n -= (size_t)got;
    }
    return 0;
}

static int type_bytes(
    int master, const unsigned char *data, size_t length, const unsigned char *end, size_t *echo) {
    struct tty_typed typed;
    const unsigned char *bytes;
    int r = 0;

    for (size_t at = 0; r == 0 && next_typed(data, length, &at, &typed, &bytes);) {
        r = write_all(master, bytes, typed.length);
        if (r == 0 && typed.kind == TTY_END && end)
            r = write_all(master, end, 1);
        *echo += typed.length;
    }
    return r;
}

int tty_put_input(int master, int fd, const void *typed, size_t length) {
    const unsigned char *data = typed, *bytes;
    struct termios2 modes, plain;
    struct tty_typed one;
    bool is_used[256] = { ['\n'] = true };
    unsigned char keys[3] = { 0 }; /* end of file, a letter, erase */
    size_t at = 0, echo = 0, n = 0;

    if (!length)
        return 0;
    if (ioctl(fd, (int)GET_MODES, &modes) < 0)
        return -errno;
    while (next_typed(data, length, &at, &one, &bytes)) {
        for (uint32_t i = 0; i < one.length; i++)
            is_used[bytes[i]] = true;
        n += one.length + 1;
    }
    if (at != length || n > 2 * TTY_MAX_TYPED)
        return -EBADMSG;
    is_used[modes.c_cc[VEOL]] = is_used[modes.c_cc[VEOL2]] = true;
    if (modes.c_lflag & ICANON && !find_keys(is_used, keys, sizeof keys))
        return -ENOTSUP;
    plain = modes;
    plain.c_iflag = 0;
    plain.c_oflag &= ~(tcflag_t)OPOST;
    plain.c_lflag = (modes.c_lflag & (ICANON | IEXTEN)) | ECHO;
    memset(plain.c_cc, 0, sizeof plain.c_cc);
    plain.c_cc[VEOF] = keys[0];
    plain.c_cc[VERASE] = keys[2];
    plain.c_cc[VEOL] = modes.c_cc[VEOL];
    plain.c_cc[VEOL2] = modes.c_cc[VEOL2];
    if (!(modes.c_lflag & ICANON)) {
        plain.c_cc[VMIN] = 1; /* without ICANON, a read returns after one byte */
        plain.c_cc[VTIME] = 0;
    }
    if (ioctl(fd, (int)SET_MODES, &plain) < 0)
        return -errno;
    int r = type_bytes(master, data, length, modes.c_lflag & ICANON ? keys : NULL, &echo);
    if (r == 0 && modes.c_lflag & ICANON) {
        r = write_all(master, keys + 1, 2);
        echo += 2;
    }
    if (r == 0)
        r = await_echo(master, echo);
    return ioctl(fd, (int)SET_MODES, &modes) < 0 ? -errno : r;
}
