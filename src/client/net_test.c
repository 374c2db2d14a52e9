/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the network rules of a policy against a URL. No connection is made. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/utf8.h"
#include "client/client.h"
#include "client/net_sets.h"
#include "net/probe.h"
#include "policy/policy.h"

static void add_member(struct buf *to, const char *key, const char *text) {
    buf_printf(to, ", \"%s\": ", key);
    if (text)
        (void)utf8_json(to, text, strlen(text));
    else
        buf_add_text(to, "null");
}

static int answer(const struct policy *policy, const char *url, const char *method, char **ret_json,
    struct rollbox_error *error) {
    struct net_rules nothing = NET_RULES_DEFAULT;
    bool asks_rules = policy->net == POLICY_NET_ALLOW;
    auto_buf struct buf to = BUF_INIT;
    struct probe probe;

    if (probe_url(
            policy->net == POLICY_NET_ALLOW ? &policy->network : &nothing, url, method, &probe) < 0)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%.200s: not a URL of http, https, tcp or udp; tcp and udp need a port", url);
    const struct net_rule *rule = probe.rule >= 0 ? &policy->network.items[probe.rule] : NULL;
    const char *why = asks_rules ? match_why_text(probe.why) : "net";
    bool is_allowed = asks_rules ? probe.is_allowed : policy->net == POLICY_NET_HOST;
    buf_add_text(&to, "{\"url\": ");
    (void)utf8_json(&to, url, strlen(url));
    buf_printf(&to, ", \"allowed\": %s, \"rule\": ", is_allowed ? "true" : "false");
    if (rule)
        buf_printf(&to, "%ld", probe.rule);
    else
        buf_add_text(&to, "null");
    add_member(&to, "host", rule ? rule->host : NULL);
    add_member(&to, "set", rule ? rule->set : NULL);
    add_member(&to, "why", is_allowed ? NULL : why);
    buf_add_text(&to, "}");
    *ret_json = buf_take(&to);
    return *ret_json ? 0 : request_out_of_memory(error);
}

ROLLBOX_PUBLIC int rollbox_net_test(const char *json, size_t length, const char *url,
    const char *method, char **ret_json, struct rollbox_error *error) {
    auto_free char *filled = NULL;
    struct policy_problems problems = { 0 };
    struct policy *policy = NULL;

    if (!json || !url || !ret_json)
        return request_invalid(error, "a policy and a URL must be given");
    int r = rollbox_policy_check(json, length, NULL, error);
    if (r >= 0)
        r = net_sets_fill(json, length, &filled, error);
    if (r < 0)
        return r;
    if (filled) {
        json = filled;
        length = strlen(filled);
    }
    r = policy_parse(json, length, &policy, &problems);
    policy_problems_done(&problems);
    if (r == -ENOMEM)
        return request_out_of_memory(error);
    if (r < 0)
        return request_invalid(error, "a set of hosts has an entry that is no rule");
    r = answer(policy, url, method ? method : "GET", ret_json, error);
    policy_free(policy);
    return r;
}
