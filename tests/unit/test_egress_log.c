/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/log.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"
#include "test.h"

static struct policy policy;
static struct rules rules = { .policy = &policy };

static struct box box_with_log(int *ret_file) {
    *ret_file = memfd_create("log", MFD_CLOEXEC);
    ASSERT_TRUE(*ret_file >= 0);
    return (struct box){ .id = (char *)"a\"b", .rules = &rules, .log.fd = dup(*ret_file) };
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

TEST(refusals_cannot_push_connections_out) {
    auto_buf struct buf text = BUF_INIT;
    int file;
    struct box box = box_with_log(&file);

    for (int i = 0; i < 60000; i++)
        log_event(&box, "dns", "{s:s}", "host", "some.name.that.is.not.allowed.test");
    ASSERT_LE(box.log.bytes, LOG_MAX_BYTES / 4);
    for (int i = 0; i < 60000; i++)
        log_event(&box, "refused", "{s:s, s:i}", "host", "other.test", "port", 443);
    ASSERT_LE(box.log.bytes, LOG_MAX_BYTES / 2);
    ASSERT_GT(box.log.dropped, 0);
    log_event(&box, "connect", "{s:s}", "host", "allowed.test");
    log_done(&box);
    ASSERT_OK(fd_read_again(file, LOG_MAX_BYTES, &text));
    ASSERT_STR_CONTAINS(text.data, "\"event\":\"connect\",\"host\":\"allowed.test\"}\n");
    ASSERT_STR_CONTAINS(text.data, "\"event\":\"full\",\"dropped\":");
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
