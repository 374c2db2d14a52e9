/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MEMORY "/dev/shm"
#define MEMORY_LEAST (256u << 20)

enum state { PASSED, FAILED, SKIPPED };

/* Shared by the harness, the case and all that it forks. The first to fail or skip says why. */
struct report {
    _Atomic int claimed;
    _Atomic int state;
    char message[4096];
    char directory[256];
};

static struct test_case *first_test, **last_test = &first_test;
static struct report *report;
static pid_t case_pid;

void test_register(struct test_case *test) {
    *last_test = test;
    last_test = &test->next;
}

__attribute__((format(printf, 2, 0))) static void finish(
    enum state state, const char *format, va_list args) {
    int unclaimed = 0;

    if (atomic_compare_exchange_strong(&report->claimed, &unclaimed, 1)) {
        vsnprintf(report->message, sizeof report->message, format, args);
        atomic_store(&report->state, state);
    }
    /* _exit: a forked child must not run the exit handlers of the case, and a failed case has
     * nothing left to check. */
    fflush(NULL);
    _exit(state == FAILED ? 1 : 0);
}

__attribute__((format(printf, 2, 3))) static void finish_printf(
    enum state state, const char *format, ...) {
    va_list args;

    va_start(args, format);
    finish(state, format, args);
    va_end(args);
}

void test_fail(const char *file, int line, const char *format, ...) {
    char text[3500];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    finish_printf(FAILED, "%s:%d: %s", file, line, text);
    abort();
}

/* Is the word one of a comma-separated list? */
static bool listed(const char *list, const char *word) {
    size_t length = strlen(word);

    while (list && *list) {
        size_t n = strcspn(list, ",");

        if (n == length && memcmp(list, word, n) == 0)
            return true;
        list += n + (list[n] == ',');
    }
    return false;
}

void test_skip(const char *need, const char *format, ...) {
    const char *must = getenv("ROLLBOX_MUST_WORK");
    char text[3500];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (must && strcmp(must, "1") == 0 && !listed(getenv("ROLLBOX_MUST_WORK_EXCEPT"), need))
        finish_printf(
            FAILED, "would be skipped (needs %s: %s), but ROLLBOX_MUST_WORK=1", need, text);
    finish_printf(SKIPPED, "needs %s: %s", need, text);
    abort();
}

static const char *new_directory(const char *base) {
    if (!report->directory[0]) {
        snprintf(report->directory, sizeof report->directory, "%s/rollbox-test-XXXXXX", base);
        if (!mkdtemp(report->directory))
            FAIL("mkdtemp %s: %m", report->directory);
    }
    return report->directory;
}

const char *test_directory(void) {
    const char *base = getenv("TMPDIR");

    return new_directory(base && *base ? base : "/tmp");
}

const char *test_directory_in_memory(void) {
    struct statvfs memory;

    if (statvfs(MEMORY, &memory) < 0 ||
        (uint64_t)memory.f_bavail * memory.f_frsize < MEMORY_LEAST || access(MEMORY, W_OK) < 0)
        return test_directory();
    return new_directory(MEMORY);
}

void test_compare(const char *file, int line, const char *expression, intmax_t left, intmax_t right,
    const char *relation, bool holds) {
    if (!holds)
        test_fail(file, line, "%s: %jd (%#jx) %s %jd (%#jx) does not hold", expression, left,
            (uintmax_t)left, relation, right, (uintmax_t)right);
}

static const char *quote_of(const char *text) {
    return text ? "\"" : "";
}

static const char *shown(const char *text) {
    return text ? text : "NULL";
}

void test_strings(const char *file, int line, const char *expression, const char *left,
    const char *right, bool want_equal) {
    bool equal = left && right ? strcmp(left, right) == 0 : left == right;

    if (equal != want_equal)
        test_fail(file, line, "%s: left is %s%s%s, right is %s%s%s", expression, quote_of(left),
            shown(left), quote_of(left), quote_of(right), shown(right), quote_of(right));
}

void test_contains(
    const char *file, int line, const char *expression, const char *text, const char *part) {
    if (!text || !strstr(text, part))
        test_fail(file, line, "%s: \"%s\" is not in %s%s%s", expression, part, quote_of(text),
            shown(text), quote_of(text));
}

static void hex(char *to, size_t capacity, const unsigned char *data, size_t length) {
    size_t used = 0;

    to[0] = '\0';
    for (size_t i = 0; i < length && used + 4 < capacity; i++)
        used += (size_t)snprintf(to + used, capacity - used, "%02x ", data[i]);
}

void test_bytes(const char *file, int line, const char *expression, const void *left,
    size_t left_length, const void *right, size_t right_length) {
    const unsigned char *a = left, *b = right;
    char a_hex[100], b_hex[100];
    size_t at = 0;

    if (left_length == right_length && (left_length == 0 || memcmp(left, right, left_length) == 0))
        return;
    while (at < left_length && at < right_length && a[at] == b[at])
        at++;
    hex(a_hex, sizeof a_hex, a + at, left_length - at);
    hex(b_hex, sizeof b_hex, b + at, right_length - at);
    test_fail(file, line, "%s: lengths %zu and %zu, first difference at byte %zu: %sagainst %s",
        expression, left_length, right_length, at, a_hex, b_hex);
}

static const char *errno_name(intmax_t result) {
    const char *name = result < 0 && result > -4096 ? strerrorname_np((int)-result) : NULL;

    return name ? name : "no errno";
}

void test_result(
    const char *file, int line, const char *expression, intmax_t result, intmax_t want) {
    if (want < 0 ? result == want : result >= 0)
        return;
    if (want < 0)
        test_fail(file, line, "%s returned %jd (%s), not %jd (%s)", expression, result,
            errno_name(result), want, errno_name(want));
    test_fail(file, line, "%s returned %jd: %s (%s)", expression, result,
        result > -4096 ? strerror((int)-result) : "not an errno", errno_name(result));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk) {
    (void)st;
    (void)walk;
    if (type == FTW_DP)
        rmdir(path);
    else
        unlink(path);
    return 0;
}

/* The case's process: runs it and ends by exit(), so that a leak checker sees the end of an
 * ordinary program. */
static void run_case(const struct test_case *test, int output) __attribute__((noreturn));
static void run_case(const struct test_case *test, int output) {
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    case_pid = getpid();
    if (null < 0 || dup2(null, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0)
        _exit(99);
    close(null);
    close(output);
    test->run();
    if (getpid() != case_pid)
        FAIL("a process forked by the case came back from it");
    exit(0);
}

/* Every line as a TAP comment. */
static void print_comment(const char *text, size_t length) {
    while (length) {
        size_t n = strcspn(text, "\n");

        n = n < length ? n : length;
        printf("# %.*s\n", (int)n, text);
        text += n;
        length -= n;
        if (length) {
            text++;
            length--;
        }
    }
}

static void print_output(int output) {
    static char text[65537];
    ssize_t n = pread(output, text, sizeof text - 1, 0);

    if (n > 0) {
        text[n] = '\0';
        print_comment(text, (size_t)n);
    }
}

/* Returns whether the case passed or was skipped. */
static bool supervise(const struct test_case *test, int number) {
    char why[200] = "";
    int status, output;

    memset(report, 0, sizeof *report);
    output = memfd_create("output", MFD_CLOEXEC);
    /* Appending keeps the lines of several processes apart. */
    if (output < 0 || fcntl(output, F_SETFL, O_APPEND) < 0)
        return perror("memfd_create"), false;
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0)
        return perror("fork"), false;
    if (pid == 0) {
        signal(SIGHUP, SIG_DFL); /* nohup(1) has it ignored, and cases are about it */
        run_case(test, output);
    }
    setpgid(pid, pid);
    struct pollfd end = { .fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN };
    if (end.fd < 0)
        return perror("pidfd_open"), false;
    bool timed_out = poll(&end, 1, test->timeout_s * 1000) == 0;
    /* The group dies with the case, also what it forgot; its pid is ours until waited for. */
    kill(-pid, SIGKILL);
    kill(pid, timed_out ? SIGKILL : 0);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    close(end.fd);

    enum state state = (enum state)atomic_load(&report->state);
    if (timed_out)
        snprintf(why, sizeof why, "timed out after %d s", test->timeout_s);
    else if (WIFSIGNALED(status))
        snprintf(why, sizeof why, "killed by signal %d (%s)", WTERMSIG(status),
            sigdescr_np(WTERMSIG(status)));
    else if (WEXITSTATUS(status) != 0 && state != FAILED)
        snprintf(why, sizeof why, "exited with %d", WEXITSTATUS(status));
    if (why[0])
        state = FAILED;
    if (state == SKIPPED) {
        report->message[strcspn(report->message, "\n")] = '\0';
        printf("ok %d - %s # SKIP %s\n", number, test->name, report->message);
    } else {
        printf("%s %d - %s\n", state == PASSED ? "ok" : "not ok", number, test->name);
    }
    if (state == FAILED) {
        if (report->message[0])
            print_comment(report->message, strnlen(report->message, sizeof report->message));
        if (why[0])
            printf("# %s: %s\n", test->file, why);
        print_output(output);
    }
    close(output);
    if (report->directory[0])
        nftw(report->directory, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    return state != FAILED;
}

static bool wanted(const struct test_case *test, char **names) {
    if (!*names)
        return true;
    for (; *names; names++)
        if (strcmp(*names, test->name) == 0)
            return true;
    return false;
}

int main(int argc, char **argv) {
    int number = 0, failed = 0;

    report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED)
        return perror("mmap"), 1;
    bool list = argc == 2 && strcmp(argv[1], "--list") == 0;
    for (struct test_case *test = first_test; test; test = test->next) {
        if (list)
            puts(test->name);
        else if (wanted(test, argv + 1))
            failed += !supervise(test, ++number);
    }
    if (!list)
        printf("1..%d\n", number);
    if (!list && number == 0)
        return fprintf(stderr, "no such case\n"), 1;
    return failed ? 1 : 0;
}
