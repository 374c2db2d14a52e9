/* SPDX-License-Identifier: Apache-2.0 */
/* src/client/result.c: RESULT messages good and bad, and results as JSON. */
#include <jansson.h>
#include <locale.h>
#include <stdio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "client/client.h"
#include "engine/protocol.h"
#include "test.h"

/* Fields as a message that was received. */
static struct wire_message *message_of(const struct buf *fields) {
    struct wire_message *message = calloc(1, sizeof *message);

    ASSERT_NOT_NULL(message);
    ASSERT_LE(fields->length, sizeof message->bytes);
    memcpy(message->bytes, fields->data, fields->length);
    message->data = message->bytes;
    message->length = fields->length;
    return message;
}

static int read_and_done(struct buf *fields, struct result *result) {
    auto_free struct wire_message *message = message_of(fields);
    int r = result_read(message, "{\"a\":1}", result);

    wire_message_done(message);
    return r;
}

static struct buf fields_of(enum rollbox_outcome outcome) {
    struct buf fields = BUF_INIT;

    wire_add_u64(&fields, TAG_OUTCOME, outcome);
    return fields;
}

TEST(every_field_arrives) {
    auto_buf struct buf fields = fields_of(ROLLBOX_OUTCOME_EXIT);
    struct result result;

    wire_add_u64(&fields, TAG_EXIT_CODE, 255);
    wire_add(&fields, TAG_STDOUT, "out\0", 4);
    wire_add(&fields, TAG_STDERR, "", 0);
    wire_add_u64(&fields, TAG_STDERR_TRUNCATED, 1);
    wire_add_u64(&fields, TAG_WALL_NS, 1500000);
    wire_add_u64(&fields, TAG_CPU_NS, 250000);
    wire_add_u64(&fields, TAG_PEAK_MEMORY, 1ull << 40);
    wire_add_u64(&fields, TAG_PROCESSES_PEAK, UINT64_MAX);
    wire_add_text(&fields, TAG_ISOLATION, "{ \"b\":\n 2 }");
    wire_add_text(&fields, 9999, "of a later version");
    ASSERT_OK(read_and_done(&fields, &result));
    ASSERT_EQ(result.public.exit_code, 255);
    ASSERT_EQ(result.public.signal, 0);
    ASSERT_MEM_EQ(result.public.stdout_data, result.public.stdout_length, "out\0", 4);
    ASSERT_NULL(result.public.stderr_data);
    ASSERT_FALSE(result.public.stdout_truncated);
    ASSERT_TRUE(result.public.stderr_truncated);
    ASSERT_TRUE(result.public.wall_ms == 1.5);
    ASSERT_TRUE(result.public.cpu_ms == 0.25);
    ASSERT_EQ(result.public.peak_memory_bytes, 1ull << 40);
    ASSERT_EQ(result.public.processes_peak, UINT32_MAX);
    ASSERT_STR_EQ(result.public.isolation, "{\"b\":2}");
    ASSERT_EQ(result.public.error.code, ROLLBOX_OK);
    result_done(&result);
}

TEST(large_outputs_are_mapped) {
    auto_buf struct buf fields = fields_of(ROLLBOX_OUTCOME_SIGNAL);
    struct result result;

    wire_add_u64(&fields, TAG_SIGNAL, 9);
    wire_add_u64(&fields, TAG_STDOUT_FD, 1);
    wire_add_u64(&fields, TAG_STDERR_FD, 1);
    auto_free struct wire_message *message = message_of(&fields);
    message->fds[0] = fd_memory_file("out", "stdout", 6);
    message->fds[1] = fd_memory_file("err", "", 0);
    message->n_fds = 2;
    ASSERT_OK(result_read(message, NULL, &result));
    wire_message_done(message);
    ASSERT_EQ(result.public.signal, 9);
    ASSERT_EQ(result.public.exit_code, -1);
    ASSERT_MEM_EQ(result.public.stdout_data, result.public.stdout_length, "stdout", 6);
    ASSERT_NULL(result.public.stderr_data);
    ASSERT_STR_EQ(result.public.isolation, NULL);
    result_done(&result);
}

/* What an engine could still change must not be mapped. */
TEST(unsealed_output_is_refused) {
    auto_buf struct buf fields = fields_of(ROLLBOX_OUTCOME_TIMEOUT);
    struct result result;
    int pair[2];

    wire_add_u64(&fields, TAG_STDOUT_FD, 1);
    auto_free struct wire_message *message = message_of(&fields);
    ASSERT_CALL(pipe(pair));
    message->fds[0] = pair[0];
    message->n_fds = 1;
    ASSERT_ERR(result_read(message, NULL, &result), -EBADMSG);
    wire_message_done(message);
    close(pair[1]);
}

static void malformed(struct buf *fields) {
    struct result result;

    ASSERT_ERR(read_and_done(fields, &result), -EBADMSG);
    ASSERT_NULL(result.isolation);
    ASSERT_NULL(result.copies[0]);
    ASSERT_EQ(result.public.exit_code, -1);
    buf_done(fields);
}

TEST(contradictions_are_refused) {
    struct buf fields = BUF_INIT;

    wire_add_u64(&fields, TAG_EXIT_CODE, 0);
    malformed(&fields);
    fields = fields_of(ROLLBOX_OUTCOME_ERROR + 1);
    malformed(&fields);
    fields = fields_of(ROLLBOX_OUTCOME_EXIT);
    malformed(&fields);
    fields = fields_of(ROLLBOX_OUTCOME_EXIT);
    wire_add_u64(&fields, TAG_EXIT_CODE, 256);
    malformed(&fields);
    fields = fields_of(ROLLBOX_OUTCOME_SIGNAL);
    malformed(&fields);
    fields = fields_of(ROLLBOX_OUTCOME_SIGNAL);
    wire_add_u64(&fields, TAG_SIGNAL, 65);
    malformed(&fields);
    fields = fields_of(ROLLBOX_OUTCOME_ERROR);
    malformed(&fields);
    fields = fields_of(ROLLBOX_OUTCOME_TIMEOUT);
    wire_add_u64(&fields, TAG_STDOUT_FD, 1);
    malformed(&fields);
    fields = fields_of(ROLLBOX_OUTCOME_TIMEOUT);
    wire_add(&fields, TAG_STDOUT, "a", 1);
    wire_add(&fields, TAG_STDOUT, "b", 1);
    malformed(&fields);
    fields = fields_of(ROLLBOX_OUTCOME_TIMEOUT);
    wire_add(&fields, TAG_WALL_NS, "short", 5);
    malformed(&fields);
    fields = fields_of(ROLLBOX_OUTCOME_TIMEOUT);
    wire_add_text(&fields, TAG_ISOLATION, "[]");
    malformed(&fields);
    fields = fields_of(ROLLBOX_OUTCOME_TIMEOUT);
    buf_add(&fields, "\1", 1);
    malformed(&fields);
}

TEST(error_result_has_its_message) {
    auto_buf struct buf fields = fields_of(ROLLBOX_OUTCOME_ERROR);
    struct result result;

    wire_add_u64(&fields, TAG_ERROR_CODE, ROLLBOX_ERR_COMMAND_NOT_FOUND);
    wire_add_u64(&fields, TAG_ERROR_NUMBER, ENOENT);
    wire_add_text(&fields, TAG_ERROR_STAGE, "exec");
    wire_add_text(&fields, TAG_ERROR_MESSAGE, "no such program: \"x\"");
    /* Not to be believed of a run that could not be carried out. */
    wire_add_u64(&fields, TAG_EXIT_CODE, 0);
    ASSERT_OK(read_and_done(&fields, &result));
    auto_free char *json = NULL;
    ASSERT_OK(rollbox_result_json(&result.public, "job-1", &json));
    ASSERT_STR_EQ(json, "{\"id\":\"job-1\",\"outcome\":\"error\",\"exit_code\":null,\"signal\":"
                        "null,\"stdout\":\"\",\"stderr\":\"\",\"stdout_truncated\":false,"
                        "\"stderr_truncated\":false,\"wall_ms\":0,\"cpu_ms\":0,\"peak_memory_"
                        "bytes\":0,\"processes_peak\":0,\"isolation\":{\"a\":1},"
                        "\"error\":{\"code\":\"command_not_found\",\"stage\":\"exec\",\"message\":"
                        "\"no such program: \\\"x\\\"\"}}");
    result_done(&result);
}

/* ---- JSON ---- */

static json_t *parsed(const struct rollbox_result *result, const char *id) {
    auto_free char *text = NULL;
    json_error_t error;

    ASSERT_OK(rollbox_result_json(result, id, &text));
    ASSERT_NULL(strchr(text, '\n'));
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!json)
        FAIL("%s: %s", error.text, text);
    return json;
}

TEST(json_carries_any_bytes) {
    static const char bytes[] = "\0\1\x1f \"\\/\b\f\n\r\t\x7f\xc3\xa9\xf0\x9f\x98\x80";
    struct rollbox_result result = { .exit_code = 1,
        .stdout_data = bytes,
        .stdout_length = sizeof bytes - 1,
        .stderr_data = "a\xff\xfe",
        .stderr_length = 3 };
    json_t *json = parsed(&result, NULL);
    json_t *out = json_object_get(json, "stdout");

    ASSERT_MEM_EQ(json_string_value(out), json_string_length(out), bytes, sizeof bytes - 1);
    ASSERT_NULL(json_object_get(json, "stdout_base64"));
    ASSERT_STR_EQ(json_string_value(json_object_get(json, "stderr")), "a\xef\xbf\xbd\xef\xbf\xbd");
    ASSERT_STR_EQ(json_string_value(json_object_get(json, "stderr_base64")), "Yf/+");
    ASSERT_EQ(json_integer_value(json_object_get(json, "exit_code")), 1);
    ASSERT_TRUE(json_is_null(json_object_get(json, "signal")));
    ASSERT_TRUE(json_is_null(json_object_get(json, "error")));
    ASSERT_TRUE(json_is_object(json_object_get(json, "isolation")));
    ASSERT_EQ(json_object_size(json), 14);
    json_decref(json);
}

TEST(json_has_the_outcomes_own_number_only) {
    struct rollbox_result result = {
        .outcome = ROLLBOX_OUTCOME_SIGNAL, .exit_code = -1, .signal = 11
    };
    json_t *json = parsed(&result, "bad\xff");

    ASSERT_EQ(json_integer_value(json_object_get(json, "signal")), 11);
    ASSERT_TRUE(json_is_null(json_object_get(json, "exit_code")));
    ASSERT_STR_EQ(json_string_value(json_object_get(json, "id")), "bad\xef\xbf\xbd");
    ASSERT_STR_EQ(json_string_value(json_object_get(json, "outcome")), "signal");
    json_decref(json);
    for (int outcome = ROLLBOX_OUTCOME_TIMEOUT; outcome <= ROLLBOX_OUTCOME_OUTPUT_LIMIT;
         outcome++) {
        result.outcome = (enum rollbox_outcome)outcome;
        json = parsed(&result, NULL);
        ASSERT_TRUE(json_is_null(json_object_get(json, "exit_code")));
        ASSERT_TRUE(json_is_null(json_object_get(json, "signal")));
        ASSERT_TRUE(json_is_null(json_object_get(json, "error")));
        json_decref(json);
    }
}

TEST(json_numbers_have_three_decimals_in_any_locale) {
    static const struct {
        double ms;
        const char *text;
    } cases[] = { { 0, "0," }, { 1.5, "1.5," }, { 0.0004, "0," }, { 0.0006, "0.001," },
        { 12.34, "12.34," }, { 1234567.891, "1234567.891," }, { -1, "0," }, { 1e300, "0," },
        { 9.9996, "10," } };

    (void)setlocale(LC_ALL, "de_DE.UTF-8");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct rollbox_result result = { .wall_ms = cases[i].ms };
        auto_free char *json = NULL;
        auto_free char *part = NULL;

        ASSERT_OK(rollbox_result_json(&result, NULL, &json));
        ASSERT_CALL(asprintf(&part, "\"wall_ms\":%s", cases[i].text));
        ASSERT_STR_CONTAINS(json, part);
    }
}

TEST(json_of_large_outputs_is_whole) {
    size_t length = 10 << 20;
    auto_free char *out = malloc(length);
    struct rollbox_result result = {
        .stdout_data = out, .stdout_length = length, .stderr_data = out, .stderr_length = length - 1
    };

    ASSERT_NOT_NULL(out);
    for (size_t i = 0; i < length; i++)
        out[i] = i % 60 ? (char)('a' + i % 26) : '\n';
    json_t *json = parsed(&result, NULL);
    json_t *text = json_object_get(json, "stdout");
    ASSERT_EQ(json_string_length(text), length);
    ASSERT_EQ(memcmp(json_string_value(text), out, length), 0);
    json_decref(json);
    out[length / 2] = (char)0xff;
    json = parsed(&result, NULL);
    ASSERT_EQ(json_string_length(json_object_get(json, "stdout")), length + 2);
    ASSERT_EQ(json_string_length(json_object_get(json, "stdout_base64")), (length + 2) / 3 * 4);
    json_decref(json);
}

TEST(outcomes_have_names) {
    ASSERT_STR_EQ(rollbox_outcome_name(ROLLBOX_OUTCOME_OUT_OF_MEMORY), "out_of_memory");
    ASSERT_STR_EQ(rollbox_outcome_name((enum rollbox_outcome)99), "unknown");
    ASSERT_NOT_NULL(rollbox_version());
}
