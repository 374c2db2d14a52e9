/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of the log: one an event, also with hostile names in it. */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "engine/core/log.h"

static const char hostile[] = "box\n2026-01-01T00:00:00.000000Z error engine forged\x1b[31m\xff";

/* Writes one line and returns what the file has then. */
static const char *logged(const char *format) {
    static char text[8192];
    char path[] = "/tmp/rollbox-log-XXXXXX";
    auto_close int fd = mkstemp(path);

    ASSERT_LE(0, fd);
    ASSERT_OK(log_open(path, "debug", format));
    log_at(
        LOG_INFO, "test", ABOUT(.sandbox = hostile, .op = "fork", .run = 7), "message %s", hostile);
    log_close();
    ssize_t n = read(fd, text, sizeof text - 1);
    ASSERT_LT(0, n);
    text[n] = '\0';
    unlink(path);
    return text;
}

static size_t count(const char *text, char c) {
    size_t n = 0;

    for (; *text; text++)
        n += *text == c;
    return n;
}

TEST(name_forges_no_second_line) {
    static const char *const formats[] = { "text", "json" };

    for (size_t i = 0; i < ARRAY_SIZE(formats); i++) {
        const char *text = logged(formats[i]);

        ASSERT_EQ(count(text, '\n'), 1);
        ASSERT_EQ(count(text, '\x1b'), 0);
        ASSERT_STR_CONTAINS(text, "forged");
    }
}

TEST(nothing_is_logged_above_the_threshold_or_without_a_log) {
    ASSERT_OK(log_open(NULL, "debug", NULL));
    ASSERT_EQ(log_threshold, LOG_NOTHING);
    ASSERT_OK(log_open("/dev/null", "warn", NULL));
    ASSERT_EQ(log_threshold, LOG_WARN);
    log_close();
    ASSERT_EQ(log_threshold, LOG_NOTHING);
}

TEST(unknown_levels_and_formats_are_refused) {
    ASSERT_ERR(log_open("-", "loud", NULL), -EINVAL);
    ASSERT_ERR(log_open("-", NULL, "xml"), -EINVAL);
    ASSERT_ERR(log_open("/nowhere/log", NULL, NULL), -ENOENT);
}
