/* SPDX-License-Identifier: Apache-2.0 */
#include "net/dns.h"

#include "base/cleanup.h"
#include "test.h"

#define QUERY "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
#define QUERY_EDNS "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01"
#define NAME "\x04PyPI\x03org\x00"
#define BYTES(text) (text), sizeof(text) - 1

TEST(query_is_read) {
    struct dns_query query;

    ASSERT_OK(dns_read(BYTES(QUERY NAME "\x00\x01\x00\x01"), &query));
    ASSERT_STR_EQ(query.name, "pypi.org");
    ASSERT_EQ(query.type, DNS_A);
    ASSERT_EQ(query.id, 0x1234);
    ASSERT_TRUE(query.recursion_desired);
    ASSERT_FALSE(query.has_edns);
}

TEST(odd_bytes_of_names_cannot_look_like_others) {
    struct dns_query query;

    ASSERT_OK(dns_read(BYTES(QUERY "\x08pypi.org\x00\x00\x01\x00\x01"), &query));
    ASSERT_STR_EQ(query.name, "pypi\\046org");
    ASSERT_OK(dns_read(BYTES(QUERY "\x03"
                                   "a\0\xff"
                                   "\x00\x00\x01\x00\x01"),
        &query));
    ASSERT_STR_EQ(query.name, "a\\000\\255");
}

TEST(malformed_queries_are_refused) {
    static const struct {
        const char *bytes;
        size_t length;
        int error;
    } cases[] = {
        { BYTES(""), EBADMSG },
        { BYTES("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00"), EBADMSG },
        { BYTES("\x12\x34\x81\x00\x00\x01\x00\x00\x00\x00\x00\x00" NAME "\x00\x01\x00\x01"),
            EBADMSG }, /* an answer */
        { BYTES("\x12\x34\x28\x00\x00\x01\x00\x00\x00\x00\x00\x00" NAME "\x00\x01\x00\x01"),
            EOPNOTSUPP }, /* an update */
        { BYTES("\x12\x34\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00"), EINVAL },
        { BYTES("\x12\x34\x01\x00\x00\x02\x00\x00\x00\x00\x00\x00" NAME "\x00\x01\x00\x01" NAME
                "\x00\x01\x00\x01"),
            EINVAL }, /* two questions */
        { BYTES("\x12\x34\x01\x00\x00\x01\x00\x01\x00\x00\x00\x00" NAME "\x00\x01\x00\x01"),
            EINVAL },                                        /* an answer's section */
        { BYTES(QUERY "\xc0\x0c\x00\x01\x00\x01"), EINVAL }, /* points at itself */
        { BYTES(QUERY "\x01"
                      "a\xc0\x0c\x00\x01\x00\x01"),
            EINVAL },
        { BYTES(QUERY "\x40"
                      "aaaa"),
            EINVAL },
        { BYTES(QUERY NAME "\x00\x01\x00"), EINVAL },
        { BYTES(QUERY NAME "\x00\x01\x00\x03"), EINVAL }, /* class CHAOS */
        { BYTES(QUERY NAME "\x00\x01\x00\x01more"), EINVAL },
        { BYTES(QUERY_EDNS NAME "\x00\x01\x00\x01"), EINVAL },
        { BYTES(QUERY_EDNS NAME "\x00\x01\x00\x01\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x01"),
            EINVAL },
    };
    struct dns_query query;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        if (dns_read(cases[i].bytes, cases[i].length, &query) != -cases[i].error)
            FAIL("case %zu", i);
}

TEST(names_are_at_most_255_bytes) {
    uint8_t bytes[400] = QUERY;
    struct dns_query query;

    for (unsigned i = 0; i < 127; i++)
        memcpy(bytes + 12 + 2 * i, "\x01x", 2);
    memcpy(bytes + 12 + 254, "\0\0\1\0\1", 5);
    ASSERT_OK(dns_read(bytes, 12 + 254 + 5, &query));
    ASSERT_EQ(strlen(query.name), 253);
    memcpy(bytes + 12 + 254, "\1x\0\0\1\0\1", 7);
    ASSERT_ERR(dns_read(bytes, 12 + 254 + 7, &query), -EINVAL);
}

TEST(longest_answer_fits) {
    uint8_t bytes[400] = QUERY, answer[DNS_ANSWER];
    struct dns_query query;
    char name[254];

    for (unsigned i = 0; i < 127; i++)
        memcpy(bytes + 12 + 2 * i, "\x01x", 2);
    bytes[11] = 1;
    memcpy(bytes + 12 + 254, "\0\0\x0c\0\1\0\0\x29\x04\xd0\0\0\0\0\0\0", 16);
    ASSERT_OK(dns_read(bytes, 12 + 254 + 16, &query));
    ASSERT_TRUE(query.has_edns);
    memset(name, 'a', sizeof name);
    for (size_t i = 1; i < 253; i += 2)
        name[i] = '.';
    name[253] = '\0';
    ASSERT_TRUE(dns_answer_name(&query, name, answer) <= DNS_ANSWER);
}

TEST(address_is_answered) {
    static const char want[] = "\x12\x34\x85\x80\x00\x01\x00\x01\x00\x00\x00\x00" NAME
                               "\x00\x01\x00\x01\xc0\x0c\x00\x01\x00\x01\x00\x00\x0e\x10\x00\x04"
                               "\xc6\x12\x00\x01";
    uint8_t answer[DNS_ANSWER];
    struct dns_query query;

    ASSERT_OK(dns_read(BYTES(QUERY NAME "\x00\x01\x00\x01"), &query));
    size_t length = dns_answer_address(&query, 0xc6120001, answer);
    ASSERT_MEM_EQ(answer, length, want, sizeof want - 1);
}

TEST(unknown_name_is_answered) {
    static const char want[] =
        "\x12\x34\x85\x83\x00\x01\x00\x00\x00\x00\x00\x00" NAME "\x00\x01\x00\x01";
    uint8_t answer[DNS_ANSWER];
    struct dns_query query;

    ASSERT_OK(dns_read(BYTES(QUERY NAME "\x00\x01\x00\x01"), &query));
    size_t length = dns_answer_code(&query, DNS_NO_NAME, answer);
    ASSERT_MEM_EQ(answer, length, want, sizeof want - 1);
}

TEST(malformed_query_is_answered_without_question) {
    static const char want[] = "\x12\x34\x81\x81\x00\x00\x00\x00\x00\x00\x00\x00";
    uint8_t answer[DNS_ANSWER];
    struct dns_query query;

    ASSERT_ERR(dns_read(BYTES(QUERY "\xc0\x0c\x00\x01\x00\x01"), &query), -EINVAL);
    size_t length = dns_answer_code(&query, DNS_MALFORMED, answer);
    ASSERT_MEM_EQ(answer, length, want, sizeof want - 1);
}

TEST(reversed_addresses_are_read) {
    uint32_t v4;

    ASSERT_OK(dns_reversed_address("1.0.18.198.in-addr.arpa", &v4));
    ASSERT_EQ(v4, 0xc6120001);
    ASSERT_ERR(dns_reversed_address("1.0.18.in-addr.arpa", &v4), -EINVAL);
    ASSERT_ERR(dns_reversed_address("256.0.18.198.in-addr.arpa", &v4), -EINVAL);
    ASSERT_ERR(dns_reversed_address("1.0.18.198.in-addr.arpa.x", &v4), -EINVAL);
    ASSERT_ERR(dns_reversed_address("..", &v4), -EINVAL);
}
