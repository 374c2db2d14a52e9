/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DNS messages (RFC 1035, EDNS of RFC 6891): strict reading of a guest's query, and the answer.
 *
 * One question without compression, class IN, nothing in the answer and authority sections. The
 * question is copied into the answer byte for byte, because some clients vary the case of letters
 * and compare it.
 */
#ifndef ROLLBOX_NET_DNS_H
#define ROLLBOX_NET_DNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DNS_PORT 53
#define DNS_TEXT 1024  /* a name as text, with \DDD for odd bytes */
#define DNS_ANSWER 576 /* the longest answer: header, question, one name, EDNS */

enum dns_type { DNS_A = 1, DNS_PTR = 12, DNS_AAAA = 28, DNS_ANY = 255 };
enum dns_code {
    DNS_OK = 0,
    DNS_MALFORMED = 1,
    DNS_FAILED = 2,
    DNS_NO_NAME = 3,
    DNS_UNKNOWN_OPERATION = 4,
};

struct dns_query {
    uint16_t id, type;
    bool recursion_desired, has_edns;
    char name[DNS_TEXT];     /* lower case, without the final dot */
    const uint8_t *question; /* in the query's bytes; NULL: malformed */
    size_t question_length;
};

/* 0: answer it; -EINVAL: malformed, and -EOPNOTSUPP: an operation that is no query; in both cases
 * dns_answer_code may tell the guest; -EBADMSG: no query at all, to be dropped. */
int dns_read(const void *data, size_t length, struct dns_query *ret_query);

/* Each writes an answer and returns its length, which is at most DNS_ANSWER. */
size_t dns_answer_code(const struct dns_query *query, enum dns_code code, uint8_t *ret_answer);
size_t dns_answer_address(const struct dns_query *query, uint32_t v4, uint8_t *ret_answer);
/* `name` is a valid name of at most 253 characters (names_valid). */
size_t dns_answer_name(const struct dns_query *query, const char *name, uint8_t *ret_answer);

/* The address in "4.3.2.1.in-addr.arpa". 0 or -EINVAL. */
int dns_reversed_address(const char *name, uint32_t *ret_v4);

#endif
