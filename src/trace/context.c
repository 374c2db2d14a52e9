/* SPDX-License-Identifier: Apache-2.0 */
/* Trace contexts and samplers; context.h has the model. */
#include "trace/context.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/cleanup.h"

#define SAMPLED 1u /* the bit of the flags */

/* ---- text ---- */

/* Lower case alone, as the standard says. */
static int digit_of(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_bytes(const char *text, uint8_t *to, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        to[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static bool is_zero(const uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bytes[i])
            return false;
    return true;
}

bool trace_context_read(const char *text, struct trace_context *ret) {
    struct trace_context context = { .is_sampled = false };
    size_t length = text ? strlen(text) : 0;
    uint8_t version, flags;

    *ret = context;
    if (length < TRACE_TEXT || text[2] != '-' || text[35] != '-' || text[52] != '-')
        return false;
    if (!read_bytes(text, &version, 1) || !read_bytes(text + 3, context.trace, 16) ||
        !read_bytes(text + 36, context.span, 8) || !read_bytes(text + 53, &flags, 1))
        return false;
    if (version == 0xff || (version == 0 ? length != TRACE_TEXT : !strchr("-", text[TRACE_TEXT])))
        return false;
    if (is_zero(context.trace, sizeof context.trace) || is_zero(context.span, sizeof context.span))
        return false;
    context.is_sampled = flags & SAMPLED;
    *ret = context;
    return true;
}

static char *write_bytes(char *to, const uint8_t *bytes, size_t n) {
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        *to++ = digits[bytes[i] >> 4];
        *to++ = digits[bytes[i] & 15];
    }
    return to;
}

void trace_context_write(const struct trace_context *context, char to[TRACE_TEXT + 1]) {
    memcpy(to, "00-", 3);
    char *end = write_bytes(to + 3, context->trace, 16);
    *end++ = '-';
    end = write_bytes(end, context->span, 8);
    memcpy(end, context->is_sampled ? "-01" : "-00", 4);
}

bool trace_context_is_none(const struct trace_context *context) {
    return is_zero(context->trace, sizeof context->trace);
}

/* ---- new ones ---- */

static void fill(uint8_t *bytes, size_t n) {
    do {
        if (getrandom(bytes, n, GRND_INSECURE) < 0)
            memset(bytes, 1, n);
    } while (is_zero(bytes, n));
}

struct trace_context trace_context_child(const struct trace_context *parent) {
    struct trace_context context = *parent;

    fill(context.span, sizeof context.span);
    return context;
}

/* ---- sampling ---- */

bool trace_sampler_read(const char *name, const char *argument, struct trace_sampler *ret) {
    static const struct {
        const char *name;
        bool follows_parent, has_ratio;
        double ratio;
    } known[] = {
        { "always_on", false, false, 1 },
        { "always_off", false, false, 0 },
        { "traceidratio", false, true, 1 },
        { "parentbased_always_on", true, false, 1 },
        { "parentbased_always_off", true, false, 0 },
        { "parentbased_traceidratio", true, true, 1 },
    };
    const char *wanted = name && *name ? name : "parentbased_always_on";

    for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
        char *end = NULL;

        if (strcmp(known[i].name, wanted) != 0)
            continue;
        *ret = (struct trace_sampler){ known[i].follows_parent, known[i].ratio };
        if (!known[i].has_ratio || !argument || !*argument)
            return true;
        ret->ratio = strtod(argument, &end);
        return end != argument && !*end && ret->ratio >= 0 && ret->ratio <= 1;
    }
    return false;
}

/* Of the last eight bytes of the id, so that other programs with this ratio decide the same. */
static bool is_chosen(const uint8_t trace[16], double ratio) {
    uint64_t number = 0;

    for (size_t i = 8; i < 16; i++)
        number = number << 8 | trace[i];
    return ratio >= 1 || (double)(number >> 1) < ratio * 0x1p63;
}

struct trace_context trace_sampler_begin(
    const struct trace_sampler *sampler, const struct trace_context *parent) {
    struct trace_context context = trace_context_child(parent);
    bool has_parent = !trace_context_is_none(parent);

    if (!has_parent)
        fill(context.trace, sizeof context.trace);
    if (!has_parent || !sampler->follows_parent)
        context.is_sampled = is_chosen(context.trace, sampler->ratio);
    return context;
}
