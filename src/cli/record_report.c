/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/record_report.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "cli/cli.h"
#include "cli/record.h"
#include "client/client.h"

#define PLACE "{id}"

static bool is_plain(unsigned char c, bool is_first) {
    if (!c || c >= 128)
        return false;
    return isalnum(c) || strchr("_-~", c) || (c == '.' && !is_first);
}

/* A string or an integer. A string may have any character; a file's name has it as %XX unless it is
 * a plain one. */
static void add_id(const struct job *job, struct buf *to) {
    const json_t *id = json_object_get(job->root, "id");
    const char *text = json_string_value(id);

    if (json_is_integer(id))
        buf_printf(to, "%" JSON_INTEGER_FORMAT, json_integer_value(id));
    for (size_t i = 0; text && i < json_string_length(id); i++) {
        unsigned char c = (unsigned char)text[i];

        if (is_plain(c, i == 0))
            buf_add(to, text + i, 1);
        else
            buf_printf(to, "%%%02X", c);
    }
}

static char *path_of(const char *pattern, const struct job *job) {
    const char *at = strstr(pattern, PLACE);
    struct buf path = BUF_INIT;

    buf_add(&path, pattern, (size_t)(at - pattern));
    add_id(job, &path);
    buf_add_text(&path, at + strlen(PLACE));
    return buf_take(&path);
}

int record_report_check(const struct options *options) {
    const char *pattern = options_text(options, OPTION_RECORD);

    return !pattern || strstr(pattern, PLACE)
               ? 0
               : cli_fail(options,
                     "--record %s: jobs need a file each; put " PLACE " into its name", pattern);
}

int record_report_start(const struct options *options, struct rollbox_engine *engine,
    struct rollbox_plan *plan, struct job *job, struct rollbox_error *error) {
    const struct rollbox_sandbox_options sandbox_options = { .size = sizeof sandbox_options };
    const struct rollbox_run_options *run = &job->options;
    const struct rollbox_exec_options exec = {
        .size = sizeof exec,
        .argv = run->argv,
        .env = run->env,
        .cwd = run->cwd,
        .stdin_data = run->stdin_data,
        .stdin_length = run->stdin_length,
        .files = run->files,
        .n_files = run->n_files,
        .timeout_ms = run->timeout_ms == -1 ? policy_api_run_timeout_ms(plan) : run->timeout_ms,
        .output_limit = run->output_limit,
        .input_fd = -1,
        .stream_fds = { -1, -1 },
        .callback = run->callback,
        .userdata = run->userdata,
    };
    auto_free char *path = path_of(options_text(options, OPTION_RECORD), job);
    auto_close int fd = -EBADF;

    if (!path)
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
    /* Another attempt's takes the place of the last one's. */
    int r = record_open_file(
        path, job->attempts > 1 || options_has(options, OPTION_OVERWRITE), &fd, error);
    if (r >= 0)
        r = rollbox_sandbox_create(engine, plan, &sandbox_options, &job->sandbox, error);
    if (r >= 0)
        r = record_start(options, job->sandbox, fd, error);
    if (r >= 0)
        r = rollbox_exec(job->sandbox, &exec, &job->run, error);
    if (r < 0)
        (void)rollbox_sandbox_close(TAKE_PTR(job->sandbox), NULL);
    return r;
}

int record_report_end(const struct options *options, struct job *job) {
    auto_free char *what = NULL;

    if (!job->sandbox)
        return 0;
    if (asprintf(&what, "job %s", job->id) < 0)
        what = NULL;
    return record_end(options, TAKE_PTR(job->sandbox), what);
}
