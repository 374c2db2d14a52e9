/* SPDX-License-Identifier: Apache-2.0 */
/* rollbox net: the network log of a sandbox, and the hosts that it may reach. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/format.h"
#include "cli/network_options.h"
#include "cli/policy.h"
#include "cli/session.h"

static int show_log(const struct options *options, const char *json) {
    json_auto_t *answer = json_loads(json, 0, NULL);
    json_t *row;
    size_t i;

    json_array_foreach(json_object_get(answer, "log"), i, row) {
        auto_free char *line = json_dumps(row, JSON_COMPACT | JSON_PRESERVE_ORDER);

        if (line)
            puts(line);
    }
    return cli_flush(options, 0);
}

int cmd_net_log(const struct options *options) {
    struct rollbox_engine *engine;
    struct rollbox_sandbox *sandbox;
    struct rollbox_error error;
    char *json = NULL;

    int status = session_open(options, &engine, &sandbox);
    if (status)
        return status;
    if (rollbox_sandbox_query(sandbox, ROLLBOX_QUERY_NET_LOG, &json, &error) < 0)
        status = cli_fail_error(options, &error);
    else
        status = show_log(options, json);
    free(json);
    rollbox_sandbox_free(sandbox);
    rollbox_engine_close(engine);
    return status;
}

/* Makes a policy of the command line's rules. Returns 0, or an exit status after an error. */
static int rules_of(const struct options *options, char **ret_text) {
    json_auto_t *policy = json_pack("{s:s}", "net", "allow");
    const char *net = options_text(options, OPTION_NET_SET_NET);
    bool has_rules = false;

    if (net && strcmp(net, "loopback") != 0)
        return cli_fail(
            options, "--net %s: net set accepts only loopback, which withdraws all rules", net);

    for (size_t i = 0; policy && i < options->n_uses; i++) {
        const struct option_use *use = &options->uses[i];

        if (!network_option_is(use->option->id))
            continue;
        int r = network_option_add(options, policy, use);
        if (r > 0)
            return r;
        if (r < 0)
            return cli_fail(options, "--%s %s: not valid", use->option->name, use->value);
        has_rules = true;
    }
    if (has_rules == (net != NULL))
        return cli_fail(options,
            net ? "net set takes either --net loopback or rules"
                : "net set needs --allow HOST or --allow-file FILE, or --net loopback to withdraw "
                  "all rules");
    *ret_text = policy ? json_dumps(policy, JSON_COMPACT) : NULL;
    return *ret_text ? 0 : cli_fail(options, "out of memory");
}

static int show_test(const struct options *options, const char *json) {
    json_auto_t *test = json_loads(json, 0, NULL);
    const json_t *rule = json_object_get(test, "rule");
    const char *why = json_string_value(json_object_get(test, "why"));
    const char *host = json_string_value(json_object_get(test, "host"));
    auto_buf struct buf line = BUF_INIT;
    bool is_allowed = json_is_true(json_object_get(test, "allowed"));

    if (options_has(options, OPTION_JSON))
        puts(json);
    else {
        buf_add_text(&line, is_allowed ? "allowed" : "refused");
        if (why)
            buf_printf(&line, ": %s", why);
        if (json_is_integer(rule))
            buf_printf(&line, " by rule %lld", (long long)json_integer_value(rule));
        if (host)
            buf_printf(&line, ", %s", host);
        if (!buf_failed(&line))
            format_line(line.data);
    }
    return cli_flush(options, is_allowed ? 0 : 1);
}

int cmd_net_test(const struct options *options) {
    struct cli_policy policy = { 0 };
    struct rollbox_error error;
    auto_free char *json = NULL;

    int status = cli_policy_make(options, options_text(options, OPTION_POLICY), &policy, NULL);
    if (status)
        return status;
    if (rollbox_net_test(policy.text, policy.length, options->rest[0],
            options_text(options, OPTION_METHOD), &json, &error) < 0)
        status = cli_fail_error(options, &error);
    else
        status = show_test(options, json);
    cli_policy_done(&policy);
    return status;
}

int cmd_net_set(const struct options *options) {
    struct rollbox_engine *engine;
    struct rollbox_sandbox *sandbox;
    struct rollbox_error error;
    auto_free char *text = NULL;

    int status = rules_of(options, &text);
    if (!status)
        status = session_open(options, &engine, &sandbox);
    if (status)
        return status;
    if (rollbox_net_set(sandbox, text, &error) < 0)
        status = cli_fail_error(options, &error);
    else
        status = cli_done(options, 0);
    rollbox_sandbox_free(sandbox);
    rollbox_engine_close(engine);
    return status;
}
