/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quotas: how much a tenant may have at once (levels), and how fast (starts, rate).
 *
 * Amounts are vectors over the same names. The amounts of a sandbox are the limits of its policy,
 * because it may use that much at any time. A policy without max_cpu may use all processors of the
 * machine.
 *
 * `starts` counts runs, sandboxes, forks and commands within one day (UTC). `rate` is a token
 * bucket: so many starts a second, and `burst` at once. A fork of more clones than `burst` needs a
 * full bucket and leaves it in debt, so it is possible, and is paid for afterwards.
 *
 * Nothing here reads a clock or the machine: tests give both.
 */
#ifndef ROLLBOX_SERVE_QUOTA_H
#define ROLLBOX_SERVE_QUOTA_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum quota {
    QUOTA_SANDBOXES,
    QUOTA_RUNNING, /* runs and commands */
    QUOTA_MEMORY,  /* bytes */
    QUOTA_CPUS,    /* thousandths */
    QUOTA_DISK,    /* bytes */
#define QUOTA_LEVELS (QUOTA_DISK + 1)
    QUOTA_STARTS = QUOTA_LEVELS,
    QUOTA_RATE,   /* thousandths a second */
    QUOTA_BURST,  /* no limit of its own: the bucket of `rate` */
    QUOTA_QUEUED, /* runs and sandboxes that wait in the server */
    QUOTA_N,
};
#define QUOTA_NONE UINT64_MAX /* no limit */

struct amounts {
    uint64_t of[QUOTA_N];
};

/* What a tenant has, and how many requests its quotas have refused. */
struct quota_use {
    struct amounts now; /* levels, and the starts of `day` */
    struct amounts refused;
    int64_t day;                   /* since 1970 */
    int64_t bucket_ns, bucket_one; /* when it was filled last; thousandths of a start */
    bool has_bucket;
};

struct quota_verdict {
    enum quota quota; /* that is exceeded */
    uint64_t current, maximum;
    int64_t retry_s; /* -1: it never fits */
};

const char *quota_name(enum quota quota);
/* QUOTA_N: there is none of this name. */
enum quota quota_of_name(const char *name);
/* Reads a value as users write it: a count, a size such as "64G" for memory and disk, a number with
 * at most three decimals for cpus and rate, "none". 0 or -EINVAL. */
int quota_parse(enum quota quota, const char *text, uint64_t *ret);
/* NAME=VALUE of a command line. 0, or -EINVAL with the reason. */
#define QUOTA_FAULT 300
int quota_argument(
    const char *text, enum quota *ret_quota, uint64_t *ret_value, char why[QUOTA_FAULT]);
/* As quota_parse, of JSON: a string or a number. */
int quota_from_json(enum quota quota, const json_t *value, uint64_t *ret);
/* A new reference; NULL for QUOTA_NONE. */
json_t *quota_to_json(enum quota quota, uint64_t value);

struct amounts quota_nothing(void);
struct amounts quota_unlimited(void);
/* The lesser of both, each. */
struct amounts quota_least(const struct amounts *a, const struct amounts *b);
/* Whether that much more of the levels may be had now. */
bool quota_has_room(
    const struct amounts *quotas, const struct quota_use *use, const struct amounts *more);
/* The same with the quota that forbids it; counts a refusal. */
bool quota_fits(const struct amounts *quotas, struct quota_use *use, const struct amounts *more,
    struct quota_verdict *ret);
/* Takes `more`. False: a quota forbids it, nothing is taken, and *ret tells which. `now_ns` is of a
 * monotonic clock, `day_s` are seconds since 1970. `waits`: levels are not checked, except that
 * `more` alone must fit: quota_take_levels takes them later. */
bool quota_take(const struct amounts *quotas, struct quota_use *use, const struct amounts *more,
    int64_t now_ns, int64_t day_s, bool waits, struct quota_verdict *ret);
/* How long until the rate allows one more start; 0: it does. */
int64_t quota_rate_wait_ns(const struct amounts *quotas, struct quota_use *use, int64_t now_ns);
void quota_take_levels(struct quota_use *use, const struct amounts *more);
void quota_give_back(struct quota_use *use, const struct amounts *less);
/* n times the levels of one. */
struct amounts quota_times(const struct amounts *one, uint64_t n);

#endif
