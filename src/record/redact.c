/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules that remove secrets before anything is hashed or written.
 *
 * A name stands for the value of that variable in any command: "[redacted:NAME]" replaces the same
 * bytes everywhere. A pattern is an extended regular expression over bytes, matched line by line as
 * grep does. Encoded secrets (base64, one character per line) are not found.
 *
 * The text is the guest's. glibc's matcher tries every position of a line to its end, so "a.*b"
 * takes time quadratic in the length of a line of a's, and it never frees its states. So a child
 * process with limited CPU time and memory searches text longer than MAX_DIRECT. The limits suffice
 * for any text that was not made to exceed them; otherwise the text is withheld. Shorter text
 * cannot create many states before the patterns are compiled again.
 */
#include <errno.h>
#include <poll.h>
#include <regex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/pattern.h"
#include "record/record.h"
#include "sys/syscalls.h"

#define SECRET_LEAST 4 /* bytes: shorter ones are everywhere */
#define MAX_SECRETS 256
#define MAX_LINE (1u << 20)
#define MAX_DIRECT 1024u
#define AGAIN_AFTER 16384u /* bytes that patterns were matched with here */
#define WAIT_MS 100
#define CHILD_US 300000u    /* of processor time, plus: */
#define CHILD_NS_A_BYTE 50u /* for each pattern: several times the time that matching takes */
#define CHILD_MEMORY (512u << 20)

#define MARK_PATTERN                                                                               \
    255 /* else a byte that is taken out has the number of the variable's name, from 1 */

struct secret {
    size_t name;
    char *value;
};

struct rules {
    char *names[RECORD_MAX_RULES];
    char *sources[RECORD_MAX_RULES];
    regex_t patterns[RECORD_MAX_RULES];
    struct secret secrets[MAX_SECRETS];
    size_t n_names, n_patterns, n_secrets, matched;
    void (*on_wait)(void *data);
    void *on_wait_data;
};

int rules_new(struct rules **ret_rules) {
    *ret_rules = calloc(1, sizeof **ret_rules);
    return *ret_rules ? 0 : -ENOMEM;
}

struct rules *rules_free(struct rules *rules) {
    if (!rules)
        return NULL;
    for (size_t i = 0; i < rules->n_names; i++)
        free(rules->names[i]);
    for (size_t i = 0; i < rules->n_patterns; i++) {
        regfree(&rules->patterns[i]);
        free(rules->sources[i]);
    }
    for (size_t i = 0; i < rules->n_secrets; i++)
        free(rules->secrets[i].value);
    free(rules);
    return NULL;
}

void rules_on_wait(struct rules *rules, void (*on_wait)(void *data), void *data) {
    rules->on_wait = on_wait;
    rules->on_wait_data = data;
}

int rules_add_name(struct rules *rules, const char *name) {
    if (rules->n_names == ARRAY_SIZE(rules->names))
        return -E2BIG;
    char *copy = strdup(name);
    if (!copy)
        return -ENOMEM;
    rules->names[rules->n_names++] = copy;
    return 0;
}

int rules_add_pattern(struct rules *rules, const char *pattern, struct rollbox_error *error) {
    char why[PATTERN_WHY];

    if (rules->n_patterns == ARRAY_SIZE(rules->patterns) || strlen(pattern) > RECORD_MAX_RULE)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "arguments",
            "redaction: at most %d patterns of %d bytes", RECORD_MAX_RULES, RECORD_MAX_RULE);
    if (pattern_check(pattern, why) < 0)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "redaction: \"%.100s\" %s", pattern, why);
    char *source = strdup(pattern);
    if (!source || regcomp(&rules->patterns[rules->n_patterns], pattern, REG_EXTENDED)) {
        free(source);
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
    }
    rules->sources[rules->n_patterns++] = source;
    return 0;
}

/* If the name, which need not be terminated, is one of the rules', and the value long enough. */
static int learn_value(struct rules *rules, const char *name, size_t length, const char *value) {
    if (strlen(value) < SECRET_LEAST)
        return 0;
    for (size_t i = 0; i < rules->n_names; i++) {
        if (strlen(rules->names[i]) != length || memcmp(rules->names[i], name, length))
            continue;
        for (size_t k = 0; k < rules->n_secrets; k++)
            if (!strcmp(rules->secrets[k].value, value))
                return 0;
        if (rules->n_secrets == ARRAY_SIZE(rules->secrets))
            return -E2BIG;
        struct secret secret = { i, strdup(value) };
        if (!secret.value)
            return -ENOMEM;
        /* The longest first: one may be in another. */
        size_t at = rules->n_secrets++;
        for (; at && strlen(rules->secrets[at - 1].value) < strlen(value); at--)
            rules->secrets[at] = rules->secrets[at - 1];
        rules->secrets[at] = secret;
        return 0;
    }
    return 0;
}

int rules_learn(struct rules *rules, const char *variable) {
    size_t length = strcspn(variable, "=");

    return learn_value(rules, variable, length, variable + length + (variable[length] == '='));
}

int rules_learn_from(struct rules *rules, const struct rules *others) {
    int r = 0;

    for (size_t i = 0; i < others->n_secrets && r == 0; i++) {
        const char *name = others->names[others->secrets[i].name];

        r = learn_value(rules, name, strlen(name), others->secrets[i].value);
    }
    return r;
}

bool rules_any(const struct rules *rules) {
    return rules && (rules->n_secrets || rules->n_patterns);
}

/* All rules see the original text: one rule must not hide from another rule the text around its
 * match. */
struct marked {
    const char *text;
    size_t length;
    uint8_t *marks; /* of each byte; 0: it stays */
};

static void mark_range(const struct marked *marked, size_t start, size_t end, uint8_t with) {
    for (size_t i = start; i < end; i++)
        if (!marked->marks[i])
            marked->marks[i] = with;
}

/* Of a text that was cut off the secret's beginning may be the end. */
static size_t begun_at_end(const char *secret, size_t length, const struct marked *marked) {
    size_t n = MIN(length - 1, marked->length);

    while (n >= SECRET_LEAST && memcmp(marked->text + marked->length - n, secret, n))
        n--;
    return n >= SECRET_LEAST ? n : 0;
}

static void find_secret(const struct secret *secret, const struct marked *marked, bool is_cut) {
    const uint8_t with = (uint8_t)(secret->name + 1);
    size_t length = strlen(secret->value), at = 0;

    for (const char *found;
         (found = memmem(marked->text + at, marked->length - at, secret->value, length));
         at = (size_t)(found - marked->text) + length)
        mark_range(
            marked, (size_t)(found - marked->text), (size_t)(found - marked->text) + length, with);
    if (is_cut)
        mark_range(marked, marked->length - begun_at_end(secret->value, length, marked),
            marked->length, with);
}

/* 0; -ENOMEM, which does not mean "no match". */
static int match_line(
    const regex_t *pattern, const struct marked *marked, size_t start, size_t length) {
    const char *line = marked->text + start;

    for (size_t at = 0; at < length;) {
        regmatch_t match = { .rm_so = (regoff_t)at, .rm_eo = (regoff_t)length };

        int r = regexec(pattern, line, 1, &match, REG_STARTEND | (at ? REG_NOTBOL : 0));

        if (r)
            return r == REG_NOMATCH ? 0 : -ENOMEM;
        mark_range(marked, start + (size_t)match.rm_so, start + (size_t)match.rm_eo, MARK_PATTERN);
        at = (size_t)match.rm_eo + (match.rm_eo == match.rm_so);
    }
    return 0;
}

static int match_lines(const regex_t *pattern, const struct marked *marked) {
    for (size_t at = 0; at < marked->length;) {
        const char *line = marked->text + at, *newline = memchr(line, '\n', marked->length - at);
        size_t length = newline ? (size_t)(newline - line) : marked->length - at;

        int r = length > MAX_LINE ? -EFBIG : match_line(pattern, marked, at, length);
        if (r < 0)
            return r;
        at += length + 1;
    }
    return 0;
}

static int match_here(const struct rules *rules, const struct marked *marked) {
    int r = 0;

    for (size_t i = 0; i < rules->n_patterns && r == 0; i++)
        r = match_lines(&rules->patterns[i], marked);
    return r;
}

static int compile_again(struct rules *rules) {
    for (size_t i = 0; i < rules->n_patterns; i++) {
        regex_t again;

        if (regcomp(&again, rules->sources[i], REG_EXTENDED))
            return -ENOMEM;
        regfree(&rules->patterns[i]);
        rules->patterns[i] = again;
    }
    rules->matched = 0;
    return 0;
}

_Noreturn static void be_child(
    const struct rules *rules, const struct marked *marked, pid_t parent) {
    const uint64_t us =
        CHILD_US + (uint64_t)marked->length * rules->n_patterns * CHILD_NS_A_BYTE / 1000;
    const struct itimerval until = { .it_value = { .tv_sec = (time_t)(us / 1000000),
                                         .tv_usec = (suseconds_t)(us % 1000000) } };
    auto_buf struct buf statm = BUF_INIT;
    sigset_t none;

    signal(SIGPROF, SIG_DFL);
    sigemptyset(&none);
    if (fd_read_file("/proc/self/statm", 4096, &statm) < 0)
        _exit(1);
    const rlim_t memory =
        (rlim_t)(strtoull(statm.data, NULL, 10) * (unsigned long long)sysconf(_SC_PAGESIZE) +
                 CHILD_MEMORY);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent ||
        sigprocmask(SIG_SETMASK, &none, NULL) < 0 || setitimer(ITIMER_PROF, &until, NULL) < 0 ||
        setrlimit(RLIMIT_AS, &(struct rlimit){ memory, memory }) < 0)
        _exit(1);
    _exit(match_here(rules, marked) < 0);
}

/* Its exit status, or -errno. */
static int wait_for(const struct rules *rules, pid_t child) {
    auto_close int pidfd = sys_pidfd_open(child, 0);
    struct pollfd ended = { .fd = pidfd, .events = POLLIN };
    int status;

    while (pidfd >= 0 && poll(&ended, 1, WAIT_MS) == 0)
        if (rules->on_wait)
            rules->on_wait(rules->on_wait_data);
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return status;
}

/* By a child, which shares the marks; -EFBIG: it did not get to the end. */
static int match_apart(const struct rules *rules, const struct marked *marked) {
    pid_t parent = getpid(), child = fork();

    if (child == 0)
        be_child(rules, marked, parent);
    return child < 0 || wait_for(rules, child) ? -EFBIG : 0;
}

/* 0, -ENOMEM or -EFBIG. */
static int find_all(struct rules *rules, const struct marked *marked, bool is_cut) {
    for (size_t i = 0; i < rules->n_secrets; i++)
        find_secret(&rules->secrets[i], marked, is_cut);
    if (!rules->n_patterns)
        return 0;
    if (marked->length > MAX_DIRECT)
        return match_apart(rules, marked);
    rules->matched += marked->length;
    int r = rules->matched > AGAIN_AFTER ? compile_again(rules) : 0;
    return r < 0 ? r : match_here(rules, marked);
}

/* Adjacent matches are replaced by one mark. */
static void add_unmarked(const struct rules *rules, const struct marked *marked, struct buf *to) {
    for (size_t at = 0, end; at < marked->length; at = end) {
        const uint8_t with = marked->marks[at];

        for (end = at; end < marked->length && !marked->marks[end] == !with; end++)
            ;
        if (!with)
            buf_add(to, marked->text + at, end - at);
        else if (with == MARK_PATTERN)
            buf_add_text(to, "[redacted]");
        else
            buf_printf(to, "[redacted:%s]", rules->names[with - 1]);
    }
}

int rules_apply(struct rules *rules, const char *data, size_t length, bool is_cut, struct buf *to) {
    uint8_t few[MAX_DIRECT] = { 0 };
    auto_buf struct buf text = BUF_INIT;

    buf_add(&text, length ? data : "",
        length); /* regexec takes a string, and checking tools read it up to its NUL */
    struct marked marked = { .text = text.data ? text.data : "", .length = length, .marks = few };
    if (buf_failed(&text))
        return -ENOMEM;
    if (length > sizeof few)
        marked.marks =
            mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (marked.marks == MAP_FAILED)
        return -ENOMEM;
    int r = find_all(rules, &marked, is_cut);
    if (r == 0)
        add_unmarked(rules, &marked, to);
    if (marked.marks != few)
        munmap(marked.marks, length);
    if (r < 0)
        return r;
    return buf_failed(to) ? -ENOMEM : 0;
}
