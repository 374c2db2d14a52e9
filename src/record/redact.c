/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules by which secrets are taken out before anything is hashed or written.
 *
 * A name stands for the value that a variable of that name has in any command: wherever the same bytes occur, "[redacted:NAME]" takes their place. A pattern is an extended regular expression over bytes, matched line by line as grep
 * does. What encodes a secret (base64, one character a line) is not found.
 *
 * The text is the guest's, and glibc's matcher tries every place of a line to its end: "a.*b" takes the square of a line of a's, and its states, which it never forgets, take memory. So what is longer than DIRECT_MOST is looked
 * through by a child, with processor time and memory that suffice for any text which is not made to take more, and withheld if they do not; and what is shorter cannot have collected many states when the patterns are compiled anew.
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

#define SECRET_LEAST 4          /* bytes: shorter ones are everywhere */
#define SECRETS_MOST 256
#define LINE_MOST (1u << 20)
#define DIRECT_MOST 4096u
#define AGAIN_AFTER 16384u      /* bytes that patterns were matched with here */
#define WAIT_MS 100
#define CHILD_US 300000u        /* of processor time, and besides: */
#define CHILD_NS_A_BYTE 50u     /* of each pattern: several times what matching takes */
#define CHILD_MEMORY (512u << 20)

struct secret {
    char *name, *value;
};

struct rules {
    char *names[RECORD_RULES_MOST];
    char *sources[RECORD_RULES_MOST];
    regex_t patterns[RECORD_RULES_MOST];
    struct secret secrets[SECRETS_MOST];
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
    for (size_t i = 0; i < rules->n_secrets; i++) {
        free(rules->secrets[i].name);
        free(rules->secrets[i].value);
    }
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

    if (rules->n_patterns == ARRAY_SIZE(rules->patterns) || strlen(pattern) > RECORD_RULE_MOST)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "arguments", "redaction: at most %d patterns of %d bytes", RECORD_RULES_MOST, RECORD_RULE_MOST);
    if (pattern_check(pattern, why) < 0)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "redaction: \"%.100s\" %s", pattern, why);
    char *source = strdup(pattern);
    if (!source || regcomp(&rules->patterns[rules->n_patterns], pattern, REG_EXTENDED)) {
        free(source);
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
    }
    rules->sources[rules->n_patterns++] = source;
    return 0;
}

int rules_learn(struct rules *rules, const char *variable) {
    size_t length = strcspn(variable, "=");
    const char *value = variable + length + (variable[length] == '=');

    if (strlen(value) < SECRET_LEAST)
        return 0;
    for (size_t i = 0; i < rules->n_names; i++) {
        if (strlen(rules->names[i]) != length || memcmp(rules->names[i], variable, length))
            continue;
        for (size_t k = 0; k < rules->n_secrets; k++)
            if (!strcmp(rules->secrets[k].value, value))
                return 0;
        if (rules->n_secrets == ARRAY_SIZE(rules->secrets))
            return -E2BIG;
        struct secret secret = { strdup(rules->names[i]), strdup(value) };
        if (!secret.name || !secret.value) {
            free(secret.name);
            free(secret.value);
            return -ENOMEM;
        }
        /* The longest first: one may be in another. */
        size_t at = rules->n_secrets++;
        for (; at && strlen(rules->secrets[at - 1].value) < strlen(value); at--)
            rules->secrets[at] = rules->secrets[at - 1];
        rules->secrets[at] = secret;
        return 0;
    }
    return 0;
}

bool rules_any(const struct rules *rules) {
    return rules && (rules->n_secrets || rules->n_patterns);
}

/* Of a text that was cut off the secret's beginning may be the end. */
static size_t begun_at_end(const char *secret, size_t length, const char *text, size_t text_length) {
    size_t n = MIN(length - 1, text_length);

    while (n >= SECRET_LEAST && memcmp(text + text_length - n, secret, n))
        n--;
    return n >= SECRET_LEAST ? n : 0;
}

static void take_out(const struct secret *secret, const struct buf *from, bool is_cut, struct buf *to) {
    const char *at = from->data, *end = from->data + from->length;
    size_t length = strlen(secret->value);

    for (const char *found; (found = memmem(at, (size_t)(end - at), secret->value, length)); at = found + length) {
        buf_add(to, at, (size_t)(found - at));
        buf_printf(to, "[redacted:%s]", secret->name);
    }
    size_t begun = is_cut ? begun_at_end(secret->value, length, at, (size_t)(end - at)) : 0;
    buf_add(to, at, (size_t)(end - at) - begun);
    if (begun)
        buf_printf(to, "[redacted:%s]", secret->name);
}

static void match_line(const regex_t *pattern, const char *line, size_t length, struct buf *to) {
    size_t at = 0;

    while (at < length) {
        regmatch_t match = { .rm_so = (regoff_t)at, .rm_eo = (regoff_t)length };

        if (regexec(pattern, line, 1, &match, REG_STARTEND | (at ? REG_NOTBOL : 0)))
            break;
        size_t start = (size_t)match.rm_so, end = (size_t)match.rm_eo;
        buf_add(to, line + at, start - at);
        if (end > start) {
            buf_add_text(to, "[redacted]");
            at = end;
        } else if (end < length) {
            buf_add(to, line + end, 1);
            at = end + 1;
        } else {
            return;
        }
    }
    buf_add(to, line + at, length - at);
}

static int match_lines(const regex_t *pattern, const struct buf *from, struct buf *to) {
    const char *line = from->data, *end = from->data + from->length;

    while (line < end) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t length = newline ? (size_t)(newline - line) : (size_t)(end - line);

        if (length > LINE_MOST)
            return -EFBIG;
        match_line(pattern, line, length, to);
        if (newline)
            buf_add(to, "\n", 1);
        line += length + (newline != NULL);
    }
    return 0;
}

/* All patterns, one after the other. */
static int match_here(const struct rules *rules, struct buf *text) {
    int r = 0;

    for (size_t i = 0; i < rules->n_patterns && r == 0 && !buf_failed(text) && text->length; i++) {
        struct buf next = BUF_INIT;

        r = match_lines(&rules->patterns[i], text, &next);
        buf_done(text);
        *text = next;
    }
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

_Noreturn static void be_child(const struct rules *rules, struct buf *text, int file, pid_t parent) {
    const uint64_t us = CHILD_US + (uint64_t)text->length * rules->n_patterns * CHILD_NS_A_BYTE / 1000;
    const struct itimerval until = { .it_value = { .tv_sec = (time_t)(us / 1000000), .tv_usec = (suseconds_t)(us % 1000000) } };
    auto_buf struct buf statm = BUF_INIT;
    sigset_t none;

    signal(SIGPROF, SIG_DFL);
    sigemptyset(&none);
    if (fd_read_file("/proc/self/statm", 4096, &statm) < 0)
        _exit(1);
    const rlim_t memory = (rlim_t)(strtoull(statm.data, NULL, 10) * (unsigned long long)sysconf(_SC_PAGESIZE) + CHILD_MEMORY + 16ull * text->length);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent || sigprocmask(SIG_SETMASK, &none, NULL) < 0 || setitimer(ITIMER_PROF, &until, NULL) < 0 ||
        setrlimit(RLIMIT_AS, &(struct rlimit){ memory, memory }) < 0)
        _exit(1);
    _exit(match_here(rules, text) < 0 || buf_failed(text) || fd_write_all(file, text->length ? text->data : "", text->length) < 0);
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

/* By a child; -EFBIG: it did not get to the end. */
static int match_apart(const struct rules *rules, struct buf *text) {
    auto_close int file = memfd_create("rollbox-redacted", MFD_CLOEXEC);
    pid_t parent = getpid(), child = file < 0 ? -1 : fork();
    struct buf clean = BUF_INIT;

    if (child == 0)
        be_child(rules, text, file, parent);
    if (child < 0)
        return -EFBIG;
    if (wait_for(rules, child) || lseek(file, 0, SEEK_SET) < 0)
        return -EFBIG;
    int r = fd_read_all(file, SIZE_MAX / 2, &clean);
    buf_done(text);
    *text = clean;
    return r < 0 ? r : 0;
}

int rules_apply(struct rules *rules, const char *data, size_t length, bool is_cut, struct buf *to) {
    struct buf now = BUF_INIT;
    int r = 0;

    buf_add(&now, length ? data : "", length);
    for (size_t i = 0; i < rules->n_secrets && !buf_failed(&now) && now.length; i++) {
        struct buf next = BUF_INIT;

        take_out(&rules->secrets[i], &now, is_cut, &next);
        buf_done(&now);
        now = next;
    }
    if (rules->n_patterns && !buf_failed(&now) && now.length > DIRECT_MOST) {
        r = match_apart(rules, &now);
    } else if (rules->n_patterns && !buf_failed(&now)) {
        rules->matched += now.length;
        r = rules->matched > AGAIN_AFTER ? compile_again(rules) : 0;
        if (r == 0)
            r = match_here(rules, &now);
    }
    if (r == 0 && buf_failed(&now))
        r = -ENOMEM;
    if (r == 0)
        buf_add(to, now.length ? now.data : "", now.length);
    buf_done(&now);
    return r;
}
