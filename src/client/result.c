/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results: from the engine's RESULT message to struct rollbox_result, and from there to JSON.
 *
 * Small outputs arrive inside the message and are copied. Large ones arrive as sealed memory files
 * and are mapped, so that ten megabytes cost no copy. The JSON writer is hand-written: it is the
 * hot path of a batch, numbers must not depend on the locale, and outputs may contain NULs and
 * invalid UTF-8.
 */
#include "client/client.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/utf8.h"
#include "engine/protocol.h"

#define SIGNAL_MAX 64
#define OUTPUT_MAX ((size_t)1 << 46)

/* ---- reading ---- */

int result_read_error(const void *data, size_t length, struct rollbox_error *ret_error) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct wire_field field;
    size_t position = 0;
    int r;

    while ((r = wire_next(data, length, &position, &field)) > 0) {
        const char *text;
        uint64_t number;

        switch (field.tag) {
        case TAG_ERROR_CODE:
        case TAG_ERROR_NUMBER:
            if (wire_u64(&field, &number) < 0 || number > INT32_MAX)
                return -EBADMSG;
            if (field.tag == TAG_ERROR_CODE)
                error.code = (enum rollbox_error_code)number;
            else
                error.error_number = (int)number;
            break;
        case TAG_ERROR_STAGE:
        case TAG_ERROR_MESSAGE:
            text = wire_text(&field);
            if (!text)
                return -EBADMSG;
            if (field.tag == TAG_ERROR_STAGE)
                (void)snprintf(error.stage, sizeof error.stage, "%s", text);
            else
                (void)snprintf(error.message, sizeof error.message, "%s", text);
            break;
        default:
            break;
        }
    }
    if (r < 0 || error.code == ROLLBOX_OK)
        return -EBADMSG;
    *ret_error = error;
    return 0;
}

void result_done(struct result *result) {
    for (int i = 0; i < 2; i++) {
        free(result->copies[i]);
        if (result->mappings[i])
            munmap(result->mappings[i], result->mapping_lengths[i]);
    }
    free(result->isolation);
    free(result->network);
    *result = (struct result){ .public = { .exit_code = -1 } };
}

static struct result no_memory = { .public = { .outcome = ROLLBOX_OUTCOME_ERROR,
                                       .exit_code = -1,
                                       .error = { .code = ROLLBOX_ERR_RESOURCE_EXHAUSTED,
                                           .error_number = ENOMEM,
                                           .stage = "result",
                                           .message = "out of memory for the run's result" } } };

struct result *result_new_failed(const char *isolation, const struct rollbox_error *error) {
    struct result *result = calloc(1, sizeof *result);

    if (!result)
        return &no_memory;
    result->public.outcome = ROLLBOX_OUTCOME_ERROR;
    result->public.exit_code = -1;
    result->public.error = *error;
    result->isolation = isolation ? strdup(isolation) : NULL;
    result->public.isolation = result->isolation;
    return result;
}

void result_free(struct result *result) {
    if (!result || result == &no_memory)
        return;
    result_done(result);
    free(result);
}

const struct rollbox_result *result_public(const struct result *result) {
    static const struct rollbox_result none;

    return result ? &result->public : &none;
}

/* Points stream `i` of the result at a copy of the field. */
static int take_inline(struct result *result, int i, const struct wire_field *field,
    const void **ret_data, size_t *ret_length) {
    if (result->copies[i] || result->mappings[i])
        return -EBADMSG;
    if (!field->length)
        return 0;
    result->copies[i] = malloc(field->length);
    if (!result->copies[i])
        return -ENOMEM;
    memcpy(result->copies[i], field->data, field->length);
    *ret_data = result->copies[i];
    *ret_length = field->length;
    return 0;
}

static int take_mapped(struct result *result, int i, struct wire_message *message, size_t index,
    const void **ret_data, size_t *ret_length) {
    auto_close int fd = wire_take_fd(message, index);

    if (fd < 0 || result->copies[i] || result->mappings[i])
        return -EBADMSG;
    int r = fd_map_memory_file(fd, OUTPUT_MAX, &result->mappings[i], &result->mapping_lengths[i]);
    if (r < 0)
        return r == -ENOMEM ? r : -EBADMSG;
    *ret_data = result->mappings[i];
    *ret_length = result->mapping_lengths[i];
    return 0;
}

/* The fields about the guest must be consistent: a caller that scores exit_code 0 must never see it
 * by default. */
static int check_result(struct rollbox_result *result, bool have_exit, uint64_t exit_code,
    bool have_signal, uint64_t signal) {
    result->exit_code = -1;
    result->signal = 0;
    if (result->outcome == ROLLBOX_OUTCOME_EXIT) {
        if (!have_exit || exit_code > 255)
            return -EBADMSG;
        result->exit_code = (int)exit_code;
    }
    if (result->outcome == ROLLBOX_OUTCOME_SIGNAL) {
        if (!have_signal || !signal || signal > SIGNAL_MAX)
            return -EBADMSG;
        result->signal = (int)signal;
    }
    return 0;
}

static int read_fields(struct wire_message *message, const char *isolation, struct result *result) {
    struct rollbox_result *public = &result->public;
    uint64_t outcome = UINT64_MAX, exit_code = 0, signal = 0;
    bool have_exit = false, have_signal = false;
    size_t position = 0, next_fd = 0;
    struct wire_field field;
    int r;

    while ((r = wire_next(message->data, message->length, &position, &field)) > 0) {
        uint64_t number = 0;
        const char *text;

        switch (field.tag) {
        case TAG_STDOUT:
            r = take_inline(result, 0, &field, &public->stdout_data, &public->stdout_length);
            break;
        case TAG_STDERR:
            r = take_inline(result, 1, &field, &public->stderr_data, &public->stderr_length);
            break;
        case TAG_ISOLATION:
            text = wire_text(&field);
            if (!text || result->isolation)
                return -EBADMSG;
            /* Nearly always the plan's own, which was parsed when it was prepared. */
            result->isolation =
                isolation && !strcmp(text, isolation) ? strdup(text) : result_json_object(text);
            r = result->isolation ? 0 : -EBADMSG;
            break;
        case TAG_NETWORK:
            text = wire_text(&field);
            if (!text || result->network)
                return -EBADMSG;
            result->network = result_json_object(text);
            r = result->network ? 0 : -EBADMSG;
            break;
        case TAG_OUTCOME:
        case TAG_EXIT_CODE:
        case TAG_SIGNAL:
        case TAG_STDOUT_FD:
        case TAG_STDERR_FD:
        case TAG_STDOUT_TRUNCATED:
        case TAG_STDERR_TRUNCATED:
        case TAG_WALL_NS:
        case TAG_CPU_NS:
        case TAG_PEAK_MEMORY:
        case TAG_PROCESSES_PEAK:
        case TAG_QUEUE_NS:
        case TAG_SETUP_NS:
            r = wire_u64(&field, &number);
            break;
        default:
            continue;
        }
        if (r < 0)
            return r;
        switch (field.tag) {
        case TAG_OUTCOME:
            outcome = number;
            break;
        case TAG_EXIT_CODE:
            exit_code = number;
            have_exit = true;
            break;
        case TAG_SIGNAL:
            signal = number;
            have_signal = true;
            break;
        case TAG_STDOUT_FD:
            if (number)
                r = take_mapped(
                    result, 0, message, next_fd++, &public->stdout_data, &public->stdout_length);
            break;
        case TAG_STDERR_FD:
            if (number)
                r = take_mapped(
                    result, 1, message, next_fd++, &public->stderr_data, &public->stderr_length);
            break;
        case TAG_STDOUT_TRUNCATED:
            public
            ->stdout_truncated = number != 0;
            break;
        case TAG_STDERR_TRUNCATED:
            public
            ->stderr_truncated = number != 0;
            break;
        case TAG_WALL_NS:
            public
            ->wall_ms = (double)number / 1e6;
            break;
        case TAG_CPU_NS:
            public
            ->cpu_ms = (double)number / 1e6;
            break;
        case TAG_PEAK_MEMORY:
            /* More than that is no size, and few readers of JSON take it. */
            public
            ->peak_memory_bytes = MIN(number, (uint64_t)INT64_MAX);
            break;
        case TAG_PROCESSES_PEAK:
            public
            ->processes_peak = (uint32_t)MIN(number, (uint64_t)UINT32_MAX);
            break;
        case TAG_QUEUE_NS:
            public
            ->queue_ms = (double)number / 1e6;
            break;
        case TAG_SETUP_NS:
            public
            ->setup_ms = (double)number / 1e6;
            break;
        default:
            break;
        }
        if (r < 0)
            return r;
    }
    if (r < 0)
        return r;
    if (outcome > ROLLBOX_OUTCOME_ERROR)
        return -EBADMSG;
    public->outcome = (enum rollbox_outcome)outcome;
    if (public->outcome == ROLLBOX_OUTCOME_ERROR) {
        r = result_read_error(message->data, message->length, &public->error);
        if (r < 0)
            return r;
    }
    return check_result(public, have_exit, exit_code, have_signal, signal);
}

int result_read(struct wire_message *message, const char *isolation, struct result *ret_result) {
    struct result *result = ret_result;

    *result = (struct result){ .public = { .exit_code = -1 } };
    int r = read_fields(message, isolation, result);
    if (r >= 0 && !result->isolation && isolation) {
        result->isolation = strdup(isolation);
        if (!result->isolation)
            r = -ENOMEM;
    }
    if (r < 0) {
        result_done(result);
        return r;
    }
    result->public.isolation = result->isolation;
    result->public.network = result->network;
    return 0;
}

int result_read_new(
    struct wire_message *message, const char *isolation, struct result **ret_result) {
    struct result *result = malloc(sizeof *result);
    int r = result ? result_read(message, isolation, result) : -ENOMEM;

    if (r < 0)
        free(result);
    else
        *ret_result = result;
    return r;
}

/* ---- JSON ---- */

char *result_json_object(const char *text) {
    json_t *value = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    char *compact = json_is_object(value) ? json_dumps(value, JSON_COMPACT) : NULL;

    json_decref(value);
    return compact;
}

static bool json_quote_any(struct buf *to, const void *data, size_t length) {
    return utf8_json(to, data, length);
}

void result_json_string(struct buf *to, const void *data, size_t length) {
    (void)utf8_json(to, data, length);
}

static void json_text(struct buf *to, const char *text) {
    result_json_string(to, text, strlen(text));
}

/* Milliseconds with at most three decimals. printf would follow the locale's decimal point. */
static void json_ms(struct buf *to, double ms) {
    uint64_t us = ms > 0 && ms < 1e15 ? (uint64_t)(ms * 1000 + 0.5) : 0;
    unsigned fraction = (unsigned)(us % 1000);

    buf_printf(to, "%llu", (unsigned long long)(us / 1000));
    if (!fraction)
        return;
    if (fraction % 100 == 0)
        buf_printf(to, ".%u", fraction / 100);
    else if (fraction % 10 == 0)
        buf_printf(to, ".%02u", fraction / 10);
    else
        buf_printf(to, ".%03u", fraction);
}

/* A stream of the guest's, and its raw bytes if the text cannot carry them. */
static void json_stream(struct buf *to, const char *name, const void *data, size_t length) {
    buf_printf(to, ",\"%s\":", name);
    if (json_quote_any(to, data, length))
        return;
    buf_printf(to, ",\"%s_base64\":\"", name);
    base64_encode(to, data, length);
    buf_add_text(to, "\"");
}

static const char *json_bool(bool value) {
    return value ? "true" : "false";
}

ROLLBOX_PUBLIC int rollbox_result_json(
    const struct rollbox_result *result, const char *id, char **ret_json) {
    auto_buf struct buf to = BUF_INIT;

    /* One growth instead of twenty for a large output. */
    (void)buf_reserve(&to, result->stdout_length + result->stderr_length +
                               (result->stdout_length + result->stderr_length) / 16 + 1024);
    buf_add_text(&to, "{");
    if (id) {
        buf_add_text(&to, "\"id\":");
        json_text(&to, id);
        buf_add_text(&to, ",");
    }
    buf_printf(&to, "\"outcome\":\"%s\",\"exit_code\":", rollbox_outcome_name(result->outcome));
    if (result->outcome == ROLLBOX_OUTCOME_EXIT)
        buf_printf(&to, "%d", result->exit_code);
    else
        buf_add_text(&to, "null");
    buf_add_text(&to, ",\"signal\":");
    if (result->outcome == ROLLBOX_OUTCOME_SIGNAL)
        buf_printf(&to, "%d", result->signal);
    else
        buf_add_text(&to, "null");
    json_stream(&to, "stdout", result->stdout_data, result->stdout_length);
    json_stream(&to, "stderr", result->stderr_data, result->stderr_length);
    buf_printf(&to, ",\"stdout_truncated\":%s,\"stderr_truncated\":%s,\"wall_ms\":",
        json_bool(result->stdout_truncated), json_bool(result->stderr_truncated));
    json_ms(&to, result->wall_ms);
    buf_add_text(&to, ",\"cpu_ms\":");
    json_ms(&to, result->cpu_ms);
    buf_printf(&to, ",\"peak_memory_bytes\":%llu,\"processes_peak\":%u,\"isolation\":%s,\"error\":",
        (unsigned long long)result->peak_memory_bytes, result->processes_peak,
        result->isolation ? result->isolation : "{}");
    if (result->outcome == ROLLBOX_OUTCOME_ERROR) {
        buf_printf(&to, "{\"code\":\"%s\",\"stage\":", rollbox_error_name(result->error.code));
        json_text(&to, result->error.stage);
        buf_add_text(&to, ",\"message\":");
        json_text(&to, result->error.message);
        buf_add_text(&to, "}");
    } else {
        buf_add_text(&to, "null");
    }
    if (result->network)
        buf_printf(&to, ",\"network\":%s", result->network);
    buf_add_text(&to, "}");
    char *json = buf_take(&to);
    if (!json)
        return -ENOMEM;
    *ret_json = json;
    return 0;
}

char *result_read_text(const void *data, size_t length) {
    struct wire_field field;
    size_t position = 0;

    do
        if (wire_next(data, length, &position, &field) <= 0)
            return NULL;
    while (field.tag != TAG_TEXT_DATA);
    const char *found = wire_text(&field);
    return found ? strdup(found) : NULL;
}
