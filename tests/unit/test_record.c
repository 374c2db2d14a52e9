/* SPDX-License-Identifier: Apache-2.0 */
/* Trajectories: what becomes of a step's message, digests, rules for secrets, reading in order,
 * where two part. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/pattern.h"
#include "base/wire.h"
#include "record/compare.h"
#include "record/read.h"
#include "test.h"

/* ---- lines */

static void add_content(struct buf *to, const char *key, const void *data, size_t length) {
    wire_add_text(to, RECORD_KEY, key);
    wire_add(to, RECORD_CONTENT, data, length);
}

static json_t *build(const struct line_options *options, const struct buf *message) {
    json_t *line = NULL;

    ASSERT_OK(line_build(options, message->data + sizeof(struct wire_header),
        message->length - sizeof(struct wire_header), NULL, 0, &line));
    return line;
}

static const char *text_of(const json_t *line, const char *key, const char *part) {
    return json_string_value(json_object_get(json_object_get(line, key), part));
}

TEST(bytes_are_text_or_base64) {
    const struct line_options options = { .most = 1000 };
    auto_buf struct buf message = BUF_INIT;

    wire_begin(&message, RECORD_STEP, 1);
    add_content(&message, "text", "gr\xc3\xbc\xc3\x9f\x00\x1b", 8);
    add_content(&message, "invalid", "\xff\xfe", 2);
    add_content(&message, "surrogate", "\xed\xa0\x80", 3);
    add_content(&message, "json", "{\"a\": \"b\\u0000\"}\n", 17);
    json_t *line = build(&options, &message);
    ASSERT_EQ(json_string_length(json_object_get(json_object_get(line, "text"), "text")), 8);
    ASSERT_STR_EQ(text_of(line, "invalid", "base64"), "//4=");
    ASSERT_STR_EQ(text_of(line, "surrogate", "base64"), "7aCA");
    ASSERT_STR_EQ(text_of(line, "json", "text"), "{\"a\": \"b\\u0000\"}\n");
    auto_buf struct buf written = BUF_INIT;
    ASSERT_OK(line_write(line, &written));
    for (size_t i = 0; i + 1 < written.length; i++)
        ASSERT_TRUE(written.data[i] >= ' ' && written.data[i] < 127);
    ASSERT_EQ(written.data[written.length - 1], '\n');
    json_decref(line);
}

TEST(truncated_text_ends_at_a_character) {
    const struct line_options options = { .most = 4 };
    auto_buf struct buf message = BUF_INIT;

    wire_begin(&message, RECORD_STEP, 1);
    add_content(&message, "cut",
        "abc\xc3\xbc"
        "d",
        6);
    add_content(&message, "whole", "abcd", 4);
    json_t *line = build(&options, &message);
    ASSERT_STR_EQ(text_of(line, "cut", "text"), "abc");
    ASSERT_TRUE(json_is_true(json_object_get(json_object_get(line, "cut"), "truncated")));
    ASSERT_EQ(json_integer_value(json_object_get(json_object_get(line, "cut"), "bytes")), 6);
    ASSERT_STR_EQ(text_of(line, "whole", "sha256"),
        "88d4266fd4e6338d13b845fcf289579d209c897823b9217da3e161936f031589");
    ASSERT_TRUE(!json_object_get(json_object_get(line, "whole"), "truncated"));
    json_decref(line);
}

TEST(message_without_a_tree_is_refused) {
    const struct line_options options = { .most = 4 };
    static const enum record_tag wrong[] = { RECORD_WORD, RECORD_UP, RECORD_OBJECT };
    json_t *line;

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        auto_buf struct buf message = BUF_INIT;

        wire_begin(&message, RECORD_STEP, 1);
        wire_add_text(&message, wrong[i], "x");
        ASSERT_EQ(line_build(&options, message.data + sizeof(struct wire_header),
                      message.length - sizeof(struct wire_header), NULL, 0, &line),
            -EBADMSG);
    }
    auto_buf struct buf deep = BUF_INIT;
    wire_begin(&deep, RECORD_STEP, 1);
    for (int i = 0; i < 50; i++) {
        wire_add_text(&deep, RECORD_KEY, "k");
        wire_add(&deep, RECORD_OBJECT, NULL, 0);
    }
    ASSERT_EQ(line_build(&options, deep.data + sizeof(struct wire_header),
                  deep.length - sizeof(struct wire_header), NULL, 0, &line),
        -EBADMSG);
}

/* ---- digests */

static json_t *parse(const char *text) {
    json_t *json = json_loads(text, JSON_ALLOW_NUL, NULL);

    ASSERT_TRUE(json);
    return json;
}

static void add(struct chain *chain, const char *action, const char *observation) {
    json_t *a = parse(action), *o = parse(observation);

    chain_add(chain, a, o);
    json_decref(a);
    json_decref(o);
}

TEST(equal_histories_have_equal_digests) {
    struct chain a, b;

    chain_begin(&a, "p", NULL, NULL);
    chain_begin(&b, "p", NULL, NULL);
    add(&a, "{\"kind\": \"exec\", \"argv\": [\"a\"]}",
        "{\"stdout\": {\"bytes\": 3, \"sha256\": \"x\", \"text\": \"abc\"}}");
    add(&b, "{\"argv\":[\"a\"],\"kind\":\"exec\"}",
        "{\"stdout\": {\"sha256\": \"x\", \"bytes\": 3, \"text\": \"a\", \"truncated\": true}}");
    ASSERT_STR_EQ(a.hex, b.hex);
    add(&a, "{\"argv\": [\"ab\", \"c\"]}", "{}");
    add(&b, "{\"argv\": [\"a\", \"bc\"]}", "{}");
    ASSERT_TRUE(strcmp(a.hex, b.hex));
}

TEST(another_beginning_is_another_history) {
    struct chain a, b, c, d;

    chain_begin(&a, "p", NULL, NULL);
    chain_begin(&b, "q", NULL, NULL);
    chain_begin(&c, "p", "i", NULL);
    chain_begin(&d, "p", NULL, "i");
    ASSERT_TRUE(strcmp(a.hex, b.hex) && strcmp(a.hex, c.hex) && strcmp(a.hex, d.hex) &&
                strcmp(c.hex, d.hex));
}

/* ---- rules */

static void expect_clean(struct rules *rules, const char *text, const char *wanted) {
    auto_buf struct buf clean = BUF_INIT;

    ASSERT_OK(rules_apply(rules, text, strlen(text), false, &clean));
    ASSERT_STR_EQ(clean.data ? clean.data : "", wanted);
}

TEST(values_of_named_variables_are_taken_out) {
    struct rules *rules;

    ASSERT_OK(rules_new(&rules));
    ASSERT_OK(rules_add_name(rules, "KEY"));
    ASSERT_TRUE(!rules_any(rules));
    ASSERT_OK(rules_learn(rules, "KEY=abc")); /* too short: it would be everywhere */
    ASSERT_OK(rules_learn(rules, "OTHER=sesame"));
    ASSERT_OK(rules_learn(rules, "KEY=open"));
    ASSERT_OK(rules_learn(rules, "KEY=opensesame"));
    ASSERT_OK(rules_learn(rules, "KEY=open"));
    expect_clean(rules, "opensesame open abc sesame", "[redacted:KEY] [redacted:KEY] abc sesame");
    expect_clean(rules, "", "");
    rules_free(rules);
}

TEST(patterns_are_matched_line_by_line) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rules *rules;

    ASSERT_OK(rules_new(&rules));
    ASSERT_OK(rules_add_pattern(rules, "sk-[a-z0-9]+|^token: .*$", &error));
    ASSERT_OK(rules_add_pattern(rules, "x*", &error));
    expect_clean(rules, "a sk-12 b\ntoken: all of it\nno token: here",
        "a [redacted] b\n[redacted]\nno token: here");
    expect_clean(rules, "axxb", "a[redacted]b");
    ASSERT_EQ(rules_add_pattern(rules, "(a)\\1", &error), -EINVAL);
    ASSERT_EQ(rules_add_pattern(rules, "(", &error), -EINVAL);
    ASSERT_EQ(rules_add_pattern(rules, "", &error), -EINVAL);
    rules_free(rules);
}

TEST(patterns_that_would_take_all_memory_are_refused) {
    static const char *const wrong[] = { "((((a{1,250}){1,250}){1,250}){1,250}){1,250}", "a{30000}",
        "(((((((((((((a+)+)+)+)+)+)+)+)+)+)+)+)+)+", "[a]]{5000}", "[[:alpha:]]{5000}",
        "(a|b{2000}){3}", "\\({4001}", "{,9999}a{,9999}" };
    static const char *const right[] = { "[A-Za-z0-9_]{20,64}\\.[A-Za-z0-9_]{6,32}",
        "(sk|pk)-[a-z]+", "[]{9999]", "[^]({9999]+", "\\{9999", "a{,5}", "[[.].]{9999]" };
    char why[PATTERN_WHY];

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
        ASSERT_EQ(pattern_check(wrong[i], why), -EINVAL);
    for (size_t i = 0; i < ARRAY_SIZE(right); i++)
        ASSERT_OK(pattern_check(right[i], why));
}

TEST(slow_patterns_withhold_the_text) {
    const size_t length = 1u << 20;
    auto_free char *line = malloc(length);
    auto_buf struct buf clean = BUF_INIT;
    struct rules *rules;

    ASSERT_TRUE(line);
    memset(line, 'a', length);
    ASSERT_OK(rules_new(&rules));
    ASSERT_OK(rules_add_pattern(rules, "a.*b", NULL));
    ASSERT_EQ(rules_apply(rules, line, length, false, &clean), -EFBIG);
    ASSERT_EQ(clean.length, 0);
    /* By the same way, what is not. */
    memset(line, 'c', length);
    memcpy(line + 5000, "a secret b", 10);
    ASSERT_OK(rules_apply(rules, line, length, false, &clean));
    ASSERT_EQ(clean.length, length);
    ASSERT_TRUE(!memcmp(clean.data + 5000, "[redacted]", 10));
    rules_free(rules);
}

TEST(start_of_a_secret_at_a_cut_is_redacted) {
    auto_buf struct buf clean = BUF_INIT;
    struct rules *rules;

    ASSERT_OK(rules_new(&rules));
    ASSERT_OK(rules_add_name(rules, "KEY"));
    ASSERT_OK(rules_learn(rules, "KEY=opensesame"));
    ASSERT_OK(rules_apply(rules, "opensesame opensesam", 20, true, &clean));
    ASSERT_STR_EQ(clean.data, "[redacted:KEY] [redacted:KEY]");
    expect_clean(rules, "opensesame opensesam", "[redacted:KEY] opensesam");
    clean.length = 0;
    ASSERT_OK(rules_apply(rules, "ope", 3, true, &clean));
    ASSERT_STR_EQ(clean.data, "ope");
    rules_free(rules);
}

TEST(no_rule_hides_from_another_what_is_around_it) {
    struct rules *rules;

    ASSERT_OK(rules_new(&rules));
    ASSERT_OK(rules_add_name(rules, "A"));
    ASSERT_OK(rules_add_name(rules, "B"));
    ASSERT_OK(rules_learn(rules, "A=middle"));
    ASSERT_OK(rules_learn(rules, "B=dlepart"));
    ASSERT_OK(rules_add_pattern(rules, "x.*y", NULL));
    ASSERT_OK(rules_add_pattern(rules, "sk-[a-z]+", NULL));
    expect_clean(rules, "sk-axbyc. middlepart. sk-middle", "[redacted]. [redacted:A]. [redacted]");
    expect_clean(rules, "middlemiddle dlepartx", "[redacted:A] [redacted:B]x");
    rules_free(rules);
}

TEST(keys_are_text_and_have_no_secrets) {
    struct line_options options = { .most = 100 };
    auto_buf struct buf message = BUF_INIT;
    auto_buf struct buf text = BUF_INIT;

    ASSERT_OK(rules_new(&options.rules));
    ASSERT_OK(rules_add_pattern(options.rules, "sk-[a-z]+", NULL));
    wire_begin(&message, RECORD_STEP, 1);
    wire_add_text(&message, RECORD_KEY, "\xff\xf0");
    wire_add_u64(&message, RECORD_NUMBER, 1);
    wire_add_text(&message, RECORD_KEY, "data");
    wire_add_text(&message, RECORD_DATA, "{\"sk-a\": [\"sk-b\", {\"c\": \"sk-d\"}, 1.5, null]}");
    json_t *line = build(&options, &message);
    ASSERT_OK(line_write(line, &text));
    ASSERT_STR_EQ(text.data, "{\"\\ufffd\\ufffd\":1,\"data\":{\"[redacted]\":[\"[redacted]\",{"
                             "\"c\":\"[redacted]\"},1.5,null]}}\n");
    json_decref(line);
    rules_free(options.rules);
}

TEST(line_too_long_to_look_through_is_withheld) {
    const size_t length = (1u << 20) + 1;
    struct line_options options = { .most = 100 };
    auto_free char *long_line = malloc(length);
    auto_buf struct buf message = BUF_INIT;

    ASSERT_TRUE(long_line);
    memset(long_line, 'a', length);
    ASSERT_OK(rules_new(&options.rules));
    ASSERT_OK(rules_add_pattern(options.rules, "b", NULL));
    wire_begin(&message, RECORD_STEP, 1);
    add_content(&message, "stdout", long_line, length);
    json_t *line = build(&options, &message), *content = json_object_get(line, "stdout");
    ASSERT_TRUE(json_is_true(json_object_get(content, "withheld")));
    ASSERT_TRUE(!json_object_get(content, "sha256") && !json_object_get(content, "text"));
    json_decref(line);
    rules_free(options.rules);
}

/* ---- reading */

static const char policy_digest[] =
    "0000000000000000000000000000000000000000000000000000000000000000";

struct written {
    struct buf text;
    struct chain chain;
};

static void write_header(struct written *to) {
    *to = (struct written){ .text = BUF_INIT };
    chain_begin(&to->chain, policy_digest, NULL, NULL);
    buf_printf(&to->text,
        "{\"format\": \"%s\", \"policy\": {}, \"policy_sha256\": \"%s\", \"digest\": \"%s\"}\n",
        RECORD_FORMAT, policy_digest, to->chain.hex);
}

static void write_step(struct written *to, int number, int begun_at, const char *observation) {
    add(&to->chain, "{\"kind\": \"exec\"}", observation);
    buf_printf(&to->text,
        "{\"step\": %d, \"begun_at\": %d, \"action\": {\"kind\": \"exec\"}, \"observation\": %s, "
        "\"digest\": \"%s\"}\n",
        number, begun_at, observation, to->chain.hex);
}

static void write_end(struct written *to) {
    buf_printf(
        &to->text, "{\"end\": {\"reason\": \"closed\"}, \"digest\": \"%s\"}\n", to->chain.hex);
}

static int open_reader(
    struct reader *reader, const struct written *from, struct rollbox_error *error) {
    int fd = memfd_create("test", MFD_CLOEXEC);

    ASSERT_TRUE(fd >= 0);
    ASSERT_OK(fd_write_all(fd, from->text.data, from->text.length));
    ASSERT_EQ(lseek(fd, 0, SEEK_SET), 0);
    return reader_open(reader, fd, "test.jsonl", error);
}

static uint64_t next_number(struct reader *reader) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct step *step;

    int r = reader_next(reader, &step, &error);
    ASSERT_OK(r);
    uint64_t number = r ? step->number : 0;
    if (r)
        step_free(step);
    return number;
}

TEST(steps_come_as_they_began) {
    struct written written;
    struct reader reader;

    write_header(&written);
    write_step(&written, 2, 0, "{}");
    write_step(&written, 4, 1, "{}");
    write_step(&written, 1, 0, "{}");
    write_step(&written, 5, 3, "{}");
    write_end(&written);
    ASSERT_OK(open_reader(&reader, &written, NULL));
    ASSERT_EQ(next_number(&reader), 1);
    ASSERT_EQ(next_number(&reader), 2);
    /* 3 never ended. */
    ASSERT_EQ(next_number(&reader), 4);
    ASSERT_EQ(next_number(&reader), 5);
    ASSERT_EQ(next_number(&reader), 0);
    ASSERT_STR_EQ(reader.end_reason, "closed");
    ASSERT_TRUE(!reader.torn && !reader.changed_line);
    reader_done(&reader);
    buf_done(&written.text);
}

TEST(every_cut_leaves_a_beginning) {
    struct written written;

    write_header(&written);
    size_t header = written.text.length;
    write_step(&written, 1, 0, "{\"outcome\": \"exit\"}");
    size_t first = written.text.length;
    write_step(&written, 2, 1, "{\"outcome\": \"exit\"}");
    size_t second = written.text.length;
    write_end(&written);
    for (size_t length = 0; length <= written.text.length; length++) {
        struct written cut = { .text = { .data = written.text.data, .length = length } };
        struct rollbox_error error = { .code = ROLLBOX_OK };
        struct reader reader;
        uint64_t n = 0;
        int r = open_reader(&reader, &cut, &error);

        if (length < header) {
            ASSERT_EQ(r, -EBADMSG);
            ASSERT_EQ(error.code, ROLLBOX_ERR_INVALID_ARGUMENT);
        } else {
            ASSERT_OK(r);
            while (next_number(&reader))
                n++;
            ASSERT_EQ(n, (length >= first) + (length >= second));
            ASSERT_EQ(reader.torn, length != header && length != first && length != second &&
                                       length != written.text.length);
            ASSERT_EQ(reader.end_reason != NULL, length == written.text.length);
            ASSERT_EQ(reader.changed_line, 0);
        }
        reader_done(&reader);
    }
    buf_done(&written.text);
}

TEST(changed_line_is_reported) {
    struct written written;
    struct reader reader;

    write_header(&written);
    write_step(&written, 1, 0, "{\"exit_code\": 0}");
    write_step(&written, 2, 1, "{\"exit_code\": 0}");
    write_end(&written);
    char *code = strstr(written.text.data, "\"exit_code\": 0");
    code[13] = '1';
    ASSERT_OK(open_reader(&reader, &written, NULL));
    while (next_number(&reader))
        ;
    ASSERT_EQ(reader.changed_line, 2);
    reader_done(&reader);
    buf_done(&written.text);
}

/* ---- comparing */

static struct step step_of(json_t *line) {
    return (struct step){ .number = 1,
        .json = line,
        .action = json_object_get(line, "action"),
        .observation = json_object_get(line, "observation"),
        .kind = "exec" };
}

static json_t *line_of(const char *out) {
    char hex[RECORD_DIGEST_HEX + 1];

    digest_hex(out, strlen(out), hex);
    return json_pack("{s:{s:s}, s:{s:s, s:{s:i, s:s, s:o}}}", "action", "kind", "exec",
        "observation", "outcome", "exit", "stdout", "bytes", (int)strlen(out), "sha256", hex,
        "text", json_string_nocheck(out));
}

static void expect_part_under(
    const json_t *header, const char *a, const char *b, int64_t offset, const char *source) {
    json_t *lines[2] = { line_of(a), line_of(b) };
    struct step steps[2] = { step_of(lines[0]), step_of(lines[1]) };
    struct divergence divergence;

    steps[0].header = steps[1].header = header;
    ASSERT_EQ(compare_steps(&steps[0], &steps[1], &divergence), 1);
    ASSERT_STR_EQ(divergence.where, "stdout");
    ASSERT_EQ(divergence.offset, offset);
    ASSERT_STR_EQ(divergence.source, source);
    divergence_done(&divergence);
    ASSERT_EQ(compare_steps(&steps[0], &steps[0], &divergence), 0);
    json_decref(lines[0]);
    json_decref(lines[1]);
}

static void expect_part(const char *a, const char *b, int64_t offset, const char *source) {
    expect_part_under(NULL, a, b, offset, source);
}

TEST(guess_recognises_random_names_and_bytes) {
    expect_part("/tmp/tmp.jhSBamKZjq\n", "/tmp/tmp.DXOM7ly9d3\n", 9, "randomness");
    expect_part("/tmp/tmpk3vq_0zb\n", "/tmp/tmpqhwysale\n", 8, "randomness");
    expect_part("made /var/x/job-aX3k9Q\n", "made /var/x/job-Zb7Pw2\n", 16, "randomness");
    expect_part("\x9b\x02\xfe\x80\xc1\x11\xe0", "\x12\xff\x81\x03\xc7\xaa\x90", 0, "randomness");
    expect_part("status: failed\n", "status: passed\n", 8, "unknown");
    expect_part("getUserIdentity\n", "setHostIpAdress\n", 0, "unknown");
    expect_part("internationalisation\n", "counterrevolutionary\n", 0, "unknown");
    expect_part("caf\xc3\xa9s are here\n", "caf\xc3\xbcn sie dort\n", 4, "unknown");
    expect_part("2025-01-01\n", "2025-01-02\n", 9, "time");
    expect_part("st_dev=2097174, st_mtime=0\n", "st_dev=2097299, st_mtime=0\n", 11, "unknown");
    expect_part("st_dev=20, st_mtime=1735689600\n", "st_dev=20, st_mtime=1735689611\n", 28, "time");
    expect_part("12345\n", "12399\n", 3, "randomness");
    expect_part("Thread-57 done\n", "Thread-12 done\n", 7, "unknown");
    expect_part("7c9e6679-7425-40de-944b-e07fc1f90ae7\n", "16fd2706-8baf-433b-82eb-8c7fada847da\n",
        0, "randomness");
    expect_part("0.1400854971268235\n", "0.9400854971268235\n", 2, "randomness");
}

TEST(guess_knows_the_policy) {
    json_t *host = parse(
               "{\"isolation\": {\"net\": \"host\"}, \"random_seed\": 7, \"time_start\": null}"),
           *loopback = parse("{\"isolation\": {\"net\": \"loopback\"}, \"random_seed\": null}");
    json_t *none = parse("{\"isolation\": {\"net\": \"none\"}, \"random_seed\": 7, \"time_start\": "
                         "\"2025-01-01T00:00:00\"}");

    expect_part_under(host, "36211\n", "41077\n", 0, "network");
    expect_part_under(host, "<b>one</b>\n", "<b>two</b>\n", 3, "network");
    expect_part_under(host, "id 8e1f0c2a9b\n", "id 8e1f0d339c\n", 8, "network");
    expect_part_under(host, "st_dev=183, st_uid=0\n", "st_dev=121, st_uid=0\n", 8, "unknown");
    expect_part_under(host, "port 36211\n", "port 41077\n", 5, "network");
    expect_part_under(host, "took 0.81 s\n", "took 0.92 s\n", 7, "time");
    expect_part_under(loopback, "('127.0.0.1', 36211)\n", "('127.0.0.1', 41077)\n", 14, "network");
    expect_part_under(loopback, "id 8e1f0c2a9b\n", "id 8e1f0d339c\n", 8, "randomness");
    expect_part_under(loopback, "yes\n", "no\n", 0, "unknown");
    expect_part_under(none, "id 8e1f0c2a9b\n", "id 8e1f0d339c\n", 8, "unknown");
    expect_part_under(none, "connect: refused\n", "connect: timed out\n", 9, "unknown");
    json_decref(host);
    json_decref(loopback);
    json_decref(none);
}

TEST(guess_recognises_durations) {
    expect_part("1 passed in 0.12s\n", "1 passed in 0.31s\n", 14, "time");
    expect_part(
        "== 3 passed, 1 failed in 1.12s ==\n", "== 3 passed, 1 failed in 12.31s ==\n", 26, "time");
    expect_part("Ran 3 tests in 0.003s\n", "Ran 3 tests in 0.001s\n", 19, "time");
    expect_part("best of 5: 12.1 nsec per loop\n", "best of 5: 9.8 nsec per loop\n", 11, "time");
    expect_part("(4.9 MiB) copied, 0.0085 s, 601 MB/s\n", "(4.9 MiB) copied, 0.0091 s, 598 MB/s\n",
        22, "time");
    expect_part("built in 1m3.5s\n", "built in 59.2s\n", 9, "time");
    expect_part("ok 12\xc2\xb5s\n", "ok 19\xc2\xb5s\n", 4, "time");
    expect_part("12 sheep\n", "13 sheep\n", 1, "unknown");
    expect_part("12 s-expressions\n", "13 s-expressions\n", 1, "unknown");
    expect_part("5m wide\n", "6m wide\n", 0, "unknown");
    expect_part("speed 12 m/s\n", "speed 13 m/s\n", 7, "unknown");
}

TEST(first_different_byte_has_a_guess) {
    expect_part("took 0.81 s\n", "took 0.92 s\n", 7, "time");
    expect_part("now 2025-01-01T10:20:30Z\n", "now 2025-01-01T10:20:31Z\n", 22, "time");
    expect_part("1735689600123\n", "1735689600456\n", 10, "time");
    expect_part("id 8e1f0c2a9b\n", "id 8e1f0d339c\n", 8, "randomness");
    expect_part("<object at 0x7fa085680190>\n", "<object at 0x7f484bc44190>\n", 15, "randomness");
    expect_part("pid 4711\n", "pid 4812\n", 5, "pid");
    expect_part("b\na\nc\n", "a\nb\nc\n", 0, "order");
    expect_part("{'a', 'c', 'b'}\n", "{'b', 'c', 'a'}\n", 2, "order");
    expect_part("connect: refused\n", "connect: timed out\n", 9, "network");
    expect_part("yes\n", "no\n", 0, "unknown");
    expect_part("same\n", "same\nand more\n", 5, "unknown");
    expect_part("", "x", 0, "unknown");
}

TEST(differing_file_is_reported_with_its_facts) {
    json_t *a = parse("{\"action\": {\"kind\": \"files\"}, \"observation\": {\"changes\": "
                      "[{\"path\": \"/a\", \"type\": \"file\", \"size\": 6, \"sha256\": \"1\"}]}}");
    json_t *b = parse("{\"action\": {\"kind\": \"files\"}, \"observation\": {\"changes\": "
                      "[{\"path\": \"/a\", \"type\": \"file\", \"size\": 7, \"sha256\": \"2\"}]}}");
    json_t *contents = parse("{\"1\": \"pid 11\", \"2\": \"pid 121\"}");
    struct step steps[2] = { step_of(a), step_of(b) };
    struct divergence divergence;

    for (int known = 0; known <= 2; known++) {
        steps[0].contents = known > 1 ? contents : NULL;
        steps[1].contents = known > 0 ? contents : NULL;
        ASSERT_EQ(compare_steps(&steps[0], &steps[1], &divergence), 1);
        ASSERT_STR_EQ(divergence.where, "changes[0].sha256");
        ASSERT_STR_EQ(divergence.path.data, "\"/a\"");
        ASSERT_EQ(divergence.offset, known > 1 ? 5 : -1);
        ASSERT_STR_EQ(divergence.source, known > 1 ? "pid" : "unknown");
        ASSERT_STR_EQ(divergence.values[1].data,
            known > 1 ? "\"pid 121\""
            : known   ? "{\"begins\":\"pid 121\",\"bytes\":7,\"sha256\":\"2\"}"
                      : "{\"bytes\":7,\"sha256\":\"2\"}");
        divergence_done(&divergence);
    }
    json_decref(a);
    json_decref(b);
    json_decref(contents);
}

TEST(first_difference_is_printed_escaped) {
    json_t *a = parse("{\"action\": {\"kind\": \"a\\u001bb\"}, \"observation\": {}}"),
           *b = parse("{\"action\": {\"kind\": \"a\\u001bb\"}, \"observation\": "
                      "{\"\\u001b\\u00fc\\u20acx\": {\"y\": 1}}}");
    struct step steps[2] = { step_of(a), step_of(b) };
    struct divergence divergence;

    steps[0].kind = steps[1].kind = "a\033b";
    ASSERT_EQ(compare_steps(&steps[0], &steps[1], &divergence), 1);
    ASSERT_STR_EQ(divergence.where, "???x");
    ASSERT_STR_EQ(divergence.kind, "a?b");
    divergence_done(&divergence);
    json_decref(a);
    json_decref(b);
}

TEST(withheld_contents_make_a_comparison_partial) {
    json_t *a = parse("{\"action\": {\"files\": [{\"content\": {\"bytes\": 3, \"withheld\": "
                      "true}}]}, \"observation\": {}}"),
           *b = parse("{\"action\": {\"withheld\": 1}, \"observation\": {}}");
    const struct step steps[2] = { step_of(a), step_of(b) };

    ASSERT_TRUE(compare_is_partial(&steps[0]));
    ASSERT_TRUE(!compare_is_partial(&steps[1]) && !compare_is_partial(NULL));
    json_decref(a);
    json_decref(b);
}

TEST(files_that_were_not_looked_at_make_a_comparison_partial) {
    static const char *const partial[] = {
        "{\"action\": {\"kind\": \"files\"}, \"observation\": {\"outcome\": \"error\", \"error\": "
        "{\"code\": \"io\"}}}",
        "{\"action\": {\"kind\": \"files\"}, \"observation\": {\"changes\": [], \"omitted\": 2, "
        "\"error\": null}}",
        "{\"action\": {\"kind\": \"files\"}, \"observation\": {\"changes\": [{\"path\": "
        "\"/tmp/x\", \"too_large\": true}]}}",
    };
    json_t *whole = parse("{\"action\": {\"kind\": \"files\"}, \"observation\": {\"changes\": "
                          "[{\"path\": \"/tmp/x\"}], \"error\": null}}");
    struct step step = step_of(whole);

    ASSERT_TRUE(!compare_is_partial(&step));
    json_decref(whole);
    for (size_t i = 0; i < ARRAY_SIZE(partial); i++) {
        json_t *json = parse(partial[i]);
        step = step_of(json);
        step.kind = "files";
        ASSERT_TRUE(compare_is_partial(&step));
        json_decref(json);
    }
}

TEST(beyond_what_was_kept_the_digest_tells) {
    json_t *a = parse("{\"action\": {\"kind\": \"exec\"}, \"observation\": {\"stdout\": "
                      "{\"bytes\": 9, \"sha256\": \"a\", \"text\": \"x\", \"truncated\": true}}}");
    json_t *b = parse("{\"action\": {\"kind\": \"exec\"}, \"observation\": {\"stdout\": "
                      "{\"bytes\": 9, \"sha256\": \"b\", \"text\": \"x\", \"truncated\": true}}}");
    const struct step steps[2] = { step_of(a), step_of(b) };
    struct divergence divergence;

    ASSERT_EQ(compare_steps(&steps[0], &steps[1], &divergence), 1);
    ASSERT_EQ(divergence.offset, -1);
    divergence_done(&divergence);
    json_decref(a);
    json_decref(b);
}

/* ---- the recorder */

struct recorded {
    int socket, bell, file;
    pid_t pid;
};

static struct recorded start_recorder(uint64_t max_file) {
    struct recorded recorded = { .bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
        .file = memfd_create("record", MFD_CLOEXEC) };
    auto_buf struct buf message = BUF_INIT;
    int ends[2];

    ASSERT_OK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    recorded.socket = ends[0];
    recorded.pid = fork();
    if (recorded.pid == 0) {
        close(ends[0]);
        close(recorded.file);
        _exit(recorder_run(ends[1], recorded.bell));
    }
    close(ends[1]);
    wire_begin(&message, RECORD_BEGIN, 7);
    wire_add_text(&message, RECORD_POLICY, "{\"env\": {\"A\": \"b\"}}");
    wire_add_u64(&message, RECORD_MAX_FILE, max_file);
    wire_add_text(&message, RECORD_KEY, "format");
    wire_add_text(&message, RECORD_WORD, RECORD_FORMAT);
    ASSERT_OK(wire_send(recorded.socket, &message, &recorded.file, 1));
    return recorded;
}

static void send_step(const struct recorded *recorded, uint64_t number) {
    auto_buf struct buf message = BUF_INIT;

    wire_begin(&message, RECORD_STEP, 7);
    wire_add_text(&message, RECORD_KEY, "step");
    wire_add_u64(&message, RECORD_NUMBER, number);
    wire_add_text(&message, RECORD_KEY, "begun_at");
    wire_add_u64(&message, RECORD_NUMBER, number - 1);
    wire_add_text(&message, RECORD_KEY, "action");
    wire_add(&message, RECORD_OBJECT, NULL, 0);
    wire_add_text(&message, RECORD_KEY, "kind");
    wire_add_text(&message, RECORD_WORD, "exec");
    wire_add(&message, RECORD_UP, NULL, 0);
    wire_add_text(&message, RECORD_KEY, "observation");
    wire_add(&message, RECORD_OBJECT, NULL, 0);
    wire_add(&message, RECORD_UP, NULL, 0);
    ASSERT_OK(wire_send(recorded->socket, &message, NULL, 0));
}

static void wait_for_recorder(const struct recorded *recorded) {
    int status;

    close(recorded->socket);
    ASSERT_EQ(waitpid(recorded->pid, &status, 0), recorded->pid);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ASSERT_EQ(lseek(recorded->file, 0, SEEK_SET), 0);
}

TEST(messages_of_a_dead_engine_are_received) {
    struct recorded recorded = start_recorder(RECORD_FILE_BYTES);
    struct rollbox_error error;
    struct reader reader;

    send_step(&recorded, 1);
    send_step(&recorded, 2);
    wait_for_recorder(&recorded);
    ASSERT_OK(reader_open(&reader, recorded.file, "record", &error));
    ASSERT_TRUE(json_is_null(
        json_object_get(json_object_get(json_object_get(reader.header, "policy"), "env"), "A")));
    ASSERT_EQ(next_number(&reader), 1);
    ASSERT_EQ(next_number(&reader), 2);
    ASSERT_EQ(next_number(&reader), 0);
    ASSERT_STR_EQ(reader.end_reason, "engine_lost");
    reader_done(&reader);
}

TEST(trajectory_ends_at_its_limit) {
    struct recorded recorded = start_recorder(2000);
    auto_buf struct buf end = BUF_INIT;
    struct rollbox_error error;
    struct reader reader;
    uint64_t n = 0;

    for (uint64_t i = 1; i <= 100; i++)
        send_step(&recorded, i);
    wire_begin(&end, RECORD_END, 7);
    ASSERT_OK(wire_send(recorded.socket, &end, NULL, 0));
    wait_for_recorder(&recorded);
    ASSERT_TRUE(lseek(recorded.file, 0, SEEK_END) <= 2000);
    ASSERT_EQ(lseek(recorded.file, 0, SEEK_SET), 0);
    ASSERT_OK(reader_open(&reader, recorded.file, "record", &error));
    while (next_number(&reader))
        n++;
    ASSERT_TRUE(n > 1 && n < 100);
    ASSERT_STR_EQ(reader.end_reason, "file_limit");
    ASSERT_EQ(reader.changed_line, 0);
    reader_done(&reader);
}

/* Whether the recorder's next messages, as far as they are there, say that all is written. */
static bool says_done(const struct recorded *recorded) {
    static struct wire_message message;
    uint64_t done = 0;

    while (!done && wire_receive(recorded->socket, &message) == 1) {
        struct wire_field field;
        size_t position = 0;

        while (wire_next(message.data, message.length, &position, &field) > 0)
            if (field.tag == RECORD_DONE)
                ASSERT_OK(wire_u64(&field, &done));
        wire_message_done(&message);
    }
    return done;
}

/* The recorder holds a lock on the file while it is open, and the receiver of the end may need the
 * file next. So the test checks the lock at the moment at which the end arrives. */
TEST(file_is_closed_before_its_end_is_reported) {
    struct recorded recorded = start_recorder(RECORD_FILE_BYTES);
    auto_buf struct buf end = BUF_INIT;
    char path[64];
    int status;

    snprintf(path, sizeof path, "/proc/self/fd/%d", recorded.file);
    auto_close int other = open(path, O_RDWR | O_CLOEXEC);
    ASSERT_TRUE(other >= 0 && flock(recorded.file, LOCK_EX | LOCK_NB) == 0);
    close(recorded.file);
    ASSERT_OK(fcntl(recorded.socket, F_SETFL, O_NONBLOCK));
    if (ptrace(PTRACE_SEIZE, recorded.pid, NULL, NULL) < 0)
        SKIP("ptrace", "this process may not trace its children here");
    ASSERT_TRUE(ptrace(PTRACE_INTERRUPT, recorded.pid, NULL, NULL) == 0 &&
                waitpid(recorded.pid, &status, 0) == recorded.pid && WIFSTOPPED(status));
    ASSERT_TRUE(flock(other, LOCK_EX | LOCK_NB) < 0 && !says_done(&recorded));
    wire_begin(&end, RECORD_END, 7);
    ASSERT_OK(wire_send(recorded.socket, &end, NULL, 0));
    ASSERT_OK(eventfd_write(recorded.bell, 1));
    do
        ASSERT_TRUE(ptrace(PTRACE_SYSCALL, recorded.pid, NULL, NULL) == 0 &&
                    waitpid(recorded.pid, &status, 0) == recorded.pid && WIFSTOPPED(status));
    while (!says_done(&recorded));
    ASSERT_OK(flock(other, LOCK_EX | LOCK_NB));
    kill(recorded.pid, SIGKILL);
}
