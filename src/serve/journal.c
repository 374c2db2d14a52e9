/* SPDX-License-Identifier: Apache-2.0 */
/* The journal; journal.h has the model. */
#include "serve/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "serve/digits.h"

#define NAME "journal"
#define NAME_NEW "journal.new"
#define DIGEST_BYTES 8
#define DIGEST_DIGITS (2 * DIGEST_BYTES)
#define READ_MAX ((size_t)4 << 30)
#define GROWTH_MIN ((size_t)16 << 20) /* a smaller file is not worth rewriting */

struct journal {
    struct journal_user user;
    int directory, fd;
    size_t length, length_after_dump;
    bool dumping, failed, is_behind; /* of the last: lines are missing in it */
};

static void digest_of(const char *text, size_t length, char digits[DIGEST_DIGITS + 1]) {
    struct sha256_ctx context;
    unsigned char digest[32];

    sha256_init(&context);
    sha256_update(&context, length, (const uint8_t *)text);
    sha256_digest(&context, sizeof digest, digest);
    digits_of(digest, DIGEST_BYTES, digits);
}

/* Replays the lines up to the first damaged or incomplete one. Returns their length. */
static size_t replay(struct journal *journal, const char *text, size_t length) {
    size_t at = 0;

    while (at < length) {
        char digits[DIGEST_DIGITS + 1];
        const char *line = text + at, *end = memchr(line, '\n', length - at);
        size_t n = end ? (size_t)(end - line) : 0;

        if (n <= DIGEST_DIGITS || line[DIGEST_DIGITS] != ' ')
            break;
        digest_of(line + DIGEST_DIGITS + 1, n - DIGEST_DIGITS - 1, digits);
        if (memcmp(digits, line, DIGEST_DIGITS) != 0)
            break;
        json_t *row =
            json_loadb(line + DIGEST_DIGITS + 1, n - DIGEST_DIGITS - 1, JSON_ALLOW_NUL, NULL);
        if (!row)
            break;
        journal->user.replay(journal->user.data, row);
        json_decref(row);
        at += n + 1;
    }
    return at;
}

static int write_line(struct journal *journal, const json_t *line) {
    auto_free char *text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(15));
    char digits[DIGEST_DIGITS + 1];
    auto_buf struct buf whole = BUF_INIT;

    if (!text)
        return -ENOMEM;
    digest_of(text, strlen(text), digits);
    buf_printf(&whole, "%s ", digits);
    buf_add_text(&whole, text);
    buf_add(&whole, "\n", 1);
    if (buf_failed(&whole))
        return -ENOMEM;
    int r = fd_write_all(journal->fd, whole.data, whole.length);
    if (r < 0) {
        /* A part of a line would make the lines after it unreadable. */
        if (ftruncate(journal->fd, (off_t)journal->length) < 0)
            journal->failed = true;
        return r;
    }
    journal->length += whole.length;
    return 0;
}

/* Replaces the journal by a new file with the lines that are still needed. */
static int rewrite(struct journal *journal) {
    int old = journal->fd;
    size_t old_length = journal->length;

    (void)unlinkat(journal->directory, NAME_NEW, 0);
    int fd = openat(
        journal->directory, NAME_NEW, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    journal->fd = fd;
    journal->length = 0;
    journal->dumping = true;
    journal->failed = false;
    journal->user.dump(journal->user.data, journal);
    journal->dumping = false;
    errno = journal->failed ? ENOSPC : 0;
    bool ok = !journal->failed && flock(fd, LOCK_EX | LOCK_NB) == 0 && fsync(fd) == 0 &&
              renameat(journal->directory, NAME_NEW, journal->directory, NAME) == 0;
    if (!ok) {
        int r = errno ? -errno : -EIO;

        close(fd);
        (void)unlinkat(journal->directory, NAME_NEW, 0); /* its room may be the last */
        journal->fd = old;
        journal->length = old_length;
        return r;
    }
    if (old >= 0)
        close(old);
    journal->length_after_dump = journal->length;
    return 0;
}

static void tell_trouble(struct journal *journal, int error) {
    if (journal->user.troubled)
        journal->user.troubled(journal->user.data, error);
}

int journal_mend(struct journal *journal) {
    if (!journal->is_behind)
        return 0;
    int r = rewrite(journal);
    if (r < 0)
        return r;
    journal->is_behind = false;
    tell_trouble(journal, 0);
    return 0;
}

int journal_add(struct journal *journal, json_t *take_line) {
    int r = 0;

    if (journal && take_line)
        r = write_line(journal, take_line);
    json_decref(take_line);
    if (!journal || !take_line)
        return journal ? -ENOMEM : 0;
    if (journal->dumping) {
        journal->failed = journal->failed || r < 0;
        return r;
    }
    if (r < 0 && !journal->is_behind) {
        journal->is_behind = true;
        tell_trouble(journal, r);
    }
    if (r >= 0 && journal->length > GROWTH_MIN && journal->length / 2 > journal->length_after_dump)
        (void)rewrite(journal); /* the old one stays if it cannot be */
    if (r >= 0 && journal->user.changed)
        journal->user.changed(journal->user.data);
    return r;
}

int journal_file(const struct journal *journal) {
    int fd = fcntl(journal->fd, F_DUPFD_CLOEXEC, 0);

    return fd < 0 ? -errno : fd;
}

int journal_open(
    const char *directory, const struct journal_user *user, struct journal **ret_journal) {
    struct journal *journal = calloc(1, sizeof *journal);
    auto_buf struct buf text = BUF_INIT;

    if (!journal)
        return -ENOMEM;
    journal->user = *user;
    journal->directory = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    journal->fd = journal->directory < 0 ? -EBADF
                                         : openat(journal->directory, NAME,
                                               O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int r = journal->fd < 0 || flock(journal->fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0;
    if (r >= 0)
        r = fd_read_all(journal->fd, READ_MAX, &text);
    if (r >= 0) {
        journal->length = replay(journal, text.data ? text.data : "", text.length);
        r = rewrite(journal);
        /* Without room for a second file the old one does, without a torn last line. */
        if (r == -ENOSPC || r == -EDQUOT)
            r = ftruncate(journal->fd, (off_t)journal->length) < 0 ? -errno : 0;
    }
    if (r < 0) {
        close_fd(&journal->fd);
        close_fd(&journal->directory);
        free(journal);
        return r;
    }
    *ret_journal = journal;
    return 0;
}
