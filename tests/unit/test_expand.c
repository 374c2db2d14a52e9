/* SPDX-License-Identifier: Apache-2.0 */
/* src/policy/expand: grants without what is denied in them, over a directory tree made up here.
 * src/base/tree: what removes a sandbox's private files. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/remove_tree.h"
#include "policy/expand.h"
#include "test.h"

/* Every directory and file of the made-up host. */
static const char *const paths[] = { "/e/", "/e/a", "/e/b/", "/e/b/x", "/e/b/y/", "/e/b/y/1",
    "/e/b/y/2", "/e/bb", "/e/c/", "/e/c/z", NULL };
static unsigned listings;

static int list(void *data, const char *directory, struct expand_entries *to) {
    size_t length = strlen(directory);

    ASSERT_NULL(data);
    listings++;
    if (!strcmp(directory, "/e/c"))
        return -EACCES;
    for (const char *const *path = paths; *path; path++) {
        if (strncmp(*path, directory, length) || (*path)[length] != '/')
            continue;
        const char *name = *path + length + 1;
        size_t n = strcspn(name, "/");
        auto_free char *copy = NULL;

        if (!n || (name[n] && name[n + 1]))
            continue;
        copy = strndup(name, n);
        ASSERT_NOT_NULL(copy);
        ASSERT_OK(expand_entries_add(to, copy, name[n] == '/'));
    }
    return 0;
}

static const struct expand_lister lister = { list, NULL };

static int note(void *data, const char *path, bool directory, bool whole) {
    buf_add_text(data, whole ? "=" : "");
    buf_printf(data, "%s%s ", path, directory ? "/" : "");
    return 0;
}

static void expect(const char *grant, const char *const *denied, size_t n, const char *rules) {
    auto_buf struct buf text = BUF_INIT;
    size_t budget = EXPAND_MAX;

    ASSERT_OK(expand_grant(grant, true, denied, n, &lister, &budget, note, &text));
    buf_add(&text, "", 1);
    ASSERT_STR_EQ(text.data, rules);
}

TEST(nothing_denied_is_one_rule) {
    const char *const elsewhere[] = { "/f", "/ee", "/", "/e/../x" };

    expect("/e", NULL, 0, "=/e/ ");
    expect("/e", elsewhere, 3, "=/e/ ");
    ASSERT_EQ(listings, 0);
}

TEST(siblings_of_what_is_denied) {
    const char *const one[] = { "/e/a" };
    const char *const deep[] = { "/e/b/y/2" };
    const char *const prefix[] = { "/e/b" };

    expect("/e", one, 1, "/e/b/ /e/bb /e/c/ ");
    expect("/e", deep, 1, "/e/a /e/b/x /e/b/y/1 /e/bb /e/c/ ");
    expect("/e", prefix, 1, "/e/a /e/bb /e/c/ ");
}

/* The directories around it get no rule, so it stays out of reach when it is made. */
TEST(denied_that_does_not_exist) {
    const char *const missing[] = { "/e/b/new" };
    const char *const below_missing[] = { "/e/b/new/er" };
    const char *const below_file[] = { "/e/a/x" };

    expect("/e", missing, 1, "/e/a /e/b/x /e/b/y/ /e/bb /e/c/ ");
    expect("/e", below_missing, 1, "/e/a /e/b/x /e/b/y/ /e/bb /e/c/ ");
    expect("/e", below_file, 1, "/e/b/ /e/bb /e/c/ ");
}

TEST(several_denied) {
    const char *const several[] = { "/e/b/y/1", "/e/b/y/2", "/e/a", "/e/b" };

    expect("/e", several, 2, "/e/a /e/b/x /e/bb /e/c/ ");
    expect("/e", several, 3, "/e/b/x /e/bb /e/c/ ");
    expect("/e", several, 4, "/e/bb /e/c/ ");
}

/* A grant that lies in something denied was meant. */
TEST(grant_inside_denied) {
    const char *const above[] = { "/e" };

    expect("/e/b", above, 1, "=/e/b/ ");
}

TEST(denied_grant_has_no_rule) {
    const char *const same[] = { "/e" };

    expect("/e", same, 1, "");
}

TEST(failures_are_reported) {
    const char *const denied[] = { "/e/a", "/e/c/z" };
    auto_buf struct buf text = BUF_INIT;
    size_t budget = 2;

    ASSERT_ERR(expand_grant("/e", true, denied, 1, &lister, &budget, note, &text), -E2BIG);
    budget = EXPAND_MAX;
    ASSERT_ERR(expand_grant("/e", true, denied, 2, &lister, &budget, note, &text), -EACCES);
}

/* ---- removal ---- */

static int deep_directory(void) {
    ASSERT_CALL(chdir(test_directory()));
    ASSERT_CALL(mkdir("top", 0700));
    return (int)ASSERT_CALL(open("top", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

TEST_TIMEOUT(deep_trees_go, 60) {
    int top = deep_directory();

    ASSERT_CALL(chdir("top"));
    for (int i = 0; i < 2000; i++) {
        ASSERT_CALL(mkdir("d", 0700));
        if (i % 100 == 0)
            close((int)ASSERT_CALL(open("f", O_CREAT | O_WRONLY | O_CLOEXEC, 0600)));
        ASSERT_CALL(chdir("d"));
    }
    ASSERT_CALL(chdir("/"));
    ASSERT_OK(tree_empty(top));
    ASSERT_CALL(chdir(test_directory()));
    ASSERT_CALL(rmdir("top"));
}

TEST(links_are_not_followed) {
    int top = deep_directory();

    ASSERT_CALL(mkdir("outside", 0700));
    close((int)ASSERT_CALL(open("outside/kept", O_CREAT | O_WRONLY | O_CLOEXEC, 0600)));
    ASSERT_CALL(mkdir("top/d", 0700));
    ASSERT_CALL(symlink("../outside", "top/link"));
    ASSERT_CALL(symlink("../../outside", "top/d/link"));
    ASSERT_CALL(symlink("/", "top/d/root"));
    ASSERT_CALL(link("outside/kept", "top/hard"));
    ASSERT_OK(tree_empty(top));
    ASSERT_CALL(rmdir("top"));
    ASSERT_CALL(access("outside/kept", F_OK));
}

TEST(wide_trees_and_odd_names_go) {
    int top = deep_directory();
    char name[300];

    for (int i = 0; i < 2000; i++) {
        snprintf(name, sizeof name, "top/%d\n\377 rollbox-remove-%08x", i, (unsigned)i);
        if (i % 2)
            ASSERT_CALL(mkdir(name, 0700));
        else
            close((int)ASSERT_CALL(open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0)));
    }
    ASSERT_CALL(mkdir("top/rollbox-remove-00000000", 0700));
    ASSERT_CALL(mkdir("top/rollbox-remove-00000000/rollbox-remove-00000001", 0700));
    ASSERT_CALL(mkdir("top/rollbox-remove-00000000/rollbox-remove-00000001/x", 0700));
    ASSERT_CALL(mkfifo("top/rollbox-remove-00000000/fifo", 0));
    ASSERT_OK(tree_empty(top));
    ASSERT_CALL(rmdir("top"));
}

/* As their owner, not as root, who may do anything. */
TEST(unreadable_directories_go) {
    static const mode_t modes[] = { 0, 0100, 0200, 0300, 0400, 0500, 0600 };
    char name[64];

    int top = deep_directory();
    if (getuid() == 0) {
        ASSERT_CALL(fchown(top, 54321, 54321));
        ASSERT_CALL(chmod(test_directory(), 0755));
        ASSERT_CALL(setresgid(54321, 54321, 54321));
        ASSERT_CALL(setresuid(54321, 54321, 54321));
    }
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        snprintf(name, sizeof name, "d%zu", i);
        ASSERT_CALL(mkdirat(top, name, 0700));
        int inner = (int)ASSERT_CALL(openat(top, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        ASSERT_CALL(mkdirat(inner, "e", 0700));
        int deepest = (int)ASSERT_CALL(openat(inner, "e", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        ASSERT_CALL(mkdirat(deepest, "f", 0));
        close((int)ASSERT_CALL(openat(deepest, "g", O_CREAT | O_WRONLY | O_CLOEXEC, 0)));
        ASSERT_CALL(fchmod(deepest, modes[i]));
        ASSERT_CALL(fchmod(inner, modes[i]));
        close(deepest);
        close(inner);
    }
    int r = tree_empty(top);
    if (r == -EACCES && syscall(452, AT_FDCWD, "", 0700, AT_EMPTY_PATH) < 0 && errno == ENOSYS)
        SKIP("fchmodat2",
            "the kernel has no fchmodat2 (Linux 6.6), which makes unreadable directories readable");
    ASSERT_OK(r);
}
