/* SPDX-License-Identifier: Apache-2.0 */
#include "net/dns.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define HEADER 12u
#define CLASS_IN 1u
#define TYPE_EDNS 41u
/* A name keeps its address for the sandbox's life. */
#define TTL_S 3600u

#define FLAG_RESPONSE 0x8000u
#define FLAG_AUTHORITATIVE 0x0400u
#define FLAG_TRUNCATED 0x0200u
#define FLAG_RECURSION_DESIRED 0x0100u
#define FLAG_RECURSION_AVAILABLE 0x0080u

static unsigned get16(const uint8_t *at) {
    return (unsigned)at[0] << 8 | at[1];
}

static uint8_t *put16(uint8_t *at, unsigned value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
    return at + 2;
}

static uint8_t *put32(uint8_t *at, uint32_t value) {
    return put16(put16(at, value >> 16), value & 0xffff);
}

/* Appends a byte of a label; a byte that no host name has is written as \DDD. */
static size_t put_text(char *text, size_t length, uint8_t byte) {
    if (byte >= 'A' && byte <= 'Z')
        byte |= 0x20;
    if (byte > ' ' && byte < 0x7f && byte != '.' && byte != '\\') {
        text[length] = (char)byte;
        return length + 1;
    }
    snprintf(text + length, 5, "\\%03u", byte);
    return length + 4;
}

/* Reads an uncompressed name at *position. `text` has room for any (255 bytes, 4 characters each)
 * and may be NULL. */
static int read_name(const uint8_t *data, size_t length, size_t *position, char *text) {
    size_t at = *position, end = at + 255, n = 0;

    for (;;) {
        if (at >= length || at >= end)
            return -EINVAL;
        unsigned label = data[at++];
        if (!label)
            break;
        if (label > 63 || label > length - at || at + label >= end)
            return -EINVAL;
        if (text && n)
            text[n++] = '.';
        for (unsigned i = 0; i < label && text; i++)
            n = put_text(text, n, data[at + i]);
        at += label;
    }
    if (text)
        text[n] = '\0';
    *position = at;
    return 0;
}

/* Finds the EDNS record. Others (signatures, cookies of old kinds) are skipped. */
static int read_additional(
    const uint8_t *data, size_t length, size_t position, unsigned n, bool *ret_has_edns) {
    for (unsigned i = 0; i < n; i++) {
        if (read_name(data, length, &position, NULL) < 0 || length - position < 10)
            return -EINVAL;
        unsigned type = get16(data + position), size = get16(data + position + 8);
        position += 10;
        if (size > length - position)
            return -EINVAL;
        position += size;
        if (type == TYPE_EDNS && *ret_has_edns)
            return -EINVAL;
        if (type == TYPE_EDNS)
            *ret_has_edns = true;
    }
    return position == length ? 0 : -EINVAL;
}

int dns_read(const void *bytes, size_t length, struct dns_query *ret_query) {
    const uint8_t *data = bytes;
    size_t position = HEADER;

    if (length < HEADER)
        return -EBADMSG;
    unsigned flags = get16(data + 2);
    if (flags & FLAG_RESPONSE)
        return -EBADMSG; /* two servers that answer each other's answers would never end */
    ret_query->id = (uint16_t)get16(data);
    ret_query->type = 0;
    ret_query->recursion_desired = flags & FLAG_RECURSION_DESIRED;
    ret_query->has_edns = false;
    ret_query->name[0] = '\0';
    ret_query->question = NULL;
    ret_query->question_length = 0;
    if (flags >> 11 & 15)
        return -EOPNOTSUPP;
    if (flags & FLAG_TRUNCATED || get16(data + 4) != 1 || get16(data + 6) || get16(data + 8))
        return -EINVAL;
    if (read_name(data, length, &position, ret_query->name) < 0 || length - position < 4)
        return -EINVAL;
    ret_query->type = (uint16_t)get16(data + position);
    unsigned class = get16(data + position + 2);
    position += 4;
    if (read_additional(data, length, position, get16(data + 10), &ret_query->has_edns) < 0 ||
        class != CLASS_IN)
        return -EINVAL;
    ret_query->question = data + HEADER;
    ret_query->question_length = position - HEADER;
    return 0;
}

static uint8_t *begin(
    const struct dns_query *query, enum dns_code code, unsigned answers, uint8_t *answer) {
    unsigned flags = FLAG_RESPONSE | FLAG_RECURSION_AVAILABLE | (unsigned)code;

    if (query->recursion_desired)
        flags |= FLAG_RECURSION_DESIRED;
    if (code == DNS_OK || code == DNS_NO_NAME)
        flags |= FLAG_AUTHORITATIVE;
    uint8_t *at = put16(put16(answer, query->id), flags);
    at = put16(put16(at, query->question ? 1 : 0), answers);
    at = put16(put16(at, 0), query->has_edns ? 1 : 0);
    if (query->question)
        memcpy(at, query->question, query->question_length);
    return at + query->question_length;
}

static size_t end(const struct dns_query *query, const uint8_t *answer, uint8_t *at) {
    if (query->has_edns) {
        *at++ = 0; /* the root's name */
        at = put16(put16(at, TYPE_EDNS), 1232);
        at = put16(put32(at, 0), 0);
    }
    return (size_t)(at - answer);
}

size_t dns_answer_code(const struct dns_query *query, enum dns_code code, uint8_t *answer) {
    return end(query, answer, begin(query, code, 0, answer));
}

/* A record for the name of the question, without its data. */
static uint8_t *begin_record(uint8_t *at, enum dns_type type) {
    at = put16(at, 0xc000 | HEADER);
    at = put16(put16(at, type), CLASS_IN);
    return put32(at, TTL_S);
}

size_t dns_answer_address(const struct dns_query *query, uint32_t v4, uint8_t *answer) {
    uint8_t *at = begin_record(begin(query, DNS_OK, 1, answer), DNS_A);

    at = put32(put16(at, 4), v4);
    return end(query, answer, at);
}

size_t dns_answer_name(const struct dns_query *query, const char *name, uint8_t *answer) {
    uint8_t *at = begin_record(begin(query, DNS_OK, 1, answer), DNS_PTR);

    at = put16(at, (unsigned)strlen(name) + 2);
    for (;;) {
        size_t label = strcspn(name, ".");

        *at++ = (uint8_t)label;
        memcpy(at, name, label);
        at += label;
        if (!name[label])
            break;
        name += label + 1;
    }
    *at++ = 0;
    return end(query, answer, at);
}

int dns_reversed_address(const char *name, uint32_t *ret_v4) {
    uint32_t v4 = 0;

    for (unsigned i = 0; i < 4; i++) {
        unsigned number = 0, digits = 0;

        for (; *name >= '0' && *name <= '9' && digits < 4; name++, digits++)
            number = 10 * number + (unsigned)(*name - '0');
        if (!digits || number > 255 || *name++ != '.')
            return -EINVAL;
        v4 |= number << (8 * i);
    }
    if (strcmp(name, "in-addr.arpa") != 0)
        return -EINVAL;
    *ret_v4 = v4;
    return 0;
}
