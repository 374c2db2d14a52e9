/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the key `ulimits` of a policy (ulimits.h). */
#include "policy/ulimits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/cleanup.h"
#include "policy/network_read.h"
#include "policy/read.h"

#define UNLIMITED "unlimited"

static const char *const names[] = { [RLIMIT_AS] = "as",
    [RLIMIT_CORE] = "core",
    [RLIMIT_CPU] = "cpu",
    [RLIMIT_DATA] = "data",
    [RLIMIT_FSIZE] = "fsize",
    [RLIMIT_LOCKS] = "locks",
    [RLIMIT_MEMLOCK] = "memlock",
    [RLIMIT_MSGQUEUE] = "msgqueue",
    [RLIMIT_NICE] = "nice",
    [RLIMIT_NOFILE] = "nofile",
    [RLIMIT_NPROC] = "nproc",
    [RLIMIT_RSS] = "rss",
    [RLIMIT_RTPRIO] = "rtprio",
    [RLIMIT_RTTIME] = "rttime",
    [RLIMIT_SIGPENDING] = "sigpending",
    [RLIMIT_STACK] = "stack" };

const char *policy_ulimit_name(unsigned resource) {
    return resource < ARRAY_SIZE(names) ? names[resource] : "?";
}

const struct policy_ulimit *policy_ulimit_of(const struct policy *policy, unsigned resource) {
    for (size_t i = 0; i < policy->ulimits.n; i++)
        if (policy->ulimits.items[i].resource == resource)
            return &policy->ulimits.items[i];
    return NULL;
}

/* A number, or -1 or "unlimited". */
static bool parse_limit(const char *text, size_t length, uint64_t *ret_limit) {
    char digits[24], *end;

    if ((length == sizeof UNLIMITED - 1 && !memcmp(text, UNLIMITED, length)) ||
        (length == 2 && !memcmp(text, "-1", 2))) {
        *ret_limit = ULIMIT_UNLIMITED;
        return true;
    }
    if (!length || length >= sizeof digits || text[0] < '0' || text[0] > '9')
        return false;
    memcpy(digits, text, length);
    digits[length] = '\0';
    errno = 0;
    unsigned long long limit = strtoull(digits, &end, 10);
    if (errno || *end || limit > INT64_MAX)
        return false;
    *ret_limit = limit;
    return true;
}

static bool read_limit(struct reader *r, const json_t *value, struct policy_ulimit *ulimit) {
    const char *text = json_string_value(value), *colon = text ? strchr(text, ':') : NULL;
    static const char hint[] = "write 1024, \"1024:4096\" (soft:hard) or \"unlimited\"";

    if (json_is_integer(value) && json_integer_value(value) >= -1) {
        ulimit->soft = ulimit->hard =
            json_integer_value(value) < 0 ? ULIMIT_UNLIMITED : (uint64_t)json_integer_value(value);
        return true;
    }
    if (!text) {
        read_bad(r, hint, "must be a number or a string, not %s",
            json_is_integer(value) ? "below -1" : read_type(value));
        return false;
    }
    if (!parse_limit(text, colon ? (size_t)(colon - text) : strlen(text), &ulimit->soft) ||
        (colon && !parse_limit(colon + 1, strlen(colon + 1), &ulimit->hard))) {
        read_bad(r, hint, "\"%.60s\" is not a limit", text);
        return false;
    }
    if (!colon)
        ulimit->hard = ulimit->soft;
    if (ulimit->soft > ulimit->hard)
        read_bad(r, "write SOFT:HARD", "\"%.60s\": the soft limit is above the hard one", text);
    return ulimit->soft <= ulimit->hard;
}

static void add_ulimit(struct reader *r, const struct policy_ulimit *ulimit) {
    struct policy_ulimits *ulimits = &r->policy->ulimits;
    struct policy_ulimit *items = reallocarray(ulimits->items, ulimits->n + 1, sizeof *items);

    if (!items) {
        r->out_of_memory = true;
        return;
    }
    ulimits->items = items;
    items[ulimits->n++] = *ulimit;
}

static void read_one(struct reader *r, const char *name, const json_t *value) {
    struct policy_ulimit ulimit = { .resource = 0 };

    while (ulimit.resource < ARRAY_SIZE(names) && strcmp(names[ulimit.resource], name))
        ulimit.resource++;
    if (ulimit.resource == ARRAY_SIZE(names)) {
        const char *near = read_nearest(name, names, ARRAY_SIZE(names));

        read_bad(r, near ? near : "such as nofile, nproc, core, stack, memlock, fsize",
            "\"%.40s\" is no limit of setrlimit(2)%s", name, near ? ", but this may be meant" : "");
        return;
    }
    if (!read_limit(r, value, &ulimit))
        return;
    /* Where core_pattern is a pipe, the kernel would start that program of the host as its root. */
    if (ulimit.resource == RLIMIT_CORE && ulimit.hard > 1) {
        read_bad(r, "write 0, or leave it out",
            "a sandbox cannot have core dumps, because the host's root may process them");
        return;
    }
    if ((ulimit.resource == RLIMIT_NICE || ulimit.resource == RLIMIT_RTPRIO) && ulimit.hard) {
        read_bad(r, "write 0, or leave it out", "a sandbox cannot have priority over the host");
        return;
    }
    if (ulimit.resource == RLIMIT_NOFILE && ulimit.soft < 16) {
        read_bad(r, "", "must be at least 16");
        return;
    }
    add_ulimit(r, &ulimit);
}

void key_ulimits(struct reader *r, json_t *value) {
    const char *name;
    json_t *member;

    if (!read_is_object(r, value, "write {\"nofile\": 65536}", SIZE_MAX, "limits"))
        return;
    json_object_foreach(value, name, member) {
        r->member = name;
        if (!json_is_null(member))
            read_one(r, name, member);
    }
    r->member = NULL;
}
