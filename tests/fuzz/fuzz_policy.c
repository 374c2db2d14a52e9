/* SPDX-License-Identifier: Apache-2.0 */
/* Policies: any bytes give a policy that keeps its promises or problems that can be printed (places
 * in the text, one line each), and nothing leaks. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "policy/policy.h"

static void expect(bool holds) {
    if (!holds)
        abort();
}

static void check_path(const char *path) {
    size_t length = strlen(path);

    expect(length > 0 && length < 4096 && path[0] == '/');
    expect(length == 1 || path[length - 1] != '/');
    expect(
        strstr(path, "//") == NULL && strstr(path, "/./") == NULL && strstr(path, "/../") == NULL);
}

static void check_paths(const struct policy_paths *paths, bool may_be_root) {
    for (size_t i = 0; i < paths->n; i++) {
        check_path(paths->items[i].path);
        expect(may_be_root || strcmp(paths->items[i].path, "/") != 0);
    }
}

static void check_policy(const struct policy *policy) {
    check_paths(&policy->fs_readable, true);
    check_paths(&policy->fs_writable, false);
    check_paths(&policy->fs_shared, false);
    check_paths(&policy->fs_denied, false);
    if (policy->cwd != NULL)
        check_path(policy->cwd);
    for (size_t i = 0; i < policy->env.n; i++)
        expect(strchr(policy->env.items[i], '=') > policy->env.items[i]);
    expect(policy->env.n == 0 || policy->env.items[policy->env.n] == NULL);
    expect(policy->max_memory_bytes >= 4u << 20 && policy->max_memory_bytes <= INT64_MAX);
    expect(policy->max_disk_bytes >= 64u << 10 && policy->max_disk_bytes <= INT64_MAX &&
           policy->max_output_bytes <= INT64_MAX);
    expect(policy->max_processes >= 1 && policy->max_processes <= 32768);
    expect(policy->max_open_files >= 16 && policy->max_open_files <= 1048576);
    expect(policy->timeout_ms == -1 || policy->timeout_ms > 0);
}

static void check_text(const char *text) {
    expect(text != NULL && utf8_valid(text, strlen(text)) && strpbrk(text, "\n\r\033") == NULL);
}

static void check_problems(
    const struct policy_problems *problems, const char *text, size_t length) {
    unsigned lines = 1;

    for (size_t i = 0; i < length; i++)
        lines += text[i] == '\n';
    expect(problems->n > 0);
    for (size_t i = 0; i < problems->n; i++) {
        expect(problems->items[i].line <= lines);
        check_text(problems->items[i].key);
        check_text(problems->items[i].message);
        check_text(problems->items[i].hint);
        expect(*problems->items[i].message != 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct policy_problems problems;
    struct policy *policy = NULL;
    int result = policy_parse((const char *)data, size, &policy, &problems);

    expect(result == 0 || result == -EINVAL);
    if (result == 0) {
        expect(problems.n == 0);
        check_policy(policy);
    } else
        check_problems(&problems, (const char *)data, size);
    policy_problems_done(&problems);
    policy_free(policy);
    return 0;
}
