/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unit harness. A test program is one file of cases linked with test.c:
 *
 *     #include "test.h"
 *
 *     TEST(sum_of_two) {
 *         ASSERT_EQ(1 + 1, 2);
 *     }
 *
 * Each case runs in a process and a process group of its own, with standard input at end of file
 * and a time limit; what it wrote is shown only if it failed. A failed assertion is kept in memory
 * shared with the harness, so one in a process that the case forked fails the case even if nobody
 * looks at that process's status. Results are TAP. Arguments are the names of cases to run; --list
 * prints them.
 *
 * A skip names what the machine lacks (one word) and says why. With ROLLBOX_MUST_WORK=1 it is a
 * failure, unless the word is in the comma-separated list ROLLBOX_MUST_WORK_EXCEPT.
 */
#ifndef ROLLBOX_TESTS_UNIT_TEST_H
#define ROLLBOX_TESTS_UNIT_TEST_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct test_case {
    const char *name;
    const char *file;
    void (*run)(void);
    int timeout_s;
    struct test_case *next;
};

void test_register(struct test_case *test);

#define TEST(name) TEST_TIMEOUT(name, 30)
#define TEST_TIMEOUT(name, seconds)                                                                \
    static void test_##name(void);                                                                 \
    __attribute__((constructor)) static void register_##name(void) {                               \
        static struct test_case test = { #name, __FILE__, test_##name, seconds, NULL };            \
        test_register(&test);                                                                      \
    }                                                                                              \
    static void test_##name(void)

/* The case ends here, as failed or skipped. Both may be called from a process that the case forked.
 */
__attribute__((format(printf, 3, 4), noreturn)) void test_fail(
    const char *file, int line, const char *format, ...);
__attribute__((format(printf, 2, 3), noreturn)) void test_skip(
    const char *need, const char *format, ...);

/* A directory for this case, made at the first call and removed with its content when the case
 * has ended. */
const char *test_directory(void);
/* The same, in memory where there is room: for tens of thousands of files, which on a disk take a
 * minute of its time and ten times the processor's. A case uses one of the two. */
const char *test_directory_in_memory(void);

#define FAIL(...) test_fail(__FILE__, __LINE__, __VA_ARGS__)
#define SKIP(need, ...) test_skip(need, __VA_ARGS__)

void test_compare(const char *file, int line, const char *expression, intmax_t left, intmax_t right,
    const char *relation, bool holds);
void test_strings(const char *file, int line, const char *expression, const char *left,
    const char *right, bool want_equal);
void test_bytes(const char *file, int line, const char *expression, const void *left,
    size_t left_length, const void *right, size_t right_length);
void test_contains(
    const char *file, int line, const char *expression, const char *text, const char *part);
void test_result(
    const char *file, int line, const char *expression, intmax_t result, intmax_t want);

#define ASSERT_TRUE(e) ((e) ? (void)0 : FAIL("%s is false", #e))
#define ASSERT_FALSE(e) ((e) ? FAIL("%s is true", #e) : (void)0)
#define ASSERT_NULL(p)                                                                             \
    ({                                                                                             \
        const void *p_ = (p);                                                                      \
        p_ ? FAIL("%s is %p, not NULL", #p, p_) : (void)0;                                         \
    })
#define ASSERT_NOT_NULL(p) ((p) ? (void)0 : FAIL("%s is NULL", #p))

/* Integers, each evaluated once; both values are printed. */
#define TEST_COMPARE(a, relation, b)                                                               \
    ({                                                                                             \
        intmax_t a_ = (intmax_t)(a), b_ = (intmax_t)(b);                                           \
        test_compare(                                                                              \
            __FILE__, __LINE__, #a " " #relation " " #b, a_, b_, #relation, a_ relation b_);       \
    })
#define ASSERT_EQ(a, b) TEST_COMPARE(a, ==, b)
#define ASSERT_NE(a, b) TEST_COMPARE(a, !=, b)
#define ASSERT_LT(a, b) TEST_COMPARE(a, <, b)
#define ASSERT_LE(a, b) TEST_COMPARE(a, <=, b)
#define ASSERT_GT(a, b) TEST_COMPARE(a, >, b)
#define ASSERT_GE(a, b) TEST_COMPARE(a, >=, b)

/* Strings; NULL equals NULL only. */
#define ASSERT_STR_EQ(a, b) test_strings(__FILE__, __LINE__, #a " equals " #b, a, b, true)
#define ASSERT_STR_NE(a, b) test_strings(__FILE__, __LINE__, #a " differs from " #b, a, b, false)
#define ASSERT_STR_CONTAINS(text, part)                                                            \
    test_contains(__FILE__, __LINE__, #text " contains " #part, text, part)
#define ASSERT_MEM_EQ(a, a_length, b, b_length)                                                    \
    test_bytes(__FILE__, __LINE__, #a " equals " #b, a, a_length, b, b_length)

/* Results in the -errno convention: a success (>= 0), or just this failure (-EINVAL). */
#define ASSERT_OK(r) test_result(__FILE__, __LINE__, #r, (intmax_t)(r), 0)
#define ASSERT_ERR(r, negative_errno)                                                              \
    test_result(__FILE__, __LINE__, #r, (intmax_t)(r), negative_errno)
/* A call that returns -1 and sets errno. */
#define ASSERT_CALL(r)                                                                             \
    ({                                                                                             \
        intmax_t r_ = (intmax_t)(r);                                                               \
        if (r_ < 0)                                                                                \
            FAIL("%s: %s (%s)", #r, strerror(errno), strerrorname_np(errno));                      \
        r_;                                                                                        \
    })

#endif
