/* SPDX-License-Identifier: Apache-2.0 */
#include "net/address.h"

#include "base/cleanup.h"
#include "test.h"

static bool is_public(const char *text) {
    struct address address;

    ASSERT_OK(address_parse(text, &address));
    return address_is_public(&address, NULL, 0);
}

TEST(public_addresses_are_allowed) {
    static const char *const texts[] = { "1.1.1.1", "8.8.8.8", "93.184.216.34", "9.255.255.255",
        "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
        "168.63.129.15", "168.63.129.17", "172.15.255.255", "172.32.0.0", "192.0.1.0",
        "192.167.255.255", "198.17.255.255", "198.20.0.0", "223.255.255.255",
        "2606:4700:4700::1111", "2001:4860:4860::8888", "2001:200::1", "3ffe::1",
        "64:ff9b::808:808", "2002:808:808::1", "::ffff:8.8.8.8" };

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        if (!is_public(texts[i]))
            FAIL("%s is refused", texts[i]);
}

TEST(private_and_metadata_addresses_are_refused) {
    static const char *const texts[] = { "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255",
        "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.255", "168.63.129.16",
        "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1",
        "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.9",
        "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255" };

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        if (is_public(texts[i]))
            FAIL("%s is allowed", texts[i]);
}

TEST(private_v6_embeddings_are_refused) {
    static const char *const texts[] = { "::", "::1", "::7f00:1", "::ffff:127.0.0.1",
        "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b:1::808:808",
        "2002:7f00:1::", "2002:a9fe:a9fe::1", "2002:c0a8:1::1", "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1", "2001:20::1", "2001:2::1", "3fff::1",
        "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "100::1", "4000::1", "5f00::1",
        "8000::1" };

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        if (is_public(texts[i]))
            FAIL("%s is allowed", texts[i]);
}

TEST(own_addresses_are_refused) {
    struct address own[2], other;

    ASSERT_OK(address_parse("8.8.8.8", &own[0]));
    ASSERT_OK(address_parse("2606:4700::1", &own[1]));
    ASSERT_OK(address_parse("::ffff:8.8.8.8", &other));
    ASSERT_FALSE(address_is_public(&other, own, 2));
    ASSERT_FALSE(address_is_public(&own[1], own, 2));
    ASSERT_TRUE(address_is_public(&own[1], own, 1));
}

TEST(networks_of_rules_match_by_prefix) {
    struct net_address network = { { 192, 0, 64 }, false, 18 };
    struct address address;

    ASSERT_OK(address_parse("192.0.127.255", &address));
    ASSERT_TRUE(address_matches(&address, &network));
    ASSERT_OK(address_parse("192.0.128.0", &address));
    ASSERT_FALSE(address_matches(&address, &network));
    network = (struct net_address){ { 0x20, 0x01, 0x48, 0x60 }, true, 32 };
    ASSERT_OK(address_parse("2001:4860:4860::8888", &address));
    ASSERT_TRUE(address_matches(&address, &network));
    ASSERT_OK(address_parse("2001:4861::", &address));
    ASSERT_FALSE(address_matches(&address, &network));
    network = (struct net_address){ { 0 }, false, 0 };
    ASSERT_FALSE(address_matches(&address, &network));
}

TEST(socket_addresses_round_trip) {
    static const char *const texts[] = { "8.8.4.4", "2001:4860:4860::8888" };

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        struct sockaddr_storage socket;
        struct address address, again;
        char text[ADDRESS_TEXT];
        uint16_t port;

        ASSERT_OK(address_parse(texts[i], &address));
        ASSERT_EQ(address_to_socket(&address, 443, &socket),
            i ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
        ASSERT_OK(address_of_socket(&socket, &again, &port));
        ASSERT_TRUE(address_equal(&address, &again));
        ASSERT_EQ(port, 443);
        ASSERT_STR_EQ(address_text(&again, text), texts[i]);
    }
}
