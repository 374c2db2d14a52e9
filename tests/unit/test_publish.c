/* SPDX-License-Identifier: Apache-2.0 */
/* src/policy/publish: addresses that lead to ports inside, right and wrong, and the policy's key.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/policy.h"
#include "policy/publish.h"
#include "test.h"

static void reads(const char *text, const char *address, unsigned port, bool is_fixed) {
    char shown[PUBLISH_ADDRESS_TEXT];
    struct publish_port found;

    if (publish_parse(text, &found) < 0)
        FAIL("%s is refused", text);
    ASSERT_STR_EQ(publish_address_text(&found.address, shown), address);
    ASSERT_EQ(found.port, port);
    ASSERT_EQ(publish_is_fixed(&found.address), is_fixed);
}

TEST(port_alone_leaves_the_address_to_the_kernel) {
    reads("8080", "127.0.0.1:0", 8080, false);
    reads("127.0.0.2:0:1", "127.0.0.2:0", 1, false);
}

TEST(address_is_a_port_a_host_or_a_path) {
    reads("5000:80", "127.0.0.1:5000", 80, true);
    reads("0.0.0.0:5000:65535", "0.0.0.0:5000", 65535, true);
    reads("[::1]:5000:80", "[::1]:5000", 80, true);
    reads("/run/a:b.sock:80", "/run/a:b.sock", 80, true);
}

TEST(other_texts_are_refused) {
    static const char *const bad[] = { "", ":", "0", "65536", "-1", " 80", "80 ", "a",
        "1:", ":1:", "localhost:1:2", "1.2.3:1:2", "[::1:1:2", "::1:5000:80", "1:0", "99999:80",
        "/path", "/path:0", "127.0.0.1:80:80:80", "1.2.3.4:80:" };
    char path[256] = "/";
    struct publish_port found;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (publish_parse(bad[i], &found) == 0)
            FAIL("%s is taken", bad[i]);
    memset(path + 1, 'a', 107);
    memcpy(path + 108, ":80", 4);
    ASSERT_EQ(publish_parse(path, &found), -EINVAL); /* longer than a socket's address */
}

TEST(policy_with_published_ports_has_a_network_of_its_own) {
    struct policy_problems problems;
    struct policy *policy = NULL;
    const char text[] = "{\"net\": \"none\", \"publish\": [8080, \"5000:80\"]}";

    ASSERT_EQ(policy_parse(text, sizeof text - 1, &policy, &problems), 0);
    ASSERT_EQ(policy->net, POLICY_NET_LOOPBACK);
    ASSERT_EQ(policy->publish.n, 2);
    ASSERT_EQ(policy->publish.items[1].port, 80);
    policy_free(policy);
}

static void refuses(const char *text, const char *why) {
    struct policy_problems problems;
    struct policy *policy = NULL;

    ASSERT_EQ(policy_parse(text, strlen(text), &policy, &problems), -EINVAL);
    ASSERT_EQ(problems.n, 1);
    ASSERT_STR_CONTAINS(problems.items[0].message, why);
    policy_problems_done(&problems);
}

TEST(policy_refuses_ports_that_cannot_be_published) {
    refuses("{\"publish\": \"8080\"}", "must be a list");
    refuses("{\"publish\": [true]}", "must be a port");
    refuses("{\"publish\": [70000]}", "is not a port to publish");
    refuses("{\"publish\": [80, \"81:80\"]}", "port 80 is there already");
    refuses("{\"publish\": [\"81:80\", \"81:82\"]}", "leads to port 80 already");
    refuses("{\"publish\": [\"a/b:80\"]}", "must begin with a '/'");
    refuses("{\"net\": \"host\", \"publish\": [80]}", "net \"host\"");
    refuses("{\"isolation\": \"process\", \"publish\": [80]}", "isolation \"process\"");
}

TEST(private_network_implies_net_allow) {
    struct policy_problems problems;
    struct policy *policy = NULL;
    const char text[] = "{\"network\": \"shop.1\", \"publish\": [80]}";

    ASSERT_EQ(policy_parse(text, sizeof text - 1, &policy, &problems), 0);
    ASSERT_EQ(policy->net, POLICY_NET_ALLOW);
    ASSERT_STR_EQ(policy->network_name, "shop.1");
    policy_free(policy);
}

TEST(private_network_has_a_plain_name) {
    refuses("{\"network\": \"a b\"}", "is no name for a network");
    refuses("{\"network\": \"a#1\"}", "is no name for a network");
    refuses("{\"network\": \"-a\"}", "is no name for a network");
    refuses("{\"net\": \"host\", \"network\": \"a\"}", "net \"host\"");
}
