/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/results.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/line_reader.h"

#define ROW_BEGIN "{\"id\":"

enum row_kind { ROW_NONE, ROW_RESULT, ROW_ERROR };

/* Classifies a line; *ret_id is the JSON text of a row's id, for the caller to free. */
static enum row_kind row_parse(const char *line, size_t length, char **ret_id) {
    json_t *row = json_loadb(line, length, JSON_ALLOW_NUL, NULL);
    const json_t *id = json_object_get(row, "id");
    const char *outcome = json_string_value(json_object_get(row, "outcome"));
    enum row_kind kind = ROW_NONE;

    if (outcome && id) {
        *ret_id = json_dumps(id, JSON_ENCODE_ANY | JSON_COMPACT);
        if (*ret_id)
            kind = strcmp(outcome, "error") == 0 ? ROW_ERROR : ROW_RESULT;
    }
    json_decref(row);
    return kind;
}

/* Opens the file and locks it. Another batch may have replaced it between the two: then once more.
 */
static int open_locked(
    const struct options *options, const char *path, int *ret_fd, struct stat *ret_st) {
    for (;;) {
        auto_close int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        struct stat now;

        /* A terminal or pipe may be open to writing only. */
        if (fd < 0 && errno == EACCES)
            fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
        if (fd < 0 || fstat(fd, ret_st) < 0)
            return cli_fail(options, "%s: cannot open it for results: %s", path, strerror(errno));
        if (S_ISREG(ret_st->st_mode)) {
            /* On a file system without locks this is unknown; only a held lock is an error. */
            if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
                return cli_fail(options, "%s: another batch is writing it", path);
            if (stat(path, &now) < 0 || now.st_dev != ret_st->st_dev ||
                now.st_ino != ret_st->st_ino)
                continue;
        }
        *ret_fd = TAKE_FD(fd);
        return 0;
    }
}

/* Reads the present rows: fills results->done, notes whether there are error rows, and truncates an
 * incomplete last line. */
static int scan_results(const struct options *options, struct results *results, bool *ret_errors) {
    struct line_reader lines;
    off_t end = 0;
    char *line;
    size_t length;
    int r, status = 0;

    line_reader_init(&lines, results->fd, true);
    while (!status && (r = line_reader_next(&lines, &line, &length)) > 0) {
        auto_free char *id = NULL;

        if (lines.torn) {
            if (strncmp(line, ROW_BEGIN, MIN(length, strlen(ROW_BEGIN))) != 0)
                status = cli_fail(options,
                    "%s:%llu: not a result row; choose another file for the results", results->path,
                    (unsigned long long)lines.line);
            else if (ftruncate(results->fd, end) < 0)
                status = cli_fail(options, "%s: cannot cut the torn last line off: %s",
                    results->path, strerror(errno));
            break;
        }
        end += (off_t)length + 1;
        switch (row_parse(line, length, &id)) {
        case ROW_NONE:
            status =
                cli_fail(options, "%s:%llu: not a result row; choose another file for the results",
                    results->path, (unsigned long long)lines.line);
            break;
        case ROW_ERROR:
            *ret_errors = true;
            break;
        case ROW_RESULT:
            if (id_set_add(&results->done, id, lines.line, NULL) < 0)
                status = cli_fail(options, "out of memory");
            break;
        }
    }
    if (!status && r < 0)
        status = cli_fail(options, "%s: cannot read it: %s", results->path, strerror(-r));
    line_reader_done(&lines);
    return status;
}

/* Replaces the file by one without its error rows, at one stroke. */
static int compact_results(struct results *results, mode_t mode) {
    auto_buf struct buf path = BUF_INIT;
    struct line_reader lines;
    char *line;
    size_t length;
    int r;

    buf_printf(&path, "%s.rollbox-new", results->path);
    if (buf_failed(&path))
        return -ENOMEM;
    auto_close int fd = open(
        path.data, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, mode & 0777);
    if (fd < 0)
        return -errno;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
        return -errno;
    if (lseek(results->fd, 0, SEEK_SET) < 0)
        return -errno;
    line_reader_init(&lines, results->fd, true);
    while ((r = line_reader_next(&lines, &line, &length)) > 0) {
        auto_free char *id = NULL;

        if (row_parse(line, length, &id) != ROW_RESULT)
            continue;
        /* The newline is in the buffer, at the place of the line's NUL. */
        line[length] = '\n';
        r = fd_write_all(fd, line, length + 1);
        if (r < 0)
            break;
    }
    line_reader_done(&lines);
    if (r >= 0 && (fsync(fd) < 0 || rename(path.data, results->path) < 0))
        r = -errno;
    if (r < 0) {
        unlink(path.data);
        return r;
    }
    results->locked_fd = results->fd;
    results->fd = TAKE_FD(fd);
    return 0;
}

int results_open(const struct options *options, const char *path, struct results *ret_results) {
    struct results results = { .path = path, .fd = STDOUT_FILENO, .locked_fd = -EBADF };
    struct stat st = { 0 };
    bool errors = false;
    int status = 0;

    if (strcmp(path, "-") != 0) {
        status = open_locked(options, path, &results.fd, &st);
        if (status)
            return status;
        results.regular = S_ISREG(st.st_mode);
    } else {
        results.path = "standard output";
    }
    if (results.regular) {
        status = scan_results(options, &results, &errors);
        if (!status && errors) {
            int r = compact_results(&results, st.st_mode);

            if (r < 0)
                status =
                    cli_fail(options, "%s: cannot take its error rows out: %s", path, strerror(-r));
        }
    }
    if (status)
        results_close(&results);
    else
        *ret_results = results;
    return status;
}

int results_write(struct results *results, const char *row, size_t length) {
    return fd_write_all(results->fd, row, length);
}

int results_sync(struct results *results) {
    return results->regular && fsync(results->fd) < 0 ? -errno : 0;
}

void results_close(struct results *results) {
    if (results->fd != STDOUT_FILENO)
        close_fd(&results->fd);
    close_fd(&results->locked_fd);
    id_set_done(&results->done);
}
