/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "test.h"

static struct policy policy;
static struct rules rules = { .policy = &policy };

static struct box box_with_log(int *ret_file) {
    *ret_file = memfd_create("log", MFD_CLOEXEC);
    ASSERT_TRUE(*ret_file >= 0);
    return (struct box){
        .id = (char *)"a\"b", .rules = &rules, .log = { .fd = dup(*ret_file), .file = -EBADF }
    };
}

TEST(events_are_lines_of_json) {
    auto_buf struct buf text = BUF_INIT;
    int file;
    struct box box = box_with_log(&file);

    log_event(&box, "connect", "{s:s, s:n, s:i}", "host", "a.org", "none", "port", 443);
    log_done(&box);
    ASSERT_OK(fd_read_again(file, 4096, &text));
    ASSERT_STR_CONTAINS(
        text.data, ",\"box\":\"a\\\"b\",\"event\":\"connect\",\"host\":\"a.org\",\"port\":443}\n");
    ASSERT_EQ(box.log.fd < 0, true);
}

static const struct {
    const char *event;
    enum log_kind kind;
} kinds[] = { { "dns", LOG_NAMES }, { "refused", LOG_REFUSALS }, { "connect", LOG_CONNECTIONS },
    { "http", LOG_REQUESTS } };

/* Fills the log with events of one kind; one of each other kind is in it then. */
static void fill_with(size_t filling) {
    auto_buf struct buf text = BUF_INIT;
    int file;
    struct box box = box_with_log(&file);

    for (int i = 0; i < 30000; i++)
        log_event(
            &box, kinds[filling].event, "{s:s, s:i}", "host", "many.a.long.name.test", "port", 443);
    ASSERT_GT(box.log.parts[kinds[filling].kind].dropped, 0);
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        log_event(&box, kinds[i].event, "{s:s}", "host", "last.test");
    log_done(&box);
    ASSERT_OK(fd_read_again(file, LOG_MAX_BYTES, &text));
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        char line[80];

        snprintf(line, sizeof line, "\"event\":\"%s\",\"host\":\"last.test\"}\n", kinds[i].event);
        if (i != filling)
            ASSERT_STR_CONTAINS(text.data, line);
    }
    ASSERT_STR_CONTAINS(text.data, "\"event\":\"full\",\"kind\":\"");
    ASSERT_STR_CONTAINS(text.data, "\"events\":30001,\"dropped\":");
}

TEST(no_kind_of_event_pushes_another_out) {
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        fill_with(i);
}

TEST(full_log_stays_within_its_bound) {
    auto_buf struct buf text = BUF_INIT;
    int file;
    struct box box = box_with_log(&file);

    for (int i = 0; i < 60000; i++)
        log_event(&box, "connect", "{s:s, s:i}", "host", "a.long.name.of.a.host.test", "port", 443);
    log_done(&box);
    ASSERT_OK(fd_read_again(file, LOG_MAX_BYTES, &text));
    ASSERT_LE(text.length, LOG_MAX_BYTES);
    ASSERT_EQ(text.data[text.length - 1], '\n');
}

TEST(log_none_writes_nothing) {
    auto_buf struct buf text = BUF_INIT;
    int file;
    struct box box = box_with_log(&file);

    policy.network.log = NET_LOG_NONE;
    log_event(&box, "connect", "{s:s}", "host", "a.org");
    log_done(&box);
    ASSERT_OK(fd_read_again(file, 4096, &text));
    ASSERT_EQ(text.length, 0);
}
