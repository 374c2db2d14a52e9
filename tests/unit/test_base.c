/* SPDX-License-Identifier: Apache-2.0 */
/* src/base: buffers, descriptors, errors, lists, ownership, UTF-8, and messages whole, in pieces,
 * and malformed. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/list.h"
#include "base/utf8.h"
#include "base/wire.h"
#include "test.h"

static int open_fds(void) {
    int n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void socket_pair(int pair[2]) {
    ASSERT_CALL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
}

/* ---- buf ---- */

TEST(buf_grows_and_is_always_a_string) {
    auto_buf struct buf buf = BUF_INIT;

    for (int i = 0; i < 1000; i++) {
        buf_printf(&buf, "%03d,", i);
        ASSERT_EQ(buf.data[buf.length], '\0');
    }
    buf_add_text(&buf, "end");
    buf_add(&buf, "\0x", 2);
    ASSERT_FALSE(buf_failed(&buf));
    ASSERT_EQ(buf.length, 4 * 1000 + 3 + 2);
    ASSERT_MEM_EQ(buf.data + buf.length - 9, 9, "999,end\0x", 9);
}

TEST(buf_take_hands_the_content_over) {
    struct buf buf = BUF_INIT;

    auto_free char *empty = buf_take(&buf);
    ASSERT_STR_EQ(empty, "");
    buf_add_text(&buf, "text");
    auto_free char *text = buf_take(&buf);
    ASSERT_STR_EQ(text, "text");
    ASSERT_NULL(buf.data);
    ASSERT_EQ(buf.length, 0);
}

TEST(buf_that_cannot_grow_stays_failed_and_keeps_its_content) {
    auto_buf struct buf buf = BUF_INIT;

    buf_add_text(&buf, "kept");
    ASSERT_NULL(buf_reserve(&buf, SIZE_MAX - 2));
    ASSERT_TRUE(buf_failed(&buf));
    buf_add_text(&buf, "lost");
    buf_printf(&buf, "%d", 1);
    ASSERT_STR_EQ(buf.data, "kept");
    ASSERT_NULL(buf_take(&buf));
}

/* ---- cleanup, list, clock ---- */

TEST(auto_close_closes_once_and_keeps_errno) {
    int before = open_fds(), taken;

    errno = ENOTTY;
    {
        auto_close int fd = dup(0), none = -EBADF, other = dup(0);
        taken = TAKE_FD(other);
        ASSERT_EQ(other, -EBADF);
        ASSERT_EQ(open_fds(), before + 2);
        errno = ENOTTY;
        (void)none;
        (void)fd;
    }
    ASSERT_EQ(errno, ENOTTY);
    ASSERT_EQ(open_fds(), before + 1);
    close_fd(&taken);
    ASSERT_EQ(taken, -EBADF);
    ASSERT_EQ(open_fds(), before);
}

TEST(take_ptr_leaves_null) {
    char *text = strdup("x");
    auto_free char *mine = TAKE_PTR(text);

    ASSERT_NULL(text);
    ASSERT_STR_EQ(mine, "x");
}

TEST(list_keeps_order_and_lets_the_current_node_go) {
    struct item {
        int value;
        struct list node;
    } items[5];
    struct list head = LIST_INIT(head);
    int seen = 0;

    ASSERT_TRUE(list_empty(&head));
    for (int i = 0; i < 5; i++) {
        items[i].value = i;
        list_add_tail(&head, &items[i].node);
    }
    list_for_each(node, &head) {
        struct item *item = container_of(node, struct item, node);
        ASSERT_EQ(item->value, seen++);
        if (item->value % 2)
            list_remove(node);
    }
    ASSERT_EQ(seen, 5);
    seen = 0;
    list_for_each(node, &head)
        seen = seen * 10 + container_of(node, struct item, node)->value;
    ASSERT_EQ(seen, 24);
    ASSERT_TRUE(list_empty(&items[1].node));
    list_remove(&items[1].node);
}

TEST(clock_does_not_go_back) {
    int64_t last = clock_now_ns();

    for (int i = 0; i < 1000; i++) {
        int64_t now = clock_now_ns();
        ASSERT_GE(now, last);
        last = now;
    }
}

/* ---- error ---- */

TEST(error_names_are_lower_case_and_complete) {
#define CHECK(name, number, http, python, text)                                                    \
    ASSERT_EQ(ROLLBOX_ERR_##name, number);                                                         \
    ASSERT_TRUE(strcasecmp(rollbox_error_name(ROLLBOX_ERR_##name), #name) == 0);
    ROLLBOX_ERRORS(CHECK)
#undef CHECK
    ASSERT_STR_EQ(rollbox_error_name(ROLLBOX_ERR_POLICY_INVALID), "policy_invalid");
    ASSERT_STR_EQ(rollbox_error_name(ROLLBOX_OK), "ok");
    ASSERT_STR_EQ(rollbox_error_name((enum rollbox_error_code)9999), "unknown");
    ASSERT_STR_EQ(rollbox_error_name((enum rollbox_error_code) - 1), "unknown");
}

TEST(errors_for_want_of_descriptors_say_what_to_raise) {
    struct rollbox_error error;
    char limit[32];
    struct rlimit files;

    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
    snprintf(limit, sizeof limit, "all %llu files", (unsigned long long)files.rlim_cur);
    ASSERT_EQ(
        error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, EMFILE, "setup", "pipes: %s", "none"),
        -EMFILE);
    ASSERT_TRUE(strncmp(error.message, "pipes: none; ", 13) == 0 && strstr(error.message, limit) &&
                strstr(error.message, "ulimit -n"));
    /* Passed on, it has that once. */
    char *before = strdup(error.message);
    error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, EMFILE, "setup", "%s", before);
    ASSERT_STR_EQ(error.message, before);
    free(before);
    error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENFILE, "setup", "pipes");
    ASSERT_TRUE(strstr(error.message, "fs.file-max") != NULL);
    error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "setup", "pipes");
    ASSERT_STR_EQ(error.message, "pipes");
}

TEST(error_set_fills_and_returns_the_errno) {
    struct rollbox_error error = { 0 };

    ASSERT_ERR(error_set(&error, ROLLBOX_ERR_IO, ENOSPC, "result", "writing %s", "/x"), -ENOSPC);
    ASSERT_EQ(error.code, ROLLBOX_ERR_IO);
    ASSERT_EQ(error.error_number, ENOSPC);
    ASSERT_STR_EQ(error.stage, "result");
    ASSERT_STR_EQ(error.message, "writing /x");
    ASSERT_ERR(error_set(NULL, ROLLBOX_ERR_IO, 0, "result", "nobody listens"), -EINVAL);
}

TEST(error_set_cuts_what_is_too_long) {
    struct rollbox_error error = { 0 };
    char text[3000];

    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    error_set(&error, ROLLBOX_ERR_IO, 0, "a stage of more than sixteen", "%s", text);
    ASSERT_EQ(strlen(error.message), sizeof error.message - 1);
    ASSERT_EQ(strlen(error.stage), sizeof error.stage - 1);
}

TEST(error_code_of_tells_exhaustion_from_the_rest) {
    static const int exhausted[] = { EMFILE, ENFILE, ENOMEM, ENOSPC, EAGAIN, EDQUOT, ENOBUFS };

    for (size_t i = 0; i < ARRAY_SIZE(exhausted); i++)
        ASSERT_EQ(error_code_of(exhausted[i], ROLLBOX_ERR_IO), ROLLBOX_ERR_RESOURCE_EXHAUSTED);
    ASSERT_EQ(error_code_of(EPERM, ROLLBOX_ERR_IO), ROLLBOX_ERR_IO);
    ASSERT_EQ(error_code_of(0, ROLLBOX_ERR_SETUP_FAILED), ROLLBOX_ERR_SETUP_FAILED);
}

/* ---- fd ---- */

TEST(read_all_reads_what_write_all_wrote) {
    enum { LENGTH = 300000 };
    auto_free char *data = malloc(LENGTH);
    auto_buf struct buf got = BUF_INIT, cut = BUF_INIT;
    int pipe_fds[2], status;

    for (int i = 0; i < LENGTH; i++)
        data[i] = (char)(i * 7 + i / 251);
    ASSERT_CALL(pipe2(pipe_fds, O_CLOEXEC));
    pid_t pid = (pid_t)ASSERT_CALL(fork());
    if (pid == 0) {
        close(pipe_fds[0]);
        ASSERT_OK(fd_write_all(pipe_fds[1], data, LENGTH));
        _exit(0);
    }
    close(pipe_fds[1]);
    ASSERT_OK(fd_read_all(pipe_fds[0], LENGTH, &got));
    close(pipe_fds[0]);
    ASSERT_CALL(waitpid(pid, &status, 0));
    ASSERT_EQ(status, 0);
    ASSERT_MEM_EQ(got.data, got.length, data, LENGTH);

    auto_close int file = fd_memory_file("data", data, LENGTH);
    ASSERT_OK(file);
    ASSERT_ERR(fd_read_all(file, LENGTH - 1, &cut), -EFBIG);
}

TEST(read_file_tells_why_not) {
    auto_buf struct buf buf = BUF_INIT;

    ASSERT_ERR(fd_read_file("/no/such/file", 10, &buf), -ENOENT);
    ASSERT_ERR(fd_read_file("/", 10, &buf), -EISDIR);
    ASSERT_OK(fd_read_file("/dev/null", 10, &buf));
    ASSERT_STR_EQ(buf.data, "");
}

TEST(write_to_a_closed_pipe_is_epipe) {
    int pipe_fds[2];

    signal(SIGPIPE, SIG_IGN);
    ASSERT_CALL(pipe2(pipe_fds, O_CLOEXEC));
    close(pipe_fds[0]);
    ASSERT_ERR(fd_write_all(pipe_fds[1], "x", 1), -EPIPE);
    close(pipe_fds[1]);
}

TEST(descriptors_travel_close_on_exec) {
    int pair[2], fds[FD_MESSAGE_MAX_FDS], sent[2] = { 0, 2 };
    size_t n_fds = 99;
    char data[16];

    socket_pair(pair);
    ASSERT_ERR(fd_receive(pair[1], data, sizeof data, fds, &n_fds), -EAGAIN);
    ASSERT_OK(fd_send(pair[0], "hello", 5, sent, 2));
    ASSERT_EQ(fd_receive(pair[1], data, sizeof data, fds, &n_fds), 5);
    ASSERT_EQ(n_fds, 2);
    for (size_t i = 0; i < n_fds; i++) {
        ASSERT_EQ(fcntl(fds[i], F_GETFD), FD_CLOEXEC);
        close(fds[i]);
    }
    ASSERT_OK(fd_send(pair[0], "again", 5, NULL, 0));
    ASSERT_EQ(fd_receive(pair[1], data, sizeof data, fds, &n_fds), 5);
    ASSERT_EQ(n_fds, 0);
    close(pair[0]);
    ASSERT_EQ(fd_receive(pair[1], data, sizeof data, fds, &n_fds), 0);
    ASSERT_ERR(fd_send(pair[1], "x", 1, NULL, 0), -EPIPE);
    close(pair[1]);
}

/* The kernel then tells of the loss before it gives out what the peer had sent: the reason of a
 * sandbox that failed, for one. */
TEST(messages_of_an_ended_peer_are_not_lost) {
    int pair[2], fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds;
    char data[16];

    socket_pair(pair);
    ASSERT_OK(fd_send(pair[1], "unread", 6, NULL, 0));
    ASSERT_OK(fd_send(pair[0], "why", 3, NULL, 0));
    close(pair[0]);
    ASSERT_EQ(fd_receive(pair[1], data, sizeof data, fds, &n_fds), 3);
    ASSERT_EQ(fd_receive(pair[1], data, sizeof data, fds, &n_fds), 0);
    close(pair[1]);
}

TEST(message_too_long_for_its_buffer_leaks_no_descriptor) {
    int pair[2], fds[FD_MESSAGE_MAX_FDS], sent[] = { 0, 0, 0 };
    size_t n_fds;
    char data[4];

    socket_pair(pair);
    int before = open_fds();
    ASSERT_OK(fd_send(pair[0], "too long", 8, sent, 3));
    ASSERT_ERR(fd_receive(pair[1], data, sizeof data, fds, &n_fds), -EMSGSIZE);
    ASSERT_EQ(open_fds(), before);
}

TEST(more_descriptors_than_a_message_takes_are_refused) {
    int pair[2], fds[FD_MESSAGE_MAX_FDS + 1] = { 0 };

    socket_pair(pair);
    ASSERT_ERR(fd_send(pair[0], "x", 1, fds, FD_MESSAGE_MAX_FDS + 1), -EMSGSIZE);
    ASSERT_OK(fd_send(pair[0], "x", 1, fds, FD_MESSAGE_MAX_FDS));
}

/* A hostile peer may send up to SCM_MAX_FD (253) descriptors in one message: none may land outside
 * the array. */
TEST(flood_of_descriptors_is_closed) {
    enum { FLOOD = 253 };
    int pair[2], fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds;
    char data[4];
    union {
        char bytes[CMSG_SPACE(sizeof(int) * FLOOD)];
        struct cmsghdr align;
    } control = { 0 };
    struct iovec iov = { (char[]){ "x" }, 1 };
    struct msghdr message = { .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof control.bytes };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    socket_pair(pair);
    int before = open_fds();
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * FLOOD);
    memset(CMSG_DATA(header), 0, sizeof(int) * FLOOD);
    ASSERT_CALL(sendmsg(pair[0], &message, 0));
    ASSERT_ERR(fd_receive(pair[1], data, sizeof data, fds, &n_fds), -EMFILE);
    ASSERT_EQ(data[0], 'x');
    ASSERT_EQ(open_fds(), before);
}

TEST(memory_files_are_sealed_and_mapped) {
    void *data;
    size_t length;
    auto_close int fd = fd_memory_file("name", "content", 7);

    ASSERT_OK(fd);
    ASSERT_EQ(write(fd, "x", 1), -1);
    ASSERT_EQ(errno, EPERM);
    ASSERT_EQ(ftruncate(fd, 0), -1);
    ASSERT_OK(fd_map_memory_file(fd, 7, &data, &length));
    ASSERT_MEM_EQ(data, length, "content", 7);
    munmap(data, length);
    ASSERT_ERR(fd_map_memory_file(fd, 6, &data, &length), -EFBIG);

    auto_close int empty = fd_memory_file("empty", "", 0);
    ASSERT_OK(fd_map_memory_file(empty, 0, &data, &length));
    ASSERT_NULL(data);
    ASSERT_EQ(length, 0);
}

/* One that its sender could shrink under the reader (SIGBUS) or change after the check. */
TEST(memory_file_without_seals_is_refused) {
    void *data;
    size_t length;
    auto_close int fd = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    ASSERT_OK(fd_write_all(fd, "x", 1));
    ASSERT_ERR(fd_map_memory_file(fd, 10, &data, &length), -EPERM);
    ASSERT_CALL(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
    ASSERT_ERR(fd_map_memory_file(fd, 10, &data, &length), -EPERM);
    ASSERT_ERR(fd_map_memory_file(0, 10, &data, &length), -EINVAL);
}

/* ---- utf8 ---- */

static const struct {
    const char *text, *shown;
} shown_cases[] = {
    { "plain \xc3\xa9\xf0\x9f\x98\x80", "plain \xc3\xa9\xf0\x9f\x98\x80" },
    { "\x1b[2J\x07\x7f", "\\x1b[2J\\x07\\x7f" },
    { "\xc2\x9b"
      "31m\xc2\xa0",
        "\\x9b31m\xc2\xa0" },
    { "\x9b"
      "31m\xff",
        "\\x9b31m\\xff" },
    { "\xe2\x80\xae"
      "a\xe2\x81\xa6\xe2\x80\xa8\xd8\x9c\xef\xbb\xbf",
        "\\u202ea\\u2066\\u2028\\u061c\\ufeff" },
    { "\xe2\x80\x9c\xd8\xa7\xe2\x82\xac\xef\xbc\xa1",
        "\xe2\x80\x9c\xd8\xa7\xe2\x82\xac\xef\xbc\xa1" },
    { "line\n\ttab\r", "line\n\\x09tab\\x0d" },
    { "\xe2\x80", "\\xe2\\x80" },
};

TEST(text_for_terminals_has_nothing_that_they_act_on) {
    for (size_t i = 0; i < ARRAY_SIZE(shown_cases); i++) {
        auto_buf struct buf shown = BUF_INIT, again = BUF_INIT;

        utf8_shown(&shown, shown_cases[i].text, strlen(shown_cases[i].text), "\n");
        buf_add(&shown, "", 1);
        ASSERT_STR_EQ(shown.data, shown_cases[i].shown);
        utf8_shown(&again, shown.data, strlen(shown.data), "\n");
        buf_add(&again, "", 1);
        ASSERT_STR_EQ(again.data, shown.data);
    }
}

TEST(json_for_terminals_means_the_same) {
    static const char text[] = "{\"a\\n\": \"\xe2\x80\xae\xc2\x9b\x7f\xc3\xa9\"}",
                      wanted[] = "{\"a\\n\": \"\\u202e\\u009b\\u007f\xc3\xa9\"}";
    auto_buf struct buf shown = BUF_INIT, quoted = BUF_INIT;

    utf8_json_shown(&shown, text, strlen(text));
    buf_add(&shown, "", 1);
    ASSERT_STR_EQ(shown.data, wanted);
    ASSERT_TRUE(utf8_json(&quoted, "\xe2\x80\xae\xc2\x9b\x7f\xc3\xa9\xe2\x82\xac\n", 12));
    buf_add(&quoted, "", 1);
    ASSERT_STR_EQ(quoted.data, "\"\\u202e\\u009b\\u007f\xc3\xa9\xe2\x82\xac\\n\"");
}

static const struct {
    const char *text;
    const char *replaced; /* what Python's bytes.decode(errors="replace") makes of it */
} utf8_cases[] = {
    { "", "" },
    { "plain", "plain" },
    { "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" },
    { "\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf" },
    { "a\x80z", "a\xef\xbf\xbdz" },
    { "\xc3", "\xef\xbf\xbd" },
    { "\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd" },
    { "\xe0\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
    { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
    { "\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
    { "\xf5\xff", "\xef\xbf\xbd\xef\xbf\xbd" },
    { "\xe2\x82z", "\xef\xbf\xbdz" },
    { "\xf0\x9f\x98\xf0\x9f\x98\x80", "\xef\xbf\xbd\xf0\x9f\x98\x80" },
};

TEST(utf8_is_checked_and_replaced_by_maximal_parts) {
    for (size_t i = 0; i < ARRAY_SIZE(utf8_cases); i++) {
        auto_buf struct buf buf = BUF_INIT;
        const char *text = utf8_cases[i].text;

        ASSERT_EQ(utf8_valid(text, strlen(text)), strcmp(text, utf8_cases[i].replaced) == 0);
        buf_add(&buf, "", 0);
        utf8_replace(&buf, text, strlen(text));
        ASSERT_STR_EQ(buf.data, utf8_cases[i].replaced);
        ASSERT_TRUE(utf8_valid(buf.data, buf.length));
    }
}

TEST(utf8_takes_nul_as_a_character) {
    auto_buf struct buf buf = BUF_INIT;

    ASSERT_TRUE(utf8_valid("a\0b", 3));
    utf8_replace(&buf, "a\0\xff", 3);
    ASSERT_MEM_EQ(buf.data, buf.length, "a\0\xef\xbf\xbd", 5);
}

TEST(base64_pads) {
    static const char *const cases[][2] = { { "", "" }, { "f", "Zg==" }, { "fo", "Zm8=" },
        { "foo", "Zm9v" }, { "foob", "Zm9vYg==" }, { "\xff\xfe\xfd", "//79" } };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        auto_buf struct buf buf = BUF_INIT;
        buf_add(&buf, "", 0);
        base64_encode(&buf, cases[i][0], strlen(cases[i][0]));
        ASSERT_STR_EQ(buf.data, cases[i][1]);
    }
}

/* ---- wire ---- */

static void send_and_receive(
    struct buf *buf, const int *fds, size_t n_fds, struct wire_message *message) {
    int pair[2];

    socket_pair(pair);
    ASSERT_OK(wire_send(pair[0], buf, fds, n_fds));
    ASSERT_EQ(wire_receive(pair[1], message), 1);
    close(pair[0]);
    close(pair[1]);
}

TEST(wire_fields_come_back_in_order) {
    auto_buf struct buf buf = BUF_INIT;
    static struct wire_message message;
    struct wire_field field;
    size_t position = 0;
    uint64_t value;

    wire_begin(&buf, 7, 99);
    wire_add_text(&buf, 1, "text");
    wire_add_u64(&buf, 2, UINT64_MAX - 1);
    wire_add(&buf, 3, "", 0);
    send_and_receive(&buf, NULL, 0, &message);
    ASSERT_EQ(message.header.type, 7);
    ASSERT_EQ(message.header.serial, 99);
    ASSERT_EQ(wire_next(message.data, message.length, &position, &field), 1);
    ASSERT_EQ(field.tag, 1);
    ASSERT_STR_EQ(wire_text(&field), "text");
    ASSERT_ERR(wire_u64(&field, &value), -EBADMSG);
    ASSERT_EQ(wire_next(message.data, message.length, &position, &field), 1);
    ASSERT_OK(wire_u64(&field, &value));
    ASSERT_TRUE(value == UINT64_MAX - 1);
    ASSERT_NULL(wire_text(&field));
    ASSERT_EQ(wire_next(message.data, message.length, &position, &field), 1);
    ASSERT_EQ(field.length, 0);
    ASSERT_NULL(wire_text(&field));
    ASSERT_EQ(wire_next(message.data, message.length, &position, &field), 0);
    wire_message_done(&message);
}

TEST(wire_long_messages_travel_in_a_memory_file) {
    enum { LENGTH = 3 << 20 };
    auto_free char *data = malloc(LENGTH);
    auto_buf struct buf buf = BUF_INIT;
    static struct wire_message message;
    struct wire_field field;
    size_t position = 0;
    int before = open_fds(), sent = 0;

    for (int i = 0; i < LENGTH; i++)
        data[i] = (char)(i ^ i >> 9);
    wire_begin(&buf, 1, 2);
    wire_add(&buf, 5, data, LENGTH);
    send_and_receive(&buf, &sent, 1, &message);
    ASSERT_EQ(message.n_fds, 1);
    ASSERT_EQ(wire_next(message.data, message.length, &position, &field), 1);
    ASSERT_MEM_EQ(field.data, field.length, data, LENGTH);
    close(wire_take_fd(&message, 0));
    wire_message_done(&message);
    ASSERT_EQ(open_fds(), before);
}

TEST(wire_descriptors_that_nobody_took_are_closed) {
    auto_buf struct buf buf = BUF_INIT;
    static struct wire_message message;
    int before = open_fds(), sent[] = { 0, 0 };

    wire_begin(&buf, 1, 2);
    send_and_receive(&buf, sent, 2, &message);
    ASSERT_EQ(open_fds(), before + 2);
    wire_message_done(&message);
    ASSERT_EQ(open_fds(), before);
}

TEST(wire_malformed_fields_are_refused) {
    static const struct {
        uint32_t words[6];
        size_t length;
    } cases[] = {
        { { 1 }, 4 },                    /* half a field header */
        { { 1, 100, 0, 0 }, 16 },        /* longer than what is there */
        { { 1, 0xffffffff, 0, 0 }, 16 }, /* so long that padding it overflows */
        { { 1, 0xfffffff8, 0, 0 }, 16 }, { { 1, 5, 0 }, 12 }, /* its padding is missing */
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct wire_field field;
        size_t position = 0;
        ASSERT_ERR(wire_next(cases[i].words, cases[i].length, &position, &field), -EBADMSG);
    }
    size_t position = 24;
    struct wire_field field;
    ASSERT_ERR(wire_next(cases[0].words, 16, &position, &field), -EBADMSG);
}

TEST(wire_text_must_end_in_its_only_nul) {
    ASSERT_NULL(wire_text(&(struct wire_field){ 1, 3, "abc" }));
    ASSERT_NULL(wire_text(&(struct wire_field){ 1, 4, "a\0b" }));
    ASSERT_STR_EQ(wire_text(&(struct wire_field){ 1, 4, "abc" }), "abc");
    ASSERT_STR_EQ(wire_text(&(struct wire_field){ 1, 1, "" }), "");
}

TEST(wire_bad_datagrams_are_dropped_and_leak_nothing) {
    int pair[2], fds[1] = { 0 };
    static struct wire_message message;
    struct wire_header body = { .type = 1, .flags = WIRE_BODY_IN_FD };

    socket_pair(pair);
    int before = open_fds();
    ASSERT_ERR(wire_receive(pair[1], &message), -EAGAIN);
    ASSERT_OK(fd_send(pair[0], "short", 5, fds, 1));
    ASSERT_ERR(wire_receive(pair[1], &message), -EBADMSG);
    ASSERT_EQ(open_fds(), before);
    /* a body is promised, but there is no descriptor; then one that is no memory file */
    ASSERT_OK(fd_send(pair[0], &body, sizeof body, NULL, 0));
    ASSERT_ERR(wire_receive(pair[1], &message), -EBADMSG);
    ASSERT_OK(fd_send(pair[0], &body, sizeof body, fds, 1));
    ASSERT_LT(wire_receive(pair[1], &message), 0);
    ASSERT_EQ(open_fds(), before);
    close(pair[0]);
    ASSERT_EQ(wire_receive(pair[1], &message), 0);
}

TEST(wire_a_failed_buffer_is_not_sent) {
    auto_buf struct buf buf = BUF_INIT;
    int pair[2];

    socket_pair(pair);
    wire_begin(&buf, 1, 1);
    wire_add(&buf, 1, "", (size_t)WIRE_BODY_MAX + 1);
    ASSERT_ERR(wire_send(pair[0], &buf, NULL, 0), -ENOMEM);
}
