/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas; quota.h has the model. */
#include "serve/quota.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "policy/policy.h"
#include "policy/read.h"

#define DAY_S 86400
#define SECOND_NS INT64_C(1000000000)
#define RATE_DEFAULT_BURST_S 1u /* the bucket without `burst`: what comes in a second */
#define RETRY_MAX_S 3600

enum unit { UNIT_COUNT, UNIT_BYTES, UNIT_THOUSANDTHS };

static const struct {
    const char *name;
    enum unit unit;
} kinds[QUOTA_N] = {
    [QUOTA_SANDBOXES] = { "sandboxes", UNIT_COUNT },
    [QUOTA_RUNNING] = { "running", UNIT_COUNT },
    [QUOTA_MEMORY] = { "memory", UNIT_BYTES },
    [QUOTA_CPUS] = { "cpus", UNIT_THOUSANDTHS },
    [QUOTA_DISK] = { "disk", UNIT_BYTES },
    [QUOTA_STARTS] = { "starts", UNIT_COUNT },
    [QUOTA_RATE] = { "rate", UNIT_THOUSANDTHS },
    [QUOTA_BURST] = { "burst", UNIT_COUNT },
    [QUOTA_QUEUED] = { "queued", UNIT_COUNT },
};

const char *quota_name(enum quota quota) {
    return kinds[quota].name;
}

enum quota quota_of_name(const char *name) {
    enum quota i = 0;

    while (i < QUOTA_N && strcmp(kinds[i].name, name) != 0)
        i++;
    return i;
}

int quota_parse(enum quota quota, const char *text, uint64_t *ret) {
    unsigned long long whole;
    double number;
    char *end;

    if (!strcmp(text, "none")) {
        *ret = QUOTA_NONE;
        return 0;
    }
    if (*text < '0' || *text > '9')
        return -EINVAL;
    errno = 0;
    switch (kinds[quota].unit) {
    case UNIT_BYTES:
        return policy_parse_size(text, ret) < 0 ? -EINVAL : 0;
    case UNIT_THOUSANDTHS:
        number = strtod(text, &end);
        if (errno || *end || !isfinite(number) || number > 1e12)
            return -EINVAL;
        *ret = (uint64_t)llround(number * 1000);
        return 0;
    case UNIT_COUNT:
        whole = strtoull(text, &end, 10);
        if (errno || *end || whole > INT64_MAX)
            return -EINVAL;
        *ret = whole;
        return 0;
    }
    return -EINVAL;
}

/* Of a name that no quota has. */
static int unknown(const char *name, char why[QUOTA_FAULT]) {
    const char *names[QUOTA_N], *near;
    auto_buf struct buf all = BUF_INIT, hint = BUF_INIT;

    for (enum quota i = 0; i < QUOTA_N; i++) {
        names[i] = kinds[i].name;
        buf_printf(&all, "%s%s", i ? ", " : "", names[i]);
    }
    near = read_nearest(name, names, QUOTA_N);
    if (near)
        buf_printf(&hint, ": did you mean \"%s\"?", near);
    buf_printf(&hint, "; the quotas are ");
    buf_add(&hint, all.data, all.length);
    (void)snprintf(
        why, QUOTA_FAULT, "there is no quota \"%.40s\"%s", name, hint.data ? hint.data : "");
    return -EINVAL;
}

int quota_argument(
    const char *text, enum quota *ret_quota, uint64_t *ret_value, char why[QUOTA_FAULT]) {
    static const char *const forms[] = { [UNIT_COUNT] = "a whole number",
        [UNIT_BYTES] = "a size such as 64G",
        [UNIT_THOUSANDTHS] = "a number such as 1.5" };
    const char *value = strchr(text, '=');
    auto_free char *name = strndup(text, value ? (size_t)(value - text) : strlen(text));
    enum quota quota = name ? quota_of_name(name) : QUOTA_N;

    if (quota == QUOTA_N)
        return unknown(name ? name : "", why);
    if (!value || quota_parse(quota, value + 1, ret_value) < 0) {
        (void)snprintf(why, QUOTA_FAULT, "%s=VALUE needs %s or none, not \"%.40s\"", name,
            forms[kinds[quota].unit], value ? value + 1 : "");
        return -EINVAL;
    }
    *ret_quota = quota;
    return 0;
}

int quota_from_json(enum quota quota, const json_t *value, uint64_t *ret) {
    double number = json_number_value(value);

    if (json_is_string(value))
        return quota_parse(quota, json_string_value(value), ret);
    if (json_is_null(value)) {
        *ret = QUOTA_NONE;
        return 0;
    }
    if (!json_is_number(value) || number < 0 || number > 1e18)
        return -EINVAL;
    if (kinds[quota].unit == UNIT_THOUSANDTHS) {
        *ret = (uint64_t)llround(MIN(number, 1e12) * 1000);
        return 0;
    }
    if (!json_is_integer(value))
        return -EINVAL;
    *ret = (uint64_t)json_integer_value(value);
    return 0;
}

json_t *quota_to_json(enum quota quota, uint64_t value) {
    if (value == QUOTA_NONE)
        return json_null();
    if (kinds[quota].unit == UNIT_THOUSANDTHS)
        return json_real((double)value / 1000);
    return json_integer((json_int_t)value);
}

struct amounts quota_nothing(void) {
    return (struct amounts){ { 0 } };
}

struct amounts quota_unlimited(void) {
    struct amounts all;

    for (enum quota i = 0; i < QUOTA_N; i++)
        all.of[i] = QUOTA_NONE;
    return all;
}

struct amounts quota_least(const struct amounts *a, const struct amounts *b) {
    struct amounts least;

    for (enum quota i = 0; i < QUOTA_N; i++)
        least.of[i] = MIN(a->of[i], b->of[i]);
    return least;
}

static uint64_t add(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static bool level_fits(const struct amounts *quotas, const struct quota_use *use,
    const struct amounts *more, enum quota i) {
    return !more->of[i] || quotas->of[i] == QUOTA_NONE ||
           add(use->now.of[i], more->of[i]) <= quotas->of[i];
}

bool quota_has_room(
    const struct amounts *quotas, const struct quota_use *use, const struct amounts *more) {
    for (enum quota i = 0; i < QUOTA_LEVELS; i++)
        if (!level_fits(quotas, use, more, i))
            return false;
    return true;
}

/* ---- the bucket ---- */

static int64_t thousandths(uint64_t n) {
    return n > INT64_MAX / 1000 ? INT64_MAX : (int64_t)n * 1000;
}

static int64_t bucket_size(const struct amounts *quotas) {
    uint64_t burst = quotas->of[QUOTA_BURST];

    if (burst == QUOTA_NONE)
        burst = quotas->of[QUOTA_RATE] / 1000 * RATE_DEFAULT_BURST_S;
    return thousandths(MAX(burst, UINT64_C(1)));
}

static void fill(const struct amounts *quotas, struct quota_use *use, int64_t now_ns) {
    const int64_t size = bucket_size(quotas);

    if (!use->has_bucket) {
        use->has_bucket = true;
        use->bucket_one = size;
    } else {
        double more = (double)(now_ns - use->bucket_ns) / 1e9 * (double)quotas->of[QUOTA_RATE];

        if (more < 1)
            return; /* the rest of a thousandth is not lost */
        use->bucket_one = more > (double)(size - MIN(use->bucket_one, size))
                              ? size
                              : use->bucket_one + (int64_t)more;
    }
    use->bucket_ns = now_ns;
}

/* 0, or the seconds until so many starts are allowed; -1: never. */
static int64_t wait_of_rate(
    const struct amounts *quotas, struct quota_use *use, uint64_t n, int64_t now_ns) {
    const uint64_t rate = quotas->of[QUOTA_RATE];

    if (rate == QUOTA_NONE || !n)
        return 0;
    fill(quotas, use, now_ns);
    const int64_t least = MIN(thousandths(n), bucket_size(quotas));
    if (use->bucket_one >= least)
        return 0;
    if (!rate)
        return -1;
    double seconds = ceil((double)(least - use->bucket_one) / (double)rate);
    return seconds > RETRY_MAX_S ? RETRY_MAX_S : (int64_t)MAX(seconds, 1.0);
}

int64_t quota_rate_wait_ns(const struct amounts *quotas, struct quota_use *use, int64_t now_ns) {
    const uint64_t rate = quotas->of[QUOTA_RATE];

    if (rate == QUOTA_NONE || !rate) /* 0: the request is refused at once */
        return 0;
    fill(quotas, use, now_ns);
    if (use->bucket_one >= thousandths(1))
        return 0;
    return (int64_t)ceil((double)(thousandths(1) - use->bucket_one) / (double)rate * 1e9);
}

/* ---- taking ---- */

static bool refuse(struct quota_use *use, struct quota_verdict *ret, struct quota_verdict verdict) {
    use->refused.of[verdict.quota]++;
    *ret = verdict;
    return false;
}

bool quota_fits(const struct amounts *quotas, struct quota_use *use, const struct amounts *more,
    struct quota_verdict *ret) {
    for (enum quota i = 0; i < QUOTA_LEVELS; i++)
        if (!level_fits(quotas, use, more, i))
            return refuse(use, ret,
                (struct quota_verdict){
                    i, use->now.of[i], quotas->of[i], more->of[i] > quotas->of[i] ? -1 : 1 });
    return true;
}

bool quota_take(const struct amounts *quotas, struct quota_use *use, const struct amounts *more,
    int64_t now_ns, int64_t day_s, bool waits, struct quota_verdict *ret) {
    const uint64_t n = more->of[QUOTA_STARTS];

    if (use->day != day_s / DAY_S) {
        use->day = day_s / DAY_S;
        use->now.of[QUOTA_STARTS] = 0;
    }
    for (enum quota i = 0; i < QUOTA_LEVELS; i++) {
        bool never = more->of[i] && more->of[i] > quotas->of[i] && quotas->of[i] != QUOTA_NONE;

        if (never || (!waits && !level_fits(quotas, use, more, i)))
            return refuse(use, ret,
                (struct quota_verdict){ i, use->now.of[i], quotas->of[i], never ? -1 : 1 });
    }
    if (quotas->of[QUOTA_STARTS] != QUOTA_NONE &&
        add(use->now.of[QUOTA_STARTS], n) > quotas->of[QUOTA_STARTS])
        return refuse(use, ret,
            (struct quota_verdict){ QUOTA_STARTS, use->now.of[QUOTA_STARTS],
                quotas->of[QUOTA_STARTS],
                n > quotas->of[QUOTA_STARTS] ? -1 : DAY_S - day_s % DAY_S });
    int64_t wait = wait_of_rate(quotas, use, n, now_ns);
    if (wait)
        return refuse(use, ret,
            (struct quota_verdict){
                QUOTA_RATE, quotas->of[QUOTA_RATE], quotas->of[QUOTA_RATE], wait });
    if (quotas->of[QUOTA_RATE] != QUOTA_NONE)
        use->bucket_one -= thousandths(n);
    use->now.of[QUOTA_STARTS] += n;
    if (!waits)
        quota_take_levels(use, more);
    return true;
}

void quota_take_levels(struct quota_use *use, const struct amounts *more) {
    for (enum quota i = 0; i < QUOTA_LEVELS; i++)
        use->now.of[i] += more->of[i];
}

void quota_give_back(struct quota_use *use, const struct amounts *less) {
    for (enum quota i = 0; i < QUOTA_LEVELS; i++)
        use->now.of[i] -= MIN(use->now.of[i], less->of[i]);
}

struct amounts quota_times(const struct amounts *one, uint64_t n) {
    struct amounts all = quota_nothing();

    for (enum quota i = 0; i < QUOTA_LEVELS; i++)
        (void)(__builtin_mul_overflow(one->of[i], n, &all.of[i]) && (all.of[i] = UINT64_MAX));
    return all;
}
