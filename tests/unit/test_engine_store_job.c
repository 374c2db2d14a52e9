/* SPDX-License-Identifier: Apache-2.0 */
/* The course of a job of rollbox-store, which is a script here: its input, its answer, its errors,
 * its end. */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "engine/core/context.h"
#include "engine/store_job/store_job.h"

static struct engine engine;
static char program[4096];

static struct {
    unsigned n_done, n_released;
    bool has_failed, was_abandoned;
    struct rollbox_error error;
    struct buf answer;
} seen;

static void on_done(
    void *data, struct buf *take_answer, const struct rollbox_error *error, bool was_abandoned) {
    ASSERT_TRUE(data == &seen);
    ASSERT_EQ(seen.n_released, 0u);
    seen.n_done++;
    seen.has_failed = error;
    if (error)
        seen.error = *error;
    seen.answer = *take_answer;
    seen.was_abandoned = was_abandoned;
}

static void on_release(void *data) {
    ASSERT_TRUE(data == &seen);
    seen.n_released++;
    loop_stop(engine.loop);
}

static const struct store_job_user user = { .done = on_done, .release = on_release };

/* A job of a rollbox-store that is this script. */
static struct store_job *start(const char *script, bool finishes_alone, int *take_fds, size_t n) {
    struct rollbox_error error;
    struct store_job *job;
    json_t *description = json_pack("{s:s}", "verb", "test");

    snprintf(program, sizeof program, "%s/store", test_directory());
    FILE *file = fopen(program, "we");
    ASSERT_NOT_NULL(file);
    fprintf(file, "#!/bin/sh\n%s\n", script);
    fclose(file);
    ASSERT_CALL(chmod(program, 0700));
    engine.programs.store = program;
    ASSERT_OK(loop_new(&engine.loop));
    const struct store_job_request request = { .words = { "job", "--json" },
        .job = description,
        .take_fds = take_fds,
        .n_fds = n,
        .finishes_alone = finishes_alone,
        .user = &user,
        .data = &seen };
    ASSERT_OK(store_job_start(&engine, &request, &job, &error));
    json_decref(description);
    return job;
}

static void run(void) {
    ASSERT_OK(loop_run(engine.loop));
    ASSERT_EQ(seen.n_done, 1u);
    ASSERT_EQ(seen.n_released, 1u);
}

static void expect_answer(const char *text) {
    ASSERT_FALSE(seen.has_failed);
    ASSERT_EQ(seen.answer.length, strlen(text));
    ASSERT_EQ(memcmp(seen.answer.data, text, strlen(text)), 0);
    buf_done(&seen.answer);
}

TEST(job_reads_its_description_and_answers) {
    start("printf '%s ' \"$1\" \"$2\"; exec cat", false, NULL, 0);
    run();
    expect_answer("job --json {\"verb\":\"test\"}");
    ASSERT_FALSE(seen.was_abandoned);
}

TEST(job_has_further_descriptors_in_their_order) {
    int fds[] = { fd_memory_file("one", "1", 1), fd_memory_file("two", "2", 1) };

    start("cat <&3; cat <&4", false, fds, ARRAY_SIZE(fds));
    ASSERT_EQ(fds[0], -EBADF);
    ASSERT_EQ(fds[1], -EBADF);
    run();
    expect_answer("12");
}

TEST(last_line_of_a_failed_job_is_its_error) {
    start("echo noise >&2\n"
          "echo '{\"error\": {\"code\": \"not_found\", \"stage\": \"diff\", \"message\": "
          "\"no such layer\"}}' >&2\nexit 1",
        false, NULL, 0);
    run();
    ASSERT_TRUE(seen.has_failed);
    ASSERT_EQ(seen.error.code, ROLLBOX_ERR_NOT_FOUND);
    ASSERT_STR_EQ(seen.error.message, "no such layer");
}

TEST(killed_job_has_failed_although_it_has_answered) {
    start("echo answer; kill -9 $$", false, NULL, 0);
    run();
    ASSERT_TRUE(seen.has_failed);
    ASSERT_EQ(seen.error.code, ROLLBOX_ERR_SETUP_FAILED);
}

TEST(freed_job_is_killed_and_not_heard_of_again) {
    ASSERT_NULL(store_job_free(start("exec sleep 1000", false, NULL, 0)));
    ASSERT_EQ(seen.n_done, 0u);
    ASSERT_EQ(seen.n_released, 1u);
}

TEST(job_that_finishes_alone_ends_after_it_was_freed) {
    int gate[2];

    ASSERT_CALL(pipe2(gate, O_CLOEXEC));
    struct store_job *job = start("cat <&3", true, gate, 1);
    ASSERT_NULL(store_job_free(job));
    ASSERT_EQ(seen.n_released, 0u);
    ASSERT_EQ(write(gate[1], "end", 3), 3);
    close(gate[1]);
    run();
    expect_answer("end");
    ASSERT_TRUE(seen.was_abandoned);
}

TEST(cancelled_job_is_killed_and_reports_its_end) {
    store_job_cancel(start("exec sleep 1000", true, NULL, 0));
    run();
    ASSERT_TRUE(seen.has_failed);
    ASSERT_TRUE(seen.was_abandoned);
}

TEST(program_that_is_not_there_calls_nothing) {
    struct rollbox_error error;
    struct store_job *job;
    char missing[] = "/nonexistent/rollbox-store";
    json_t *nothing = json_object();

    ASSERT_OK(loop_new(&engine.loop));
    engine.programs.store = missing;
    ASSERT_EQ(store_job_start(&engine,
                  &(struct store_job_request){
                      .words = { "job" }, .job = nothing, .user = &user, .data = &seen },
                  &job, &error),
        -ENOENT);
    json_decref(nothing);
    ASSERT_EQ(seen.n_done + seen.n_released, 0u);
}
