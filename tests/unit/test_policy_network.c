/* SPDX-License-Identifier: Apache-2.0 */
/* src/policy/network: the network keys of a policy, right and wrong, and their text for the
 * gateway.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "policy/policy.h"
#include "test.h"

static struct policy *good(const char *text) {
    struct policy_problems problems;
    struct policy *policy = NULL;

    if (policy_parse(text, strlen(text), &policy, &problems) < 0)
        FAIL("%s: %s: %s", text, problems.n > 0 ? problems.items[0].key : "-",
            problems.n > 0 ? problems.items[0].message : "-");
    return policy;
}

static void one_problem(const char *text, const char *key, const char *message, const char *hint) {
    struct policy_problems problems;
    struct policy *policy = NULL;

    if (policy_parse(text, strlen(text), &policy, &problems) != -EINVAL)
        FAIL("%s is taken", text);
    if (problems.n != 1)
        FAIL("%s has %zu problems; the second: %s", text, problems.n, problems.items[1].message);
    ASSERT_STR_EQ(problems.items[0].key, key);
    ASSERT_STR_CONTAINS(problems.items[0].message, message);
    ASSERT_STR_CONTAINS(problems.items[0].hint, hint);
    policy_problems_done(&problems);
}

TEST(hosts_imply_net_allow_and_have_the_ports_of_the_web) {
    struct policy *p = good("{\"net_allow_hosts\": [\"PyPI.org.\", \"*.pythonhosted.org\", "
                            "\"db.example.org:5432\"]}");

    ASSERT_EQ(p->net, POLICY_NET_ALLOW);
    ASSERT_EQ(p->network.n, 3);
    ASSERT_STR_EQ(p->network.items[0].host, "pypi.org");
    ASSERT_EQ(p->network.items[0].n_ports, 2);
    ASSERT_EQ(p->network.items[0].ports[0].first, 80);
    ASSERT_EQ(p->network.items[0].ports[1].last, 443);
    ASSERT_EQ(p->network.items[0].tls, NET_TLS_CHECK);
    ASSERT_STR_EQ(p->network.items[1].host, "*.pythonhosted.org");
    ASSERT_EQ(p->network.items[2].n_ports, 1);
    ASSERT_EQ(p->network.items[2].ports[0].first, 5432);
    ASSERT_EQ(p->network.max_connections, 64);
    ASSERT_EQ(p->network.idle_s, 300);
    policy_free(p);
}

TEST(empty_list_allows_nothing_and_implies_nothing) {
    struct policy *p = good("{\"net_allow_hosts\": []}");

    ASSERT_EQ(p->net, POLICY_NET_NONE);
    policy_free(p);
    p = good("{\"net\": \"allow\"}");
    ASSERT_EQ(p->net, POLICY_NET_ALLOW);
    ASSERT_EQ(p->network.n, 0);
    policy_free(p);
}

TEST(addresses_and_networks_are_rules_too) {
    struct policy *p = good("{\"net_allow\": [\"192.0.2.7\", \"10.0.0.0/8:5432\", "
                            "\"[2001:db8::/32]:53/udp\", \"2001:db8::1\"]}");
    const struct net_rule *rules = p->network.items;

    ASSERT_NULL(rules[0].host);
    ASSERT_EQ(rules[0].address.prefix, 32);
    ASSERT_EQ(rules[1].address.prefix, 8);
    ASSERT_EQ(rules[1].ports[0].first, 5432);
    ASSERT_TRUE(rules[2].address.is_v6);
    ASSERT_EQ(rules[2].address.prefix, 32);
    ASSERT_TRUE(rules[2].ports[0].is_udp);
    ASSERT_EQ(rules[3].address.prefix, 128);
    ASSERT_EQ(rules[3].n_ports, 2);
    policy_free(p);
}

TEST(rule_with_requests_or_headers_terminates_tls) {
    struct policy *p = good(
        "{\"net_allow\": [{\"host\": \"api.github.com\", \"requests\": [{\"methods\": [\"GET\"], "
        "\"paths\": [\"/repos/x/*\"]}], \"inject\": {\"Authorization\": \"Bearer {github}\"}}, "
        "\"pypi.org\"], \"net_secrets\": {\"github\": {\"from\": \"env:GITHUB_TOKEN\", \"as\": "
        "\"GITHUB_TOKEN\"}}}");
    const struct net_rule *rule = &p->network.items[0];

    ASSERT_TRUE(net_rule_terminates(rule));
    ASSERT_FALSE(net_rule_terminates(&p->network.items[1]));
    ASSERT_TRUE(net_rules_terminate(&p->network));
    ASSERT_EQ(rule->n_ports, 1); /* a secret is not sent in clear */
    ASSERT_EQ(rule->ports[0].first, 443);
    ASSERT_STR_EQ(rule->requests[0].methods.items[0], "GET");
    ASSERT_STR_EQ(rule->requests[0].paths.items[0], "/repos/x/*");
    ASSERT_STR_EQ(rule->inject[0].name, "Authorization");
    ASSERT_STR_EQ(p->network.secrets[0].as, "GITHUB_TOKEN");
    policy_free(p);
}

TEST(target_is_an_address_with_a_port) {
    struct policy *p = good("{\"net_allow\": [{\"host\": \"judge\", \"to\": \"127.0.0.1:9000\"}, "
                            "{\"host\": \"model\", \"to\": \"http://[::1]:9001\"}]}");

    ASSERT_EQ(p->network.items[0].to->port, 9000);
    ASSERT_FALSE(p->network.items[0].to->is_plain);
    ASSERT_EQ(p->network.items[0].tls, NET_TLS_CHECK);
    ASSERT_TRUE(p->network.items[1].to->is_plain);
    ASSERT_TRUE(p->network.items[1].to->address.is_v6);
    ASSERT_EQ(p->network.items[1].tls, NET_TLS_TERMINATE);
    policy_free(p);
}

TEST(text_for_the_gateway_says_the_same) {
    static const char text[] =
        "{\"net_allow\": [\"pypi.org\", \"10.0.0.0/8:1-9\", {\"host\": \"*.a.org\", \"ports\": "
        "[\"53/udp\"], \"private\": true, \"ech\": \"allow\"}, {\"host\": \"b.org\", \"set\": "
        "\"@b\", \"to\": \"http://[::1]:7\", \"requests\": [{\"paths\": [\"/x\"]}], \"inject\": "
        "{\"A\": \"{s}\"}}], \"net_secrets\": {\"s\": \"env:S\"}, \"net_max_upload\": \"1M\", "
        "\"net_log\": \"requests\", \"net_max_rate\": \"2K\", \"net_max_requests\": 5}";
    struct policy *first = good(text);
    auto_free char *one = net_rules_text(first);
    struct policy *second = good(one);
    auto_free char *two = net_rules_text(second);

    ASSERT_STR_EQ(one, two);
    ASSERT_EQ(second->network.n, 4);
    ASSERT_TRUE(second->network.items[2].allows_private);
    ASSERT_TRUE(second->network.items[2].allows_ech);
    ASSERT_EQ(second->network.items[1].ports[0].last, 9);
    ASSERT_STR_EQ(second->network.items[3].set, "@b");
    ASSERT_EQ(second->network.max_upload_bytes, 1048576);
    ASSERT_EQ(second->network.log, NET_LOG_REQUESTS);
    ASSERT_NULL(strstr(one, "env:")); /* where a secret comes from is for the client alone */
    policy_free(first);
    policy_free(second);
}

TEST(wrong_network_keys_say_what_to_write) {
    static const struct {
        const char *text, *key, *message, *hint;
    } rows[] = {
        { "{\"net_allow_hosts\": \"\"}", "net_allow_hosts", "must be a list", "" },
        { "{\"net_allow_hosts\": [1]}", "net_allow_hosts[0]", "must be a host", "use net_allow" },
        { "{\"net_allow_hosts\": [\"https://pypi.org/\"]}", "net_allow_hosts[0]", "",
            "host alone" },
        { "{\"net_allow_hosts\": [\"pypi.org/simple\"]}", "net_allow_hosts[0]", "not a host name",
            "no path" },
        { "{\"net_allow_hosts\": [\"pypi.org:0\"]}", "net_allow_hosts[0]", "not a port", "443" },
        { "{\"net_allow_hosts\": [\"pypi.org:65536\"]}", "net_allow_hosts[0]", "not a port", "" },
        { "{\"net_allow_hosts\": [\"a..b\"]}", "net_allow_hosts[0]", "two dots", "" },
        { "{\"net_allow_hosts\": [\"1.2.3\"]}", "net_allow_hosts[0]", "not an address", "" },
        { "{\"net_allow_hosts\": [\"10.0.0.1/8\"]}", "net_allow_hosts[0]", "not a network",
            "10.0.0.0/8" },
        { "{\"net_allow_hosts\": [\"b\\u00fccher.de\"]}", "net_allow_hosts[0]", "", "xn--" },
        { "{\"net_allow_hosts\": [\"localhost\"]}", "net_allow_hosts[0]", "sandbox itself", "to" },
        { "{\"net_allow_hosts\": [\"127.0.0.2:80\"]}", "net_allow_hosts[0]", "sandbox itself",
            "to" },
        { "{\"net_allow_hosts\": [\"[::1]:80\"]}", "net_allow_hosts[0]", "sandbox itself", "to" },
        { "{\"net_allow_hosts\": [\"@PyPI\"]}", "net_allow_hosts[0]", "name of a set", "" },
        { "{\"net\": \"none\", \"net_allow_hosts\": [\"pypi.org\"]}", "net", "allows hosts",
            "\"net\": \"allow\"" },
        { "{\"net_allow\": [{\"ports\": [1]}]}", "net_allow[0].host", "no \"host\"", "" },
        { "{\"net_allow\": [{\"host\": \"a\", \"port\": 1}]}", "net_allow[0].port", "unknown key",
            "ports" },
        { "{\"net_allow\": [{\"host\": \"a\", \"tls\": \"raw\", \"inject\": {\"A\": \"b\"}}]}",
            "net_allow[0]", "passes requests through unread", "leave tls out" },
        { "{\"net_allow\": [{\"host\": \"a\", \"requests\": []}]}", "net_allow[0].requests",
            "an empty one", "" },
        { "{\"net_allow\": [{\"host\": \"a\", \"requests\": [{\"methods\": [\"get\"]}]}]}",
            "net_allow[0].requests[0].methods", "not a method", "" },
        { "{\"net_allow\": [{\"host\": \"a\", \"inject\": {\"Host\": \"b\"}}]}",
            "net_allow[0].inject", "not a header that can be set", "" },
        { "{\"net_allow\": [{\"host\": \"a\", \"inject\": {\"A\": \"b\\r\\nC: d\"}}]}",
            "net_allow[0].inject", "one line", "" },
        { "{\"net_allow\": [{\"host\": \"a\", \"inject\": {\"A\": \"{t}\"}}]}", "net_allow",
            "net_secrets does not have", "" },
        { "{\"net_allow\": [{\"host\": \"a\", \"to\": \"judge:9000\"}]}", "net_allow[0].to",
            "not an address", "127.0.0.1:9000" },
        { "{\"net_allow\": [{\"host\": \"1.2.3.4\", \"to\": \"127.0.0.1:9\"}]}", "net_allow[0]",
            "needs a name", "" },
        { "{\"net\": \"allow\", \"net_secrets\": {\"t\": \"hunter2\"}}", "net_secrets.t",
            "where the secret is", "never" },
        { "{\"net_secrets\": {\"t\": \"env:T\"}}", "net", "net_secrets needs", "" },
        { "{\"net_allow\": [{\"host\": \"a\", \"tls\": \"check\"}], \"net_record\": \"/a\"}",
            "net_record", "cannot be recorded", "terminate" },
        { "{\"net_allow\": [\"a:1/udp\"], \"net_replay\": \"/b\"}", "net_replay", "UDP", "" },
        { "{\"net\": \"allow\", \"net_record\": \"/a\", \"net_replay\": \"/b\"}", "net_replay",
            "not recorded", "net_record" },
        { "{\"net_log\": \"all\"}", "net_log", "none of its values", "" },
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        one_problem(rows[i].text, rows[i].key, rows[i].message, rows[i].hint);
}

TEST(problem_inside_a_rule_has_its_line) {
    static const char text[] = "{\n\"net_allow\": [\n\"pypi.org\",\n{\"host\": \"a\",\n"
                               "\"ports\": [0]}]}";
    struct policy_problems problems;
    struct policy *policy = NULL;

    ASSERT_EQ(policy_parse(text, sizeof text - 1, &policy, &problems), -EINVAL);
    ASSERT_EQ(problems.items[0].line, 5);
    ASSERT_STR_EQ(problems.items[0].key, "net_allow[1].ports");
    policy_problems_done(&problems);
}
