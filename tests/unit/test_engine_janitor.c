/* SPDX-License-Identifier: Apache-2.0 */
/* What the janitor does with its duties, and when. The duties are fakes that tell the test by a
 * FIFO. */
#include "test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "engine/core/context.h"
#include "engine/core/janitor.h"

static struct engine engine;
static char fifo[4096];
static FILE *told;

/* One write, so that lines of several processes do not mix. */
static void tell(const char *event, const char *path) {
    char line[4200];
    int fd = open(fifo, O_WRONLY | O_CLOEXEC);
    int n = snprintf(line, sizeof line, "%s %s %d\n", event, path, (int)getpid());

    if (fd < 0 || write(fd, line, (size_t)n) != n)
        _exit(1);
    close(fd);
}

static void on_now(struct engine *of, const char *path) {
    (void)of;
    tell("now", path);
}

static void on_end(struct engine *of, const char *path) {
    (void)of;
    tell("end", path);
}

static const struct janitor_duty duty = { on_now, on_end, false };
static const struct janitor_duty late_duty = { NULL, on_end, true };

static void begin(void) {
    snprintf(fifo, sizeof fifo, "%s/fifo", test_directory());
    ASSERT_CALL(mkfifo(fifo, 0600));
    /* Also for writing: the end of one writer is not the end of all. */
    told = fdopen(open(fifo, O_RDWR | O_CLOEXEC), "r");
    ASSERT_NOT_NULL(told);
}

/* The process that told it. */
static pid_t expect(const char *event, const char *path) {
    char got_event[16], got_path[64];
    int pid;

    ASSERT_EQ(fscanf(told, "%15s %63s %d", got_event, got_path, &pid), 3);
    ASSERT_STR_EQ(got_event, event);
    ASSERT_STR_EQ(got_path, path);
    return pid;
}

TEST(duty_is_done_at_each_message_and_once_for_a_path_at_the_end) {
    begin();
    ASSERT_OK(janitor_tell(&engine, &duty, "/a"));
    ASSERT_OK(janitor_tell(&engine, &duty, "/a"));
    ASSERT_OK(janitor_tell(&engine, &duty, "/b"));
    janitor_finish(&engine);
    expect("now", "/a");
    expect("now", "/a");
    expect("now", "/b");
    expect("end", "/a");
    expect("end", "/b");
}

TEST(killed_janitor_is_replaced_with_its_duties) {
    begin();
    ASSERT_OK(janitor_tell(&engine, &duty, "/a"));
    pid_t first = expect("now", "/a");
    ASSERT_CALL(kill(first, SIGKILL));
    ASSERT_EQ(waitpid(first, NULL, 0), first);
    ASSERT_OK(janitor_tell(&engine, &duty, "/b"));
    ASSERT_TRUE(expect("now", "/a") != first);
    expect("now", "/b");
    janitor_finish(&engine);
    expect("end", "/a");
    expect("end", "/b");
}

/* An engine that dies while another process has a loan. */
TEST(late_duty_waits_for_the_last_loan) {
    int release[2], loan;
    char byte;

    begin();
    ASSERT_CALL(pipe2(release, O_CLOEXEC));
    pid_t dying = fork();
    ASSERT_CALL(dying);
    if (dying == 0) {
        if (janitor_tell(&engine, &late_duty, "/late") || janitor_tell(&engine, &duty, "/early"))
            _exit(1);
        loan = janitor_lend(&engine);
        if (loan < 0)
            _exit(1);
        pid_t holder = fork();
        if (holder == 0) {
            janitor_finish(&engine);
            close(release[1]);
            (void)!read(release[0], &byte, 1);
            tell("released", "/loan");
            _exit(0);
        }
        _exit(holder < 0);
    }
    int status;
    ASSERT_EQ(waitpid(dying, &status, 0), dying);
    ASSERT_EQ(status, 0);
    expect("now", "/early");
    expect("end", "/early");
    close(release[1]);
    expect("released", "/loan");
    expect("end", "/late");
}

TEST(path_that_is_too_long_is_refused) {
    auto_free char *path = calloc(1, 5000);

    ASSERT_NOT_NULL(path);
    memset(path, 'a', 4999);
    ASSERT_EQ(janitor_tell(&engine, &duty, path), -ENAMETOOLONG);
    ASSERT_EQ(janitor_lend(&engine), -EBADF);
}
