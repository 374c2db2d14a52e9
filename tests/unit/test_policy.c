/* SPDX-License-Identifier: Apache-2.0 */
/* src/policy: sizes, policies that are right and every way of being wrong, with line, key and hint.
 */
#include <errno.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "policy/locate.h"
#include "policy/policy.h"
#include "policy/read.h"
#include "test.h"

#define K (1024ull)

static struct policy *good(const char *text) {
    struct policy_problems problems;
    struct policy *policy = NULL;
    int result = policy_parse(text, strlen(text), &policy, &problems);

    if (result < 0)
        FAIL("%s: %d, %s: %s", text, result, problems.n > 0 ? problems.items[0].key : "-",
            problems.n > 0 ? problems.items[0].message : "-");
    ASSERT_EQ(problems.n, 0);
    return policy;
}

static struct policy_problems wrong(const char *text, size_t length) {
    struct policy_problems problems;
    struct policy *policy = NULL;

    ASSERT_EQ(policy_parse(text, length, &policy, &problems), -EINVAL);
    ASSERT_NULL(policy);
    ASSERT_GT(problems.n, 0);
    return problems;
}

/* The text has just this problem; `message` and `hint` are parts of the printed text. */
static void one_problem(
    const char *text, unsigned line, const char *key, const char *message, const char *hint) {
    struct policy_problems problems = wrong(text, strlen(text));

    if (problems.n != 1)
        FAIL("%s has %zu problems; the second: %s: %s", text, problems.n, problems.items[1].key,
            problems.items[1].message);
    ASSERT_EQ(problems.items[0].line, line);
    ASSERT_STR_EQ(problems.items[0].key, key);
    ASSERT_STR_CONTAINS(problems.items[0].message, message);
    ASSERT_STR_CONTAINS(problems.items[0].hint, hint);
    policy_problems_done(&problems);
}

static bool has_path(const struct policy_paths *paths, const char *path) {
    for (size_t i = 0; i < paths->n; i++)
        if (strcmp(paths->items[i].path, path) == 0)
            return true;
    return false;
}

/* ---- sizes ---- */

TEST(sizes_that_are_right) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } rows[] = {
        { "0", 0 },
        { "1", 1 },
        { "10B", 10 },
        { "1K", K },
        { "1k", K },
        { "64KiB", 64 * K },
        { "512M", 512 * K * K },
        { "512m", 512 * K * K },
        { "1G", K * K * K },
        { "3T", 3 * K * K * K * K },
        { "18446744073709551615", UINT64_MAX },
        { "007", 7 },
        { "16777215T", 16777215 * K * K * K * K },
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        uint64_t bytes = 1234567;
        ASSERT_OK(policy_parse_size(rows[i].text, &bytes));
        ASSERT_TRUE(bytes == rows[i].bytes);
    }
}

TEST(sizes_that_are_wrong) {
    static const char *const malformed[] = { "", " 1", "1 ", "-1", "+1", "K", "1.5G", "1KB", "1kb",
        "1P", "0x10", "1e3", "1KK", "1iB", "1M ", "12a", "1Ki" };
    static const char *const too_large[] = { "18446744073709551616", "18446744073709551615K",
        "16777216T", "99999999999999999999999999G", "17179869184G" };
    uint64_t bytes = 42;

    for (size_t i = 0; i < ARRAY_SIZE(malformed); i++)
        ASSERT_ERR(policy_parse_size(malformed[i], &bytes), -EINVAL);
    for (size_t i = 0; i < ARRAY_SIZE(too_large); i++)
        ASSERT_ERR(policy_parse_size(too_large[i], &bytes), -ERANGE);
    ASSERT_EQ(bytes, 42);
}

/* ---- policies that are right ---- */

TEST(empty_object_is_the_default) {
    struct policy *p = good("{}");

    ASSERT_EQ(p->fs_readable.n, 9);
    ASSERT_STR_EQ(p->fs_readable.items[0].path, "/usr");
    ASSERT_TRUE(p->fs_readable.items[0].optional);
    ASSERT_TRUE(has_path(&p->fs_denied, "/etc/shadow"));
    ASSERT_TRUE(has_path(&p->fs_denied, "/etc/ssh"));
    for (size_t i = 0; i < p->fs_denied.n; i++)
        ASSERT_TRUE(p->fs_denied.items[i].optional);
    ASSERT_EQ(p->fs_writable.n + p->fs_shared.n + p->env.n, 0);
    ASSERT_TRUE(p->clean_env);
    ASSERT_NULL(p->image);
    ASSERT_NULL(p->cwd);
    ASSERT_NULL(p->user);
    ASSERT_NULL(p->hostname);
    ASSERT_NULL(p->time_start);
    ASSERT_EQ(p->max_memory_bytes, 512 * K * K);
    ASSERT_EQ(p->max_processes, 64);
    ASSERT_EQ(p->max_cpu_milli, 0);
    ASSERT_EQ(p->max_disk_bytes, K * K * K);
    policy_fit(p, 64);
    ASSERT_EQ(p->max_processes, 256);
    ASSERT_EQ(p->max_disk_bytes, 384 * K * K);
    policy_fit(p, 2);
    ASSERT_EQ(p->max_open_files, 4096);
    ASSERT_EQ(p->max_output_bytes, 10 * K * K);
    ASSERT_EQ(p->timeout_ms, -1);
    ASSERT_EQ(policy_run_timeout_ms(p), 300000);
    ASSERT_EQ(p->net, POLICY_NET_NONE);
    ASSERT_EQ(p->isolation, POLICY_ISOLATION_NAMESPACE);
    ASSERT_EQ(p->time_mode, POLICY_TIME_OFFSET);
    ASSERT_FALSE(p->have_seed);
    ASSERT_FALSE(p->serial);
    ASSERT_NULL(policy_free(p));
    ASSERT_NULL(policy_free(NULL));
}

TEST(every_key_is_read) {
    struct policy *p = good(
        "{\"fs_readable\": [\"/usr\"], \"fs_writable\": [\"/w\"], \"fs_shared\": [\"/s\"], "
        "\"fs_denied\": [\"/d\"], \"image\": \"img\", \"cwd\": \"/w\","
        "\"env\": {\"A\": \"1\", \"B\": \"\"}, \"clean_env\": false, \"user\": \"root\", "
        "\"hostname\": \"node-1.example\", \"max_memory\": \"64M\", \"max_processes\": 7,"
        "\"max_cpu\": 1.5, \"max_disk\": 65536, \"disk_at\": \"store\", \"max_open_files\": 16, "
        "\"max_output\": \"1K\", \"timeout\": 0.25, \"net\": \"loopback\", \"net_allow_hosts\": [],"
        "\"random_seed\": 9, \"time_start\": \"2025-01-01T00:00:00\", \"time_mode\": \"virtual\", "
        "\"serial\": true, \"isolation\": \"process\"}");

    ASSERT_EQ(p->fs_readable.n, 1);
    ASSERT_FALSE(p->fs_readable.items[0].optional);
    ASSERT_STR_EQ(p->fs_writable.items[0].path, "/w");
    ASSERT_STR_EQ(p->fs_shared.items[0].path, "/s");
    ASSERT_TRUE(has_path(&p->fs_denied, "/d"));
    ASSERT_TRUE(has_path(&p->fs_denied, "/etc/shadow"));
    ASSERT_STR_EQ(p->image, "img");
    ASSERT_STR_EQ(p->cwd, "/w");
    ASSERT_EQ(p->env.n, 2);
    ASSERT_STR_EQ(p->env.items[0], "A=1");
    ASSERT_STR_EQ(p->env.items[1], "B=");
    ASSERT_NULL(p->env.items[2]);
    ASSERT_FALSE(p->clean_env);
    ASSERT_STR_EQ(p->user, "root");
    ASSERT_STR_EQ(p->hostname, "node-1.example");
    ASSERT_EQ(p->max_memory_bytes, 64 * K * K);
    ASSERT_EQ(p->max_processes, 7);
    ASSERT_EQ(p->max_cpu_milli, 1500);
    ASSERT_EQ(p->max_disk_bytes, 65536);
    ASSERT_EQ(p->disk_at, POLICY_DISK_STORE);
    ASSERT_EQ(p->max_open_files, 16);
    ASSERT_EQ(p->max_output_bytes, 1024);
    ASSERT_EQ(p->timeout_ms, 250);
    ASSERT_EQ(p->net, POLICY_NET_LOOPBACK);
    ASSERT_TRUE(p->have_seed && p->random_seed == 9);
    ASSERT_STR_EQ(p->time_start, "2025-01-01T00:00:00");
    ASSERT_EQ(p->time_mode, POLICY_TIME_VIRTUAL);
    ASSERT_TRUE(p->serial);
    ASSERT_EQ(p->isolation, POLICY_ISOLATION_PROCESS);
    policy_free(p);
}

TEST(null_is_as_if_left_out) {
    struct policy *p = good(
        "{\"timeout\": null, \"fs_readable\": null, \"random_seed\": null, \"max_memory\": null}");

    ASSERT_EQ(p->timeout_ms, -1);
    ASSERT_EQ(policy_run_timeout_ms(p), 300000);
    ASSERT_EQ(p->fs_readable.n, 9);
    ASSERT_FALSE(p->have_seed);
    policy_free(p);
}

TEST(paths_are_normalised) {
    struct policy *p = good("{\"fs_readable\": [\"/usr/\", \"//opt///x/./y/.\", \"/...\", "
                            "\"/a.b/..c\", \"/\"], \"cwd\": \"/tmp/\"}");

    ASSERT_STR_EQ(p->fs_readable.items[0].path, "/usr");
    ASSERT_STR_EQ(p->fs_readable.items[1].path, "/opt/x/y");
    ASSERT_STR_EQ(p->fs_readable.items[2].path, "/...");
    ASSERT_STR_EQ(p->fs_readable.items[3].path, "/a.b/..c");
    ASSERT_STR_EQ(p->fs_readable.items[4].path, "/");
    ASSERT_STR_EQ(p->cwd, "/tmp");
    policy_free(p);
}

TEST(given_values_override_defaults) {
    struct policy *p = good("{\"fs_readable\": [\"/etc\", \"/etc/machine-id\", \"/etc/ssh\", "
                            "\"/etc/ssh/ssh_config\"]}");

    ASSERT_FALSE(has_path(&p->fs_denied, "/etc/machine-id"));
    ASSERT_FALSE(has_path(&p->fs_denied, "/etc/ssh"));
    ASSERT_TRUE(has_path(&p->fs_denied, "/etc/shadow"));
    policy_free(p);

    p = good("{\"fs_denied\": [\"/opt\", \"/etc/shadow\"]}");
    ASSERT_FALSE(has_path(&p->fs_readable, "/opt"));
    ASSERT_TRUE(has_path(&p->fs_readable, "/usr"));
    for (size_t i = 0; i < p->fs_denied.n; i++)
        if (strcmp(p->fs_denied.items[i].path, "/etc/shadow") == 0)
            ASSERT_FALSE(p->fs_denied.items[i].optional);
    policy_free(p);

    p = good("{\"fs_readable\": []}");
    ASSERT_EQ(p->fs_readable.n, 0);
    policy_free(p);
}

TEST(env_as_a_list) {
    struct policy *p =
        good("{\"env\": [\"A=1\", \"B=x=y\", \"A=2\", \"BASH_FUNC_f%%=() { :; }\", \"AB=\"]}");

    ASSERT_EQ(p->env.n, 4);
    ASSERT_STR_EQ(p->env.items[0], "A=2");
    ASSERT_STR_EQ(p->env.items[1], "B=x=y");
    ASSERT_STR_EQ(p->env.items[3], "AB=");
    policy_free(p);
}

TEST(users_seeds_times_that_are_right) {
    static const char *const times[] = { "1970-01-01", "2024-02-29", "2025-01-01T00:00:00Z",
        "2025-12-31 23:59:59", "2025-01-01T10:00", "2025-01-01T10:00:00.123456789+05:30",
        "2000-02-29T00:00:00-0800", "2199-12-31T23:59:59,5z" };
    struct policy *p = good("{\"user\": \"box\"}");

    ASSERT_NULL(p->user);
    policy_free(p);
    p = good("{\"user\": 0}");
    ASSERT_STR_EQ(p->user, "root");
    policy_free(p);
    p = good("{\"user\": 65534}");
    ASSERT_STR_EQ(p->user, "65534");
    policy_free(p);
    p = good("{\"user\": \"007\"}");
    ASSERT_STR_EQ(p->user, "7");
    policy_free(p);
    p = good("{\"random_seed\": \"18446744073709551615\"}");
    ASSERT_TRUE(p->random_seed == UINT64_MAX);
    policy_free(p);
    p = good("{\"random_seed\": 0}");
    ASSERT_TRUE(p->have_seed);
    policy_free(p);
    p = good("{\"timeout\": 0.00001}");
    ASSERT_EQ(p->timeout_ms, 1);
    policy_free(p);
    p = good("{\"timeout\": \"none\"}");
    ASSERT_EQ(p->timeout_ms, 0);
    ASSERT_EQ(policy_run_timeout_ms(p), -1);
    policy_free(p);
    p = good("{\"timeout\": 1.1}");
    ASSERT_EQ(p->timeout_ms, 1100);
    policy_free(p);
    p = good("{\"timeout\": 1e-300}");
    ASSERT_EQ(p->timeout_ms, 1);
    policy_free(p);
    p = good("{\"max_processes\": 20.0}");
    ASSERT_EQ(p->max_processes, 20);
    policy_free(p);
    for (size_t i = 0; i < ARRAY_SIZE(times); i++) {
        auto_free char *text = NULL;
        ASSERT_TRUE(asprintf(&text, "{\"time_start\": \"%s\"}", times[i]) > 0);
        policy_free(good(text));
    }
}

/* ---- policies that are wrong ---- */

TEST(unknown_keys_get_a_hint) {
    static const struct {
        const char *key, *hint;
    } rows[] = {
        { "fs_readible", "did you mean \"fs_readable\"?" },
        { "memory", "did you mean \"max_memory\"?" },
        { "FS_SHARED", "did you mean \"fs_shared\"?" },
        { "cpus", "did you mean \"max_cpu\"?" },
        { "timeout_s", "did you mean \"timeout\"?" },
        { "seed", "did you mean \"random_seed\"?" },
        { "networks", "did you mean \"network\"?" },
        { "environment", "did you mean \"env\"?" },
        { "output_limit", "did you mean \"max_output\"?" },
        { "xyzzyplugh", "docs/reference/policy.md" },
        { "x", "docs/reference/policy.md" },
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        auto_free char *text = NULL;
        ASSERT_TRUE(asprintf(&text, "{\n\"net\": \"none\",\n \"%s\": 1}", rows[i].key) > 0);
        one_problem(text, 3, rows[i].key, "unknown key", rows[i].hint);
    }
}

TEST(a_word_with_nothing_of_another_is_no_hint) {
    static const char *const words[] = { "id", "net" };

    ASSERT_TRUE(!read_nearest("x", words, ARRAY_SIZE(words)));
    ASSERT_TRUE(!read_nearest("", words, ARRAY_SIZE(words)));
    ASSERT_TRUE(read_nearest("ne", words, ARRAY_SIZE(words)) == words[1]);
}

TEST(every_kind_of_wrong_value) {
    static const struct {
        const char *text, *key, *message, *hint;
    } rows[] = {
        { "{\"fs_readable\": \"/usr\"}", "fs_readable", "must be a list of paths, not a string",
            "between [ and ]" },
        { "{\"fs_readable\": [\"usr\"]}", "fs_readable[0]", "not an absolute path", "from /" },
        { "{\"fs_readable\": [\"/usr\", \"~/x\"]}", "fs_readable[1]", "not an absolute path",
            "~ is not expanded" },
        { "{\"fs_readable\": [\"$HOME\"]}", "fs_readable[0]", "not an absolute path",
            "variables are not expanded" },
        { "{\"fs_readable\": [\"\"]}", "fs_readable[0]", "must not be empty", "" },
        { "{\"fs_readable\": [7]}", "fs_readable[0]", "must be a path, not a number", "" },
        { "{\"fs_readable\": [null]}", "fs_readable[0]", "must be a path, not null", "" },
        { "{\"fs_readable\": [\"/a\\u0000b\"]}", "fs_readable[0]", "NUL", "" },
        { "{\"fs_readable\": [\"/a/../b\"]}", "fs_readable[0]", "\"..\"", "" },
        { "{\"fs_readable\": [\"/..\"]}", "fs_readable[0]", "\"..\"", "" },
        { "{\"fs_readable\": [\"/a\", \"/a/\"]}", "fs_readable[1]", "twice", "leave one out" },
        { "{\"fs_readable\": [\"/proc\"]}", "fs_readable[0]", "/proc cannot be granted", "" },
        { "{\"fs_shared\": [\"/proc/sys\"]}", "fs_shared[0]", "/proc cannot be granted", "" },
        { "{\"fs_writable\": [\"/dev\"]}", "fs_writable[0]", "/dev cannot be granted", "" },
        { "{\"fs_writable\": [\"/\"]}", "fs_writable[0]", "\"/\" cannot be writable",
            "name the directories" },
        { "{\"fs_shared\": [\"//.\"]}", "fs_shared[0]", "\"/\" cannot be shared",
            "name the directories" },
        { "{\"fs_denied\": [\"/\"]}", "fs_denied[0]", "cannot be denied", "" },
        { "{\"fs_shared\": [\"/a\"], \"fs_writable\": [\"/b\", \"/a\"]}", "fs_shared[0]",
            "also in fs_writable", "choose one" },
        { "{\"fs_readable\": [\"/b\", \"/a\"], \"fs_denied\": [\"/a\"]}", "fs_readable[1]",
            "also in fs_denied", "" },
        { "{\"fs_writable\": [\"/a/b\"], \"fs_denied\": [\"/a\"]}", "fs_writable[0]",
            "below \"/a\"", "" },
        { "{\"fs_readable\": [\"/etc/ssh/x\"]}", "fs_readable[0]", "denied by default",
            "grant that directory" },
        { "{\"image\": \"\"}", "image", "must not be empty", "" },
        { "{\"cwd\": \"tmp\"}", "cwd", "not an absolute path", "" },
        { "{\"cwd\": [\"/tmp\"]}", "cwd", "must be a path, not a list", "" },
        { "{\"env\": \"A=1\"}", "env", "must be an object, not a string", "NAME" },
        { "{\"env\": {\"A\": 1}}", "env.A", "must be a string, not a number", "" },
        { "{\"env\": {\"A=B\": \"1\"}}", "env.A=B", "not a name", "" },
        { "{\"env\": {\"\": \"1\"}}", "env.", "must have a name", "" },
        { "{\"env\": {\"A B\": \"1\"}}", "env.A B", "not a name", "" },
        { "{\"env\": {\"A\": \"x\\u0000\"}}", "env.A", "NUL", "" },
        { "{\"env\": [\"A\"]}", "env[0]", "no \"=\"", "NAME=value" },
        { "{\"env\": [\"=x\"]}", "env[0]", "must have a name", "" },
        { "{\"clean_env\": \"yes\"}", "clean_env", "must be true or false, not a string", "" },
        { "{\"serial\": 0}", "serial", "must be true or false, not a number", "" },
        { "{\"user\": \"nobody\"}", "user", "must be \"box\", \"root\" or a number", "" },
        { "{\"user\": 65535}", "user", "0 to 65534", "" },
        { "{\"user\": -1}", "user", "0 to 65534", "" },
        { "{\"user\": \"1x\"}", "user", "0 to 65534", "" },
        { "{\"user\": \"99999999999999999999999\"}", "user", "0 to 65534", "" },
        { "{\"hostname\": \"-a\"}", "hostname", "not a host name", "" },
        { "{\"hostname\": \"a-\"}", "hostname", "not a host name", "" },
        { "{\"hostname\": \"a..b\"}", "hostname", "not a host name", "" },
        { "{\"hostname\": \"a_b\"}", "hostname", "not a host name", "" },
        { "{\"hostname\": \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}",
            "hostname", "not a host name", "" },
        { "{\"max_memory\": \"4095K\"}", "max_memory", "at least 4M", "" },
        { "{\"max_memory\": 512}", "max_memory", "at least 4M", "a bare number is bytes" },
        { "{\"max_memory\": \"1.5G\"}", "max_memory", "not a size", "1536M" },
        { "{\"max_memory\": \"lots\"}", "max_memory", "not a size", "512M" },
        { "{\"max_memory\": \"99999999999999G\"}", "max_memory", "too large", "" },
        { "{\"max_memory\": \"8388608T\"}", "max_memory", "too large", "" },
        { "{\"max_memory\": 1.5}", "max_memory", "not a fraction", "" },
        { "{\"max_memory\": true}", "max_memory", "not true or false", "" },
        { "{\"max_disk\": \"63K\"}", "max_disk", "at least 64K", "" },
        { "{\"max_output\": -1}", "max_output", "cannot be negative", "" },
        { "{\"max_processes\": 0}", "max_processes", "from 1 to 32768", "" },
        { "{\"max_processes\": 32769}", "max_processes", "from 1 to 32768", "" },
        { "{\"max_processes\": 1.5}", "max_processes", "whole number", "" },
        { "{\"max_processes\": \"10\"}", "max_processes", "must be a number, not a string", "" },
        { "{\"max_processes\": 1e300}", "max_processes", "from 1 to 32768", "" },
        { "{\"max_open_files\": 15}", "max_open_files", "from 16 to 1048576", "" },
        { "{\"max_cpu\": 0}", "max_cpu", "from 0.01", "leave it out" },
        { "{\"max_cpu\": -1}", "max_cpu", "from 0.01", "" },
        { "{\"timeout\": 0}", "timeout", "more than 0", "leave it out" },
        { "{\"timeout\": -2.5}", "timeout", "more than 0", "" },
        { "{\"timeout\": 1e10}", "timeout", "at most", "" },
        { "{\"timeout\": \"10s\"}", "timeout", "must be a number of seconds, not a string",
            "without quotes" },
        { "{\"net\": \"hots\"}", "net", "must be \"none\", \"loopback\", \"allow\" or \"host\"",
            "did you mean \"host\"?" },
        { "{\"net\": false}", "net", "not true or false", "" },
        { "{\"net\": \"none\\u0000\"}", "net", "none of its values", "" },
        { "{\"random_seed\": -1}", "random_seed", "whole number", "" },
        { "{\"random_seed\": 1.5}", "random_seed", "whole number", "" },
        { "{\"random_seed\": \"18446744073709551616\"}", "random_seed", "whole number", "" },
        { "{\"time_start\": \"2025-02-29\"}", "time_start", "not a time", "2025-01-01T00:00:00" },
        { "{\"time_start\": \"1900-01-01\"}", "time_start", "not a time", "" },
        { "{\"time_start\": \"2025-01-01T24:00:00\"}", "time_start", "not a time", "" },
        { "{\"time_start\": \"2025-01-01T00:00:00+15:00\"}", "time_start", "not a time", "" },
        { "{\"time_start\": \"yesterday\"}", "time_start", "not a time", "" },
        { "{\"time_start\": 1735689600}", "time_start", "must be a time, not a number", "" },
        { "{\"disk_at\": \"disk\"}", "disk_at", "\"memory\" or \"store\"", "" },
        { "{\"time_mode\": \"virtua\"}", "time_mode", "\"offset\" or \"virtual\"",
            "did you mean \"virtual\"?" },
        { "{\"isolation\": \"gvisor\"}", "isolation", "not available yet", "" },
        { "{\"isolation\": \"microvm\"}", "isolation", "not available yet", "" },
        { "{\"isolation\": \"proces\"}", "isolation", "none of its values",
            "did you mean \"process\"?" },
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        one_problem(rows[i].text, 1, rows[i].key, rows[i].message, rows[i].hint);
}

TEST(all_problems_are_reported_with_their_lines) {
    static const char text[] =
        "{\n  \"nett\": \"none\",\n  \"fs_readable\": [\n    \"/ok\",\n    \"bad\",\n    "
        "\"/\\u00e9\\\"]\", \"also bad\"\n  ],\n  \"env\": {\"A\": \"}\",\n"
        "    \"B\": 2},\r\n  \"m\\u0061x_cpu\": 0,\n\n  \"timeout\": -1}";
    static const struct {
        unsigned line;
        const char *key;
    } rows[] = { { 2, "nett" }, { 5, "fs_readable[1]" }, { 6, "fs_readable[3]" }, { 9, "env.B" },
        { 10, "max_cpu" }, { 12, "timeout" } };
    struct policy_problems problems = wrong(text, sizeof(text) - 1);

    ASSERT_EQ(problems.n, ARRAY_SIZE(rows));
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        ASSERT_STR_EQ(problems.items[i].key, rows[i].key);
        ASSERT_EQ(problems.items[i].line, rows[i].line);
    }
    policy_problems_done(&problems);
    ASSERT_NULL(problems.items);
}

TEST(texts_that_are_no_json) {
    one_problem("", 1, "", "is empty", "{}");
    one_problem(" \n\t", 1, "", "is empty", "{}");
    one_problem("[]", 1, "", "must be an object, not a list", "{}");
    one_problem("{\n\n\"net\": none}", 3, "", "not valid JSON", "");
    one_problem("{\"net\": \"none\",}", 1, "", "not valid JSON", "");
    one_problem("{} {}", 1, "", "not valid JSON", "");
    one_problem("{\n\"timeout\": 99999999999999999999}", 2, "", "too large", "");
    one_problem("{\"timeout\": 1e999}", 1, "", "too large", "");
    one_problem("{\"a\": \"\xff\"}", 1, "", "UTF-8", "");
    one_problem("{\n\"net\": \"none\",\n\"net\": \"host\"}", 3, "", "given twice", "");

    struct policy_problems problems = wrong("{\0}", 3);
    policy_problems_done(&problems);
}

TEST(key_given_twice_does_not_hide_other_problems) {
    static const char text[] = "{\"net\": \"none\", \"net\": \"none\",\n\"timeout\": 0}";
    struct policy_problems problems = wrong(text, sizeof(text) - 1);

    ASSERT_EQ(problems.n, 2);
    ASSERT_STR_EQ(problems.items[1].key, "timeout");
    policy_problems_done(&problems);
}

TEST(hostile_texts_are_bounded) {
    size_t length = (1u << 20) + 1;
    auto_free char *text = malloc(length);
    auto_buf struct buf many = BUF_INIT;
    struct policy_problems problems;

    ASSERT_NOT_NULL(text);
    memset(text, ' ', length);
    text[0] = '{', text[1] = '}';
    problems = wrong(text, length);
    ASSERT_STR_CONTAINS(problems.items[0].message, "at most 1048576");
    policy_problems_done(&problems);
    struct policy *policy = NULL;
    ASSERT_OK(policy_parse(text, length - 1, &policy, &problems));
    policy_free(policy);

    memset(text, '[', length);
    problems = wrong(text, length - 1);
    ASSERT_STR_CONTAINS(problems.items[0].message, "nested too deeply");
    policy_problems_done(&problems);

    buf_add_text(&many, "{\"fs_readable\": [");
    for (unsigned i = 0; i < 1000; i++)
        buf_printf(&many, "%s\n%u", i > 0 ? "," : "", i);
    buf_add_text(&many, "]}");
    problems = wrong(many.data, many.length);
    ASSERT_EQ(problems.n, 101);
    ASSERT_STR_CONTAINS(problems.items[100].message, "more than 100 problems");
    policy_problems_done(&problems);

    many.length = 0;
    buf_add_text(&many, "{\"fs_readable\": [\"/a\"");
    for (unsigned i = 0; i < 2000; i++)
        buf_printf(&many, ", \"/%u\"", i);
    buf_add_text(&many, "]}");
    problems = wrong(many.data, many.length);
    ASSERT_EQ(problems.n, 1);
    ASSERT_STR_CONTAINS(problems.items[0].message, "at most 1024");
    policy_problems_done(&problems);
}

TEST(problems_are_single_lines_of_utf8) {
    struct policy_problems problems = wrong("{\"a\\nb\\u001b[31m\": 1, \"net\": \"x\\ny\"}", 37);

    for (size_t i = 0; i < problems.n; i++) {
        ASSERT_NULL(strpbrk(problems.items[i].key, "\n\r\033"));
        ASSERT_NULL(strpbrk(problems.items[i].message, "\n\r\033"));
    }
    policy_problems_done(&problems);
}

TEST(lines_of_things) {
    static const char text[] = "{ \"a\" :\n 1.5e3 ,\"b\":[ [1,\n{\"c\":[]}], \"]\\\"\" "
                               ",\n\n-2,true\n,null],\"c\"\n:{\"x\":{\"y\":1},\n\"y\"\n:2}}\n";

    ASSERT_EQ(locate_line(text, sizeof(text) - 1, "a", -1, NULL), 1);
    ASSERT_EQ(locate_line(text, sizeof(text) - 1, "b", -1, NULL), 2);
    ASSERT_EQ(locate_line(text, sizeof(text) - 1, "b", 0, NULL), 2);
    ASSERT_EQ(locate_line(text, sizeof(text) - 1, "b", 1, NULL), 3);
    ASSERT_EQ(locate_line(text, sizeof(text) - 1, "b", 2, NULL), 5);
    ASSERT_EQ(locate_line(text, sizeof(text) - 1, "b", 4, NULL), 6);
    ASSERT_EQ(locate_line(text, sizeof(text) - 1, "b", 9, NULL), 2);
    ASSERT_EQ(locate_line(text, sizeof(text) - 1, "c", -1, "y"), 8);
    ASSERT_EQ(locate_line(text, sizeof(text) - 1, "c", -1, "z"), 6);
    ASSERT_EQ(locate_line(text, sizeof(text) - 1, "d", -1, NULL), 0);
}
