/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's end of the recorder, against one that sleeps until it is rung for. */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/wire.h"
#include "engine/core/context.h"
#include "engine/record/recorder.h"
#include "loop/loop.h"
#include "record/record.h"

#define NUMBER 7
#define N_STEPS 64
#define SIZE 8192 /* so that a socket has room for a few */

/* Takes what is there when it is rung for, and what is left when the other end has closed; ends
 * with how many that were. */
_Noreturn static void sleep_until_rung(int socket, int bell) {
    static struct wire_message message;
    int n = 0;

    for (int r = -EAGAIN; r == -EAGAIN;) {
        struct pollfd polls[] = { { .fd = socket }, { .fd = bell, .events = POLLIN } };
        eventfd_t rung;

        ASSERT_GT(poll(polls, ARRAY_SIZE(polls), -1), 0);
        (void)eventfd_read(bell, &rung);
        for (; (r = wire_receive(socket, &message)) == 1; n++)
            wire_message_done(&message);
    }
    _exit(n);
}

static void post_step(struct record *record) {
    static const char bytes[SIZE];
    auto_buf struct buf message = BUF_INIT;

    wire_begin(&message, RECORD_STEP, NUMBER);
    wire_add(&message, RECORD_TEXT, bytes, sizeof bytes);
    recorder_post(record, &message, NULL, 0, 0);
}

TEST(sleeping_recorder_is_woken_for_queued_messages) {
    static struct engine engine = { .null_fd = -EBADF };
    struct record *record = calloc(1, sizeof *record);
    struct rollbox_error error;
    int ends[2], status;

    ASSERT_NOT_NULL(record);
    ASSERT_OK(loop_new(&engine.loop));
    ASSERT_CALL(engine.null_fd = open("/dev/null", O_RDWR | O_CLOEXEC));
    ASSERT_OK(recorder_start(&engine, &error));
    struct recorder *recorder = engine.record.recorder;
    /* In place of the recorder, which ends. */
    ASSERT_CALL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
    ASSERT_CALL(dup2(ends[0], recorder->fd));
    close(ends[0]);
    ASSERT_GT(wait(&status), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(recorder->fd);
        sleep_until_rung(ends[1], recorder->bell);
    }
    ASSERT_GT(pid, 0);
    close(ends[1]);
    *record = (struct record){ .engine = &engine, .number = NUMBER };
    list_init(&record->node);
    list_add_tail(&recorder->records, &record->node);
    for (int i = 0; i < N_STEPS; i++)
        post_step(record);
    ASSERT_FALSE(list_empty(&recorder->sender.waiting));
    recorder_leave(recorder);
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_EQ(WEXITSTATUS(status), N_STEPS);
    free(record);
}
