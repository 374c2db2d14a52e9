/* SPDX-License-Identifier: Apache-2.0 */
#include "net/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"

struct range {
    uint32_t first;
    uint8_t prefix;
};

#define V4(a, b, c, d) ((uint32_t)(a) << 24 | (b) << 16 | (c) << 8 | (d))

/* The special-purpose registry of IANA (RFC 6890), multicast, and one cloud's metadata service that
 * has a public address. */
static const struct range refused_v4[] = {
    { V4(0, 0, 0, 0), 8 },        /* "this network": Linux takes 0.0.0.0 for the host itself */
    { V4(10, 0, 0, 0), 8 },       /* private */
    { V4(100, 64, 0, 0), 10 },    /* carrier-grade NAT, and 100.100.100.200 */
    { V4(127, 0, 0, 0), 8 },      /* loopback */
    { V4(168, 63, 129, 16), 32 }, /* Azure's host services */
    { V4(169, 254, 0, 0), 16 },   /* link-local: metadata services */
    { V4(172, 16, 0, 0), 12 },    /* private */
    { V4(192, 0, 0, 0), 24 },     /* protocol assignments */
    { V4(192, 0, 2, 0), 24 },     /* documentation */
    { V4(192, 88, 99, 0), 24 },   /* 6to4 relays */
    { V4(192, 168, 0, 0), 16 },   /* private */
    { V4(198, 18, 0, 0), 15 },    /* tests of devices: the addresses of names in sandboxes */
    { V4(198, 51, 100, 0), 24 },  /* documentation */
    { V4(203, 0, 113, 0), 24 },   /* documentation */
    { V4(224, 0, 0, 0), 4 },      /* multicast */
    { V4(240, 0, 0, 0), 4 },      /* reserved, and broadcast */
};

static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
static const uint8_t nat64[12] = { 0, 0x64, 0xff, 0x9b };

static uint32_t read_v4(const uint8_t *at) {
    return V4(at[0], at[1], at[2], at[3]);
}

static bool has_prefix(const uint8_t *bytes, const uint8_t *network, unsigned prefix) {
    unsigned whole = prefix / 8, rest = prefix % 8;

    if (memcmp(bytes, network, whole) != 0)
        return false;
    return !rest || !((bytes[whole] ^ network[whole]) >> (8 - rest));
}

struct address address_of_v4(uint32_t v4) {
    struct address address;

    memcpy(address.bytes, mapped, sizeof mapped);
    for (unsigned i = 0; i < 4; i++)
        address.bytes[12 + i] = (uint8_t)(v4 >> (24 - 8 * i));
    return address;
}

bool address_is_v4(const struct address *address) {
    return memcmp(address->bytes, mapped, sizeof mapped) == 0;
}

uint32_t address_v4(const struct address *address) {
    return read_v4(address->bytes + 12);
}

struct address address_of_rule(const struct net_address *from) {
    struct address address;

    if (!from->is_v6)
        return address_of_v4(read_v4(from->bytes));
    memcpy(address.bytes, from->bytes, sizeof address.bytes);
    return address;
}

static bool v4_is_public(uint32_t v4) {
    for (size_t i = 0; i < ARRAY_SIZE(refused_v4); i++)
        if (!((v4 ^ refused_v4[i].first) >> (32 - refused_v4[i].prefix)))
            return false;
    return true;
}

static bool v6_is_public(const uint8_t *bytes) {
    static const struct {
        uint8_t network[4], prefix;
    } refused[] = {
        { { 0x20, 0x01, 0, 0 }, 23 },       /* protocol assignments, Teredo among them */
        { { 0x20, 0x01, 0x0d, 0xb8 }, 32 }, /* documentation */
        { { 0x3f, 0xff, 0, 0 }, 20 },       /* documentation */
    };

    if (memcmp(bytes, nat64, sizeof nat64) == 0)
        return v4_is_public(read_v4(bytes + 12));
    if (bytes[0] == 0x20 && bytes[1] == 0x02)
        return v4_is_public(read_v4(bytes + 2)); /* 6to4 */
    if (bytes[0] >> 5 != 1)
        return false; /* global unicast is 2000::/3 */
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++)
        if (has_prefix(bytes, refused[i].network, refused[i].prefix))
            return false;
    return true;
}

bool address_is_public(const struct address *address, const struct address *own, size_t n_own) {
    for (size_t i = 0; i < n_own; i++)
        if (address_equal(address, &own[i]))
            return false;
    if (address_is_v4(address))
        return v4_is_public(address_v4(address));
    return v6_is_public(address->bytes);
}

bool address_matches(const struct address *address, const struct net_address *network) {
    const struct address first = address_of_rule(network);
    unsigned prefix = network->prefix + (network->is_v6 ? 0u : 96u);

    return has_prefix(address->bytes, first.bytes, prefix > 128 ? 128 : prefix);
}

bool address_equal(const struct address *a, const struct address *b) {
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

int address_of_socket(
    const struct sockaddr_storage *from, struct address *ret_address, uint16_t *ret_port) {
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)from;

        *ret_address = address_of_v4(ntohl(v4->sin_addr.s_addr));
        *ret_port = ntohs(v4->sin_port);
        return 0;
    }
    if (from->ss_family != AF_INET6)
        return -EAFNOSUPPORT;
    const struct sockaddr_in6 *v6 = (const void *)from;
    memcpy(ret_address->bytes, &v6->sin6_addr, sizeof ret_address->bytes);
    *ret_port = ntohs(v6->sin6_port);
    return 0;
}

socklen_t address_to_socket(
    const struct address *address, uint16_t port, struct sockaddr_storage *ret_socket) {
    memset(ret_socket, 0, sizeof *ret_socket);
    if (address_is_v4(address)) {
        struct sockaddr_in *v4 = (void *)ret_socket;

        v4->sin_family = AF_INET;
        v4->sin_addr.s_addr = htonl(address_v4(address));
        v4->sin_port = htons(port);
        return sizeof *v4;
    }
    struct sockaddr_in6 *v6 = (void *)ret_socket;
    v6->sin6_family = AF_INET6;
    memcpy(&v6->sin6_addr, address->bytes, sizeof address->bytes);
    v6->sin6_port = htons(port);
    return sizeof *v6;
}

int address_parse(const char *text, struct address *ret_address) {
    struct in_addr v4;

    if (inet_pton(AF_INET, text, &v4) == 1) {
        *ret_address = address_of_v4(ntohl(v4.s_addr));
        return 0;
    }
    return inet_pton(AF_INET6, text, ret_address->bytes) == 1 ? 0 : -EINVAL;
}

const char *address_text(const struct address *address, char ret_text[ADDRESS_TEXT]) {
    if (address_is_v4(address))
        return inet_ntop(AF_INET, address->bytes + 12, ret_text, ADDRESS_TEXT);
    return inet_ntop(AF_INET6, address->bytes, ret_text, ADDRESS_TEXT);
}
