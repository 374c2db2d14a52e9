/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The harness itself. tests/check_harness.py sets HARNESS_BAD, runs the cases called bad_* one by
 * one, and sees each reported as it must be; else there are only the good ones.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

#define BAD(name, seconds)                                                                         \
    static void bad_##name(void);                                                                  \
    __attribute__((constructor)) static void register_bad_##name(void) {                           \
        static struct test_case test = { "bad_" #name, __FILE__, bad_##name, seconds, NULL };      \
        if (getenv("HARNESS_BAD"))                                                                 \
            test_register(&test);                                                                  \
    }                                                                                              \
    static void bad_##name(void)

TEST(good_passes) {
    ASSERT_EQ(1, 1);
    ASSERT_STR_EQ("a", "a");
    ASSERT_OK(0);
    ASSERT_ERR(-EINVAL, -EINVAL);
}

TEST(good_directory_is_there) {
    struct stat st;

    ASSERT_CALL(stat(test_directory(), &st));
    ASSERT_TRUE(S_ISDIR(st.st_mode));
    ASSERT_STR_EQ(test_directory(), test_directory());
}

BAD(compare, 5) {
    int left = 41;
    ASSERT_EQ(left, 42);
}

BAD(string, 5) {
    ASSERT_STR_EQ("left", "right");
}

BAD(errno, 5) {
    ASSERT_OK(-ENOENT);
}

BAD(bytes, 5) {
    ASSERT_MEM_EQ("abc", 3, "abd", 3);
}

/* The child's failure must count though its parent does not look. */
BAD(in_a_forked_child, 5) {
    pid_t pid = fork();

    if (pid == 0)
        ASSERT_EQ(7, 8);
    waitpid(pid, NULL, 0);
}

BAD(signal, 5) {
    puts("words before the end");
    fflush(stdout);
    raise(SIGSEGV);
}

BAD(exit, 5) {
    exit(3);
}

BAD(timeout, 1) {
    for (;;)
        pause();
}

BAD(skip, 5) {
    SKIP("unicorn", "there is none on %s", "earth");
}
