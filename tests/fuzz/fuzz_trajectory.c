/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trajectories: with any file, reading it ends, steps come in order, each is equal to
 * itself, and two that differ say where in valid JSON. The first byte chooses: below 128 what
 * follows is a file; below 192 text that rules take secrets out of; else a pattern for secrets,
 * which is refused or does not take long to compile and match.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "record/compare.h"
#include "record/read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_excerpt(const struct buf *value) {
    json_t *json =
        json_loads(value->data ? value->data : "", JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);

    if (!json)
        abort();
    json_decref(json);
}

static void check_pair(const struct step *a, const struct step *b) {
    struct divergence divergence;
    int r = compare_steps(a, b, &divergence);

    if (a == b && r)
        abort();
    if (r > 0) {
        if (!divergence.where[0] || !divergence.source || !divergence.why)
            abort();
        check_excerpt(&divergence.values[0]);
        check_excerpt(&divergence.values[1]);
        divergence_done(&divergence);
    }
}

static void read_file(const uint8_t *data, size_t size) {
    auto_close int fd = memfd_create("fuzz", MFD_CLOEXEC);
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct step *step, *before = NULL;
    struct reader reader;
    int r;

    if (fd < 0 || fd_write_all(fd, data, size) < 0 || lseek(fd, 0, SEEK_SET) < 0)
        abort();
    r = reader_open(&reader, fd, "fuzz", &error);
    while (r >= 0 && (r = reader_next(&reader, &step, &error)) > 0) {
        auto_buf struct buf bytes = BUF_INIT;

        if (before && step->number <= before->number)
            abort();
        (void)read_bytes(json_object_get(step->observation, "stdout"), &bytes);
        check_pair(step, step);
        check_pair(before ? before : step, step);
        check_pair(before, step);
        step_free(before);
        before = step;
    }
    if (r < 0 && (error.code == ROLLBOX_OK || !error.message[0]))
        abort();
    step_free(before);
    reader_done(&reader);
}

static void redact(const uint8_t *data, size_t size) {
    static struct rules *rules;
    auto_buf struct buf clean = BUF_INIT;

    if (!rules &&
        (rules_new(&rules) < 0 || rules_add_name(rules, "KEY") < 0 ||
            rules_learn(rules, "KEY=secret") < 0 || rules_learn(rules, "KEY=secretive") < 0 ||
            rules_add_pattern(rules, "to*ken|^b", NULL) < 0))
        abort();
    if (rules_apply(rules, (const char *)data, size, size & 1, &clean) == 0 && clean.length &&
        memmem(clean.data, clean.length, "secret", 6))
        abort();
}

static void match(const uint8_t *data, size_t size) {
    auto_buf struct buf pattern = BUF_INIT;
    auto_buf struct buf clean = BUF_INIT;
    struct rules *rules;

    buf_add(&pattern, data, size);
    if (buf_failed(&pattern) || rules_new(&rules) < 0)
        abort();
    if (pattern.data && strlen(pattern.data) <= RECORD_MAX_RULE &&
        rules_add_pattern(rules, pattern.data, NULL) == 0 &&
        rules_apply(rules, "sk-abc: {1} [2] (3)\n", 20, false, &clean) < 0)
        abort();
    rules_free(rules);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size && data[0] < 128)
        read_file(data + 1, size - 1);
    else if (size && data[0] < 192)
        redact(data + 1, size - 1);
    else if (size)
        match(data + 1, size - 1);
    return 0;
}
