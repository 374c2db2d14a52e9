/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox cp: copies a file or tree between host and sandbox.
 *
 * One operand is NAME:/PATH. The other is a path of the host (written ./a:b if its first component
 * has a colon), or - for a standard stream, which is one file. As with docker cp, a directory is
 * copied into an existing directory under its own name, and SOURCE/. stands for the contents of
 * SOURCE.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/size_text.h"
#include "cli/cli.h"
#include "cli/session.h"
#include "cli/signals.h"

#define MAX_STREAM ((size_t)1 << 30) /* bytes of a standard stream: it is held in memory */
#define DRAW_NS 100000000

struct copying {
    const struct options *options;
    struct rollbox_sandbox *sandbox;
    const char *host, *owner; /* owner: NULL: root, or the sandbox's one user */
    char *guest;              /* the path in the sandbox */
    bool upload;
    bool bar, drawn;
    int64_t drawn_ns;
    uint64_t bytes, files;
    struct rollbox_error error;
};

static bool is_stream(const struct copying *c) {
    return strcmp(c->host, "-") == 0;
}

/* The path in the sandbox that an operand names, and where its name ends; NULL if it is the host's.
 */
static const char *guest_path(const char *operand, size_t *ret_name_length) {
    size_t length = strcspn(operand, ":/");

    if (!length || operand[length] != ':')
        return NULL;
    *ret_name_length = length;
    return operand + length + 1;
}

/* ---- destination ---- */

static bool means_content(const char *path) {
    size_t length = strlen(path);

    return strcmp(path, ".") == 0 || (length >= 2 && strcmp(path + length - 2, "/.") == 0);
}

/* Appends the last component of `from`, if it has one. */
static int append_name(char **path, const char *from) {
    size_t end = strlen(from), begin;
    char *longer;

    while (end > 1 && from[end - 1] == '/')
        end--;
    for (begin = end; begin && from[begin - 1] != '/'; begin--)
        ;
    if (begin == end || (end - begin == 2 && strncmp(from + begin, "..", 2) == 0))
        return 0;
    if (asprintf(&longer, "%s/%.*s", *path, (int)(end - begin), from + begin) < 0)
        return -ENOMEM;
    free(*path);
    *path = longer;
    return 0;
}

/* 1: a directory of the sandbox; 0: another file, or none; negative: unknown. */
static int guest_is_directory(struct copying *c) {
    auto_free char *text = NULL;

    if (rollbox_file_stat(c->sandbox, c->guest, true, &text, &c->error) < 0) {
        bool missing = c->error.error_number == ENOENT;

        return missing ? 0 : -1;
    }
    json_t *entry = json_loads(text, 0, NULL);
    const char *type = json_string_value(json_object_get(entry, "type"));
    int r = type && strcmp(type, "directory") == 0;
    json_decref(entry);
    return r;
}

static bool host_is_directory(const char *path) {
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* ---- progress ---- */

static void clear_progress(struct copying *c) {
    if (c->drawn)
        (void)fd_write_all(STDERR_FILENO, "\r\033[K", 4);
    c->drawn = false;
}

static int show_progress(uint64_t bytes, uint64_t files, void *userdata) {
    struct copying *c = userdata;
    int64_t now = clock_now_ns();

    c->bytes = bytes;
    c->files = files;
    if (c->bar && (!c->drawn || now - c->drawn_ns >= DRAW_NS)) {
        auto_buf struct buf line = BUF_INIT;

        buf_add_text(&line, "\r\033[K");
        size_text_add(&line, (double)bytes);
        buf_printf(&line, "  %" PRIu64 " files", files);
        (void)fd_write_all(STDERR_FILENO, line.data, line.length);
        c->drawn = true;
        c->drawn_ns = now;
    }
    return signals_caught() != 0;
}

/* ---- copying: 0, or negative with c->error filled ---- */

static int fail_copy(struct copying *c, int r, const char *what) {
    c->error = (struct rollbox_error){ .code = ROLLBOX_ERR_IO, .error_number = -r };
    snprintf(c->error.message, sizeof c->error.message, "cannot %s: %s", what, strerror(-r));
    return r;
}

static int copy_in(struct copying *c) {
    if (is_stream(c)) {
        auto_buf struct buf content = BUF_INIT;

        int r = fd_read_all(STDIN_FILENO, MAX_STREAM, &content);
        if (r < 0)
            return fail_copy(c, r, "read standard input (1 GiB at the most)");
        c->bytes = content.length;
        c->files = 1;
        return rollbox_file_write_as(c->sandbox, c->guest, content.data, content.length,
            &(struct rollbox_file_options){
                .size = sizeof(struct rollbox_file_options), .owner = c->owner, .mode = 0644 },
            &c->error);
    }
    if (host_is_directory(c->host) && !means_content(c->host)) {
        int r = guest_is_directory(c);

        if (r > 0)
            r = append_name(&c->guest, c->host);
        if (r < 0)
            return c->error.code ? r : fail_copy(c, r, "copy");
    }
    return rollbox_upload_as(c->sandbox, c->host, c->guest,
        &(struct rollbox_file_options){ .size = sizeof(struct rollbox_file_options),
            .owner = c->owner,
            .progress = show_progress,
            .userdata = c },
        &c->error);
}

static int copy_out(struct copying *c) {
    if (is_stream(c)) {
        auto_free void *data = NULL;
        size_t length;

        int r = rollbox_file_read(c->sandbox, c->guest, MAX_STREAM, &data, &length, &c->error);
        if (r < 0)
            return r;
        c->bytes = length;
        c->files = 1;
        r = fd_write_all(STDOUT_FILENO, data, length);
        return r < 0 ? fail_copy(c, r, "write to standard output") : 0;
    }
    auto_free char *target = strdup(c->host);
    if (!target)
        return fail_copy(c, -ENOMEM, "copy");
    if (host_is_directory(target) && !means_content(c->guest)) {
        int r = guest_is_directory(c);

        if (r > 0)
            r = append_name(&target, c->guest);
        if (r < 0)
            return c->error.code ? r : fail_copy(c, r, "copy");
    }
    return rollbox_download(c->sandbox, c->guest, target, show_progress, c, &c->error);
}

static int report_copy(struct copying *c, int r) {
    clear_progress(c);
    if (r < 0)
        return signals_caught() ? CLI_EXIT_ERROR : cli_fail_error(c->options, &c->error);
    if (options_has(c->options, OPTION_JSON) && !(is_stream(c) && !c->upload))
        printf("{\"bytes\": %" PRIu64 ", \"files\": %" PRIu64 "}\n", c->bytes, c->files);
    return cli_flush(c->options, 0);
}

int cmd_cp(const struct options *options) {
    size_t from_length = 0, to_length = 0;
    const char *from = guest_path(options->rest[0], &from_length),
               *to = guest_path(options->rest[1], &to_length);
    struct copying c = {
        .options = options,
        .upload = to != NULL,
        .host = options->rest[to ? 0 : 1],
        .owner = options_text(options, OPTION_CHOWN),
    };
    struct rollbox_engine *engine;

    if (!from == !to)
        return cli_fail(options, "one of the two must be NAME:/PATH, a path in a sandbox, and the "
                                 "other a path of the host (./a:b if it has a colon)");
    if (from && c.owner)
        return cli_fail(options, "--chown: files on the host are the caller's");
    if ((from ? from : to)[0] != '/')
        return cli_fail(options, "the path in the sandbox must begin with /: \"%s\"",
            options->rest[from ? 0 : 1]);
    auto_free char *name =
        from ? strndup(options->rest[0], from_length) : strndup(options->rest[1], to_length);
    c.guest = strdup(from ? from : to);
    if (!name || !c.guest) {
        free(c.guest);
        return cli_fail(options, "out of memory");
    }
    int status = session_connect(options, &engine);
    if (status) {
        free(c.guest);
        return status;
    }
    c.bar = isatty(STDERR_FILENO) && !options_has(options, OPTION_NO_PROGRESS) &&
            !options_has(options, OPTION_JSON) && !is_stream(&c);
    if (rollbox_sandbox_open(engine, name, &c.sandbox, &c.error) < 0) {
        status = cli_fail_error(options, &c.error);
    } else if (!is_stream(&c) && signals_catch() < 0) {
        status = cli_fail(options, "cannot make a pipe: %s", strerror(errno));
    } else {
        status = report_copy(&c, c.upload ? copy_in(&c) : copy_out(&c));
    }
    rollbox_sandbox_free(c.sandbox);
    rollbox_engine_close(engine);
    free(c.guest);
    return cli_end(status);
}
