/* SPDX-License-Identifier: Apache-2.0 */
#include "net/match.h"

#include "base/cleanup.h"
#include "net/probe.h"
#include "test.h"

static struct net_ports web[] = { { 80, 80, false }, { 443, 443, false } };
static struct net_ports database[] = { { 5432, 5440, false }, { 5353, 5353, true } };

#define HOST(name) .host = (char *)(name), .ports = web, .n_ports = 2
#define RULES(list) ((struct net_rules){ .items = (list), .n = ARRAY_SIZE(list) })

TEST(wildcard_matches_subdomain_not_apex) {
    ASSERT_TRUE(match_host("*.a.org", "x.a.org"));
    ASSERT_TRUE(match_host("*.a.org", "y.x.a.org"));
    ASSERT_FALSE(match_host("*.a.org", "a.org"));
    ASSERT_FALSE(match_host("*.a.org", "xa.org"));
    ASSERT_FALSE(match_host("*.a.org", ".a.org"));
    ASSERT_FALSE(match_host("a.org", "x.a.org"));
    ASSERT_TRUE(match_host("a.org", "a.org"));
    ASSERT_TRUE(match_host("*", "anything"));
}

TEST(specific_hosts_decide_before_others) {
    struct net_rule items[] = { { HOST("*") }, { HOST("*.a.org") }, { HOST("*.b.a.org") },
        { HOST("x.b.a.org") } };
    struct net_rules rules = RULES(items);
    enum net_why why;

    ASSERT_EQ(match_connection(&rules, "x.b.a.org", 443, false, &why), 3);
    ASSERT_EQ(match_connection(&rules, "y.b.a.org", 443, false, &why), 2);
    ASSERT_EQ(match_connection(&rules, "y.a.org", 443, false, &why), 1);
    ASSERT_EQ(match_connection(&rules, "org", 443, false, &why), 0);
    ASSERT_EQ(why, NET_WHY_NONE);
}

TEST(port_and_name_refusals_differ) {
    struct net_rule items[] = { { HOST("a.org") },
        { .host = (char *)"db.org", .ports = database, .n_ports = 2 } };
    struct net_rules rules = RULES(items);
    enum net_why why;

    ASSERT_EQ(match_connection(&rules, "a.org", 22, false, &why), -1);
    ASSERT_EQ(why, NET_WHY_PORT);
    ASSERT_EQ(match_connection(&rules, "b.org", 443, false, &why), -1);
    ASSERT_EQ(why, NET_WHY_NAME);
    ASSERT_EQ(match_connection(&rules, "db.org", 5440, false, &why), 1);
    ASSERT_EQ(match_connection(&rules, "db.org", 5441, false, &why), -1);
    ASSERT_EQ(match_connection(&rules, "db.org", 5353, true, &why), 1);
    ASSERT_EQ(match_connection(&rules, "db.org", 5353, false, &why), -1);
    ASSERT_EQ(match_connection(&rules, "a.org", 443, true, &why), -1);
    ASSERT_EQ(why, NET_WHY_PORT);
    ASSERT_TRUE(match_name(&rules, "db.org"));
    ASSERT_FALSE(match_name(&rules, "b.org"));
}

TEST(literal_needs_a_rule_of_its_own) {
    struct net_rule items[] = { { HOST("*") },
        { .address = { { 8, 8 }, false, 16 }, .ports = web, .n_ports = 2 },
        { .set = (char *)"@pypi" } };
    struct net_rules rules = RULES(items);
    struct address address;
    enum net_why why;

    ASSERT_OK(address_parse("8.8.4.4", &address));
    ASSERT_EQ(match_literal(&rules, &address, 443, false, &why), 1);
    ASSERT_EQ(match_literal(&rules, &address, 53, false, &why), -1);
    ASSERT_EQ(why, NET_WHY_PORT);
    ASSERT_OK(address_parse("9.9.9.9", &address));
    ASSERT_EQ(match_literal(&rules, &address, 443, false, &why), -1);
    ASSERT_EQ(why, NET_WHY_LITERAL);
}

static char *methods[] = { (char *)"GET", (char *)"HEAD", NULL };
static char *paths[] = { (char *)"/repos/x/*", (char *)"/a*b*c", NULL };
static struct net_request requests[] = { { { methods, 2 }, { paths, 2 } } };

TEST(requests_are_allowed_by_method_and_path) {
    struct net_rule items[] = { { HOST("a.org"), .requests = requests, .n_requests = 1 } };
    struct net_rules rules = RULES(items);

    ASSERT_EQ(match_request(&rules, 0, 443, "GET", "/repos/x/y?q=../.."), 0);
    ASSERT_EQ(match_request(&rules, 0, 443, "HEAD", "/repos/x/"), 0);
    ASSERT_EQ(match_request(&rules, 0, 443, "GET", "/a-b-b-c"), 0);
    ASSERT_EQ(match_request(&rules, 0, 443, "GET", "/a-b-"), -1);
    ASSERT_EQ(match_request(&rules, 0, 443, "POST", "/repos/x/y"), -1);
    ASSERT_EQ(match_request(&rules, 0, 443, "get", "/repos/x/y"), -1);
    ASSERT_EQ(match_request(&rules, 0, 443, "GET", "/repos/x"), -1);
    ASSERT_EQ(match_request(&rules, 0, 443, "GET", "*"), -1);
}

TEST(path_tricks_match_no_pattern) {
    static const char *const tricks[] = { "/repos/x/../y", "/repos/x/..", "/repos/x/./y",
        "/repos/x//y", "/repos/x/%2e%2e/y", "/repos/x/%2E%2E/y", "/repos/x/a%2fb", "/repos/x/a%2Fb",
        "/repos/x/a\\b", "/repos/x/a%5cb", "/repos/x/..;/y", "/repos/x/..;a=b", "/repos/x/%252e",
        "/repos/x/%00", "/repos/x/%0a", "/repos/x/%", "/repos/x/%2", "/repos/x/%zz", "/repos/x/a b",
        "/repos/x/\x80", "//repos/x/y", "repos/x/y", "" };
    struct net_rule items[] = { { HOST("a.org"), .requests = requests, .n_requests = 1 } };
    struct net_rules rules = RULES(items);

    for (size_t i = 0; i < ARRAY_SIZE(tricks); i++)
        if (match_request(&rules, 0, 443, "GET", tricks[i]) >= 0)
            FAIL("%s is allowed", tricks[i]);
}

TEST(rules_of_one_host_count_together) {
    struct net_rule items[] = { { HOST("a.org") }, { HOST("b.org") },
        { HOST("b.org"), .requests = requests, .n_requests = 1, .tls = NET_TLS_TERMINATE },
        { HOST("*.org") } };
    struct net_rules rules = RULES(items);
    enum net_why why;

    ASSERT_EQ(match_connection(&rules, "b.org", 443, false, &why), 2);
    ASSERT_EQ(match_tls(&rules, 1, 443, false), NET_TLS_TERMINATE);
    ASSERT_EQ(match_tls(&rules, 0, 443, false), NET_TLS_CHECK);
    ASSERT_EQ(match_request(&rules, 2, 443, "POST", "/other"), 1);
    ASSERT_EQ(match_request(&rules, 3, 443, "POST", "/other"), 3);
}

TEST(reasons_have_texts) {
    ASSERT_EQ(match_why_of("private_address"), NET_WHY_PRIVATE_ADDRESS);
    ASSERT_EQ(match_why_of("no such reason"), NET_WHY_NONE);
    ASSERT_STR_EQ(match_why_text(NET_WHY_GATEWAY), "gateway");
}

static void assert_probe(const struct net_rules *rules, const char *url, const char *method,
    long rule, enum net_why why) {
    struct probe probe;

    ASSERT_OK(probe_url(rules, url, method, &probe));
    ASSERT_EQ(probe.rule, rule);
    ASSERT_EQ(probe.why, why);
    ASSERT_EQ(probe.is_allowed, why == NET_WHY_NONE);
}

TEST(url_is_judged_without_a_connection) {
    struct net_rule items[] = { { HOST("a.org"), .requests = requests, .n_requests = 1 },
        { .host = (char *)"db.org", .ports = database, .n_ports = 2 },
        { .address = { { 10 }, false, 8 }, .ports = web, .n_ports = 2 } };
    struct net_rules rules = RULES(items);
    struct probe probe;

    assert_probe(&rules, "https://A.org/repos/x/y", "GET", 0, NET_WHY_NONE);
    assert_probe(&rules, "https://a.org./repos/x/y?z", "POST", 0, NET_WHY_METHOD_PATH);
    assert_probe(&rules, "http://a.org:8080/", "GET", -1, NET_WHY_PORT);
    assert_probe(&rules, "http://b.org", "GET", -1, NET_WHY_NAME);
    assert_probe(&rules, "tcp://db.org:5432", "GET", 1, NET_WHY_NONE);
    assert_probe(&rules, "udp://db.org:5353", "GET", 1, NET_WHY_NONE);
    assert_probe(&rules, "https://10.1.2.3/", "GET", 2, NET_WHY_PRIVATE_ADDRESS);
    assert_probe(&rules, "https://[2001:db8::1]:443/", "GET", -1, NET_WHY_LITERAL);
    ASSERT_ERR(probe_url(&rules, "tcp://db.org", "GET", &probe), -EINVAL);
    ASSERT_ERR(probe_url(&rules, "ftp://db.org/", "GET", &probe), -EINVAL);
    ASSERT_ERR(probe_url(&rules, "https:///x", "GET", &probe), -EINVAL);
    ASSERT_ERR(probe_url(&rules, "https://a.org:99999/", "GET", &probe), -EINVAL);
    ASSERT_ERR(probe_url(&rules, "https://user@a.org:x/", "GET", &probe), -EINVAL);
}
