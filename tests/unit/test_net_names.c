/* SPDX-License-Identifier: Apache-2.0 */
#include "net/names.h"

#include <stdio.h>

#include "test.h"

static struct net_rule items[] = { { .host = (char *)"a.org" }, { .host = (char *)"*.b.org" },
    { .host = (char *)"c.org" }, { .host = (char *)"a.org" } };
static const struct net_rules rules = { .items = items, .n = 4 };

TEST(exact_names_are_numbered_in_order) {
    struct names names = { 0 };
    uint32_t address;
    bool is_new;

    ASSERT_OK(names_add_rules(&names, &rules));
    ASSERT_OK(names_address(&names, "c.org", false, &address, &is_new));
    ASSERT_EQ(address, NAMES_FIRST_EXACT + 1);
    ASSERT_FALSE(is_new);
    ASSERT_STR_EQ(names_name(&names, NAMES_FIRST_EXACT), "a.org");
    ASSERT_NULL(names_name(&names, NAMES_FIRST_EXACT + 2));
    ASSERT_NULL(names_name(&names, NAMES_FIRST_EXACT - 1));
    ASSERT_NULL(names_name(&names, 0));
    names_release(&names);
}

TEST(wildcard_names_are_numbered_as_asked_for) {
    struct names names = { 0 };
    uint32_t address;
    bool is_new;

    ASSERT_OK(names_add_rules(&names, &rules));
    ASSERT_ERR(names_address(&names, "x.b.org", false, &address, &is_new), -ENOENT);
    ASSERT_OK(names_address(&names, "x.b.org", true, &address, &is_new));
    ASSERT_TRUE(is_new);
    ASSERT_EQ(address, NAMES_FIRST_WILD);
    ASSERT_OK(names_address(&names, "x.b.org", true, &address, &is_new));
    ASSERT_FALSE(is_new);
    ASSERT_EQ(address, NAMES_FIRST_WILD);
    ASSERT_STR_EQ(names_name(&names, address), "x.b.org");
    names_release(&names);
}

TEST(wildcard_names_are_bounded) {
    struct names names = { 0 };
    uint32_t address;
    char name[32];
    bool is_new;

    for (unsigned i = 0; i < NAMES_MAX_WILD; i++) {
        snprintf(name, sizeof name, "n%u.b.org", i);
        ASSERT_OK(names_address(&names, name, true, &address, &is_new));
    }
    ASSERT_ERR(names_address(&names, "more.b.org", true, &address, &is_new), -ENOSPC);
    ASSERT_OK(names_address(&names, name, true, &address, &is_new));
    names_release(&names);
}

TEST(saved_names_keep_their_addresses) {
    struct names names = { 0 };
    uint32_t address;
    bool is_new;

    ASSERT_OK(names_load(&names, "y.b.org", NAMES_FIRST_WILD + 2));
    ASSERT_OK(names_load(&names, "y.b.org", NAMES_FIRST_WILD + 2));
    ASSERT_ERR(names_load(&names, "y.b.org", NAMES_FIRST_WILD + 3), -EEXIST);
    ASSERT_ERR(names_load(&names, "z.b.org", NAMES_FIRST_WILD + 2), -EEXIST);
    ASSERT_OK(names_load(&names, "c.org", NAMES_FIRST_EXACT));
    ASSERT_OK(names_add_rules(&names, &rules));
    ASSERT_OK(names_address(&names, "c.org", false, &address, &is_new));
    ASSERT_EQ(address, NAMES_FIRST_EXACT);
    ASSERT_OK(names_address(&names, "a.org", false, &address, &is_new));
    ASSERT_EQ(address, NAMES_FIRST_EXACT + 1);
    ASSERT_OK(names_address(&names, "new.b.org", true, &address, &is_new));
    ASSERT_EQ(address, NAMES_FIRST_WILD + 3);
    names_release(&names);
}

TEST(saved_names_outside_of_the_range_are_refused) {
    struct names names = { 0 };

    ASSERT_ERR(names_load(&names, "a.org", 0x7f000001), -EINVAL);
    ASSERT_ERR(names_load(&names, "a.org", NAMES_NETWORK), -EINVAL);
    ASSERT_ERR(names_load(&names, "a.org", NAMES_FIRST_WILD - 1), -EINVAL);
    ASSERT_ERR(names_load(&names, "a.org", NAMES_FIRST_WILD + NAMES_MAX_WILD), -EINVAL);
    ASSERT_ERR(names_load(&names, "a.org", 0xffffffff), -EINVAL);
    ASSERT_ERR(names_load(&names, "a b.org", NAMES_FIRST_WILD), -EINVAL);
}

TEST(host_names_are_checked) {
    char label[80], name[300];

    ASSERT_TRUE(names_valid("a"));
    ASSERT_TRUE(names_valid("_dns.x-1.org"));
    ASSERT_FALSE(names_valid(""));
    ASSERT_FALSE(names_valid("A.org"));
    ASSERT_FALSE(names_valid("a..org"));
    ASSERT_FALSE(names_valid(".org"));
    ASSERT_FALSE(names_valid("org."));
    ASSERT_FALSE(names_valid("a\\.org"));
    snprintf(label, sizeof label, "%063d", 0);
    ASSERT_TRUE(names_valid(label));
    snprintf(label, sizeof label, "%064d", 0);
    ASSERT_FALSE(names_valid(label));
    for (size_t i = 0; i < 253; i++)
        name[i] = i % 2 ? '.' : 'a';
    name[253] = '\0';
    ASSERT_TRUE(names_valid(name));
    memcpy(name + 253, ".a", 3);
    ASSERT_FALSE(names_valid(name));
}

TEST(fake_addresses_have_one_network) {
    ASSERT_TRUE(names_is_fake(NAMES_FIRST_EXACT));
    ASSERT_TRUE(names_is_fake(0xc613ffff));
    ASSERT_FALSE(names_is_fake(0xc6140000));
    ASSERT_FALSE(names_is_fake(0xc611ffff));
}
