/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that wait: until a real socket has room, until a real limit is lifted, or for nothing,
 * their receiver being gone. */
#include "test.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/wire.h"
#include "engine/core/sender.h"

#define N_MESSAGES 64
#define SIZE 8192 /* so that a socket has room for a few */

struct message {
    struct outgoing outgoing;
    uint64_t serial;
};

static struct {
    struct sender sender;
    struct loop *loop;
    struct loop_source source, reader;
    int fds[2];
    uint64_t sent, failed, received;
    uint64_t expected; /* the loop ends when so many were received */
} ends;

static void on_over(struct sender *sender, struct outgoing *outgoing, int r) {
    struct message *message = container_of(outgoing, struct message, outgoing);

    ASSERT_TRUE(sender == &ends.sender);
    ASSERT_TRUE(r == 0 || r == -EPIPE || r == -ECONNRESET);
    ends.sent += r == 0;
    ends.failed += r < 0;
    outgoing_done(outgoing);
    free(message);
}

static void on_room(struct loop_source *source, uint32_t events) {
    (void)source;
    if (events & EPOLLOUT)
        sender_flush(&ends.sender);
}

static void on_message(struct loop_source *source, uint32_t events) {
    static struct wire_message message;
    char byte;

    (void)events;
    ASSERT_EQ(wire_receive(source->fd, &message), 1);
    ASSERT_EQ(message.header.serial, ends.received++);
    for (size_t i = 0; i < message.n_fds; i++) {
        ASSERT_EQ(pread(message.fds[i], &byte, 1, 0), 1);
        ASSERT_EQ((unsigned char)byte, message.header.serial);
    }
    wire_message_done(&message);
    if (ends.received == ends.expected)
        loop_stop(ends.loop);
}

static void begin(void) {
    ASSERT_OK(loop_new(&ends.loop));
    ASSERT_CALL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.fds));
    ASSERT_OK(loop_add(ends.loop, &ends.source, ends.fds[0], EPOLLIN, on_room));
    sender_init(&ends.sender, ends.loop, &ends.source, on_over);
}

static void receive(uint64_t expected) {
    ends.expected = expected;
    ASSERT_OK(loop_add(ends.loop, &ends.reader, ends.fds[1], EPOLLIN, on_message));
    ASSERT_OK(loop_run(ends.loop));
    ASSERT_EQ(ends.received, expected);
}

/* One of so many bytes, with a file in which its serial is; what sender_send says. */
static int post(uint64_t serial, size_t size) {
    auto_free char *bytes = calloc(1, size);
    auto_buf struct buf message = BUF_INIT;
    auto_close int file = fd_memory_file("serial", (const char[]){ (char)serial }, 1);

    ASSERT_OK(file);
    ASSERT_NOT_NULL(bytes);
    wire_begin(&message, 1, serial);
    wire_add(&message, 1, bytes, size);
    int r = sender_send(&ends.sender, &message, &file, 1);
    if (r > 0) {
        struct message *kept = calloc(1, sizeof *kept);

        ASSERT_NOT_NULL(kept);
        ASSERT_OK(sender_keep(&ends.sender, &kept->outgoing, &message, &file, 1));
    }
    return r;
}

TEST(message_without_room_is_sent_later_in_order) {
    uint64_t n_kept = 0;

    begin();
    for (uint64_t serial = 0; serial < N_MESSAGES; serial++) {
        int r = post(serial, SIZE);

        ASSERT_TRUE(r == 0 ? n_kept == 0 : r == 1);
        n_kept += r == 1;
    }
    ASSERT_GT(n_kept, 0);
    ASSERT_LT(n_kept, N_MESSAGES);
    receive(N_MESSAGES);
    ASSERT_EQ(ends.sent, n_kept);
    ASSERT_EQ(ends.failed, 0);
    ASSERT_TRUE(list_empty(&ends.sender.waiting));
}

/* A message that needs a descriptor of its own, when there is none. */
TEST(message_short_of_a_resource_is_sent_when_it_is_free) {
    auto_buf struct buf message = BUF_INIT;
    static char bytes[2 * WIRE_INLINE];
    struct rlimit limit, none;

    begin();
    wire_begin(&message, 1, 0);
    wire_add(&message, 1, bytes, sizeof bytes);
    ASSERT_CALL(getrlimit(RLIMIT_NOFILE, &limit));
    none = (struct rlimit){ 0, limit.rlim_max };
    ASSERT_CALL(setrlimit(RLIMIT_NOFILE, &none));
    ASSERT_EQ(sender_send(&ends.sender, &message, NULL, 0), 1);
    ASSERT_NE(ends.sender.retry.position, 0);
    struct message *kept = calloc(1, sizeof *kept);
    ASSERT_NOT_NULL(kept);
    ASSERT_OK(sender_keep(&ends.sender, &kept->outgoing, &message, NULL, 0));
    ASSERT_CALL(setrlimit(RLIMIT_NOFILE, &limit));
    receive(1);
    ASSERT_EQ(ends.sent, 1);
}

TEST(message_that_cannot_be_queued_stays_its_callers) {
    auto_buf struct buf message = BUF_INIT;
    struct outgoing outgoing = { 0 };

    begin();
    wire_begin(&message, 1, 7);
    ASSERT_ERR(
        sender_keep(&ends.sender, &outgoing, &message, (const int[]){ ends.fds[0], -EBADF }, 2),
        -EBADF);
    ASSERT_EQ(outgoing.n_fds, 0);
    ASSERT_TRUE(list_empty(&ends.sender.waiting));
    ASSERT_EQ(message.length, sizeof(struct wire_header));
}

TEST(queued_messages_of_a_lost_peer_are_freed) {
    uint64_t n_kept = 0;

    begin();
    for (uint64_t serial = 0; n_kept < 3; serial++)
        n_kept += post(serial, SIZE) == 1;
    close_fd(&ends.fds[1]);
    sender_flush(&ends.sender);
    ASSERT_EQ(ends.failed, 3);
    ASSERT_EQ(ends.sent, 0);
    ASSERT_ERR(post(0, SIZE), -EPIPE);
}
