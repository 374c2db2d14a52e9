/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network settings of E2B's clients as rules of a policy. Rollbox allows the hosts that are
 * named and no other, so a setting that takes something away from "everything" cannot be kept: it
 * is refused, and never ignored.
 */
#include <string.h>

#include "base/cleanup.h"
#include "serve/e2b.h"

#define EVERYTHING "0.0.0.0/0"

static bool is_given(const json_t *settings, const char *key) {
    const json_t *value = json_object_get(settings, key);

    return json_object_size(value) || json_array_size(value);
}

static bool is_list_of_texts(const json_t *list) {
    const json_t *text;
    size_t i;

    if (!list || json_is_null(list))
        return true;
    json_array_foreach((json_t *)(uintptr_t)list, i, text) {
        if (!json_is_string(text))
            return false;
    }
    return json_is_array(list);
}

/* Whether all traffic is denied; -1: the answer is given. */
static int denies_all(struct exchange *exchange, const json_t *settings) {
    const json_t *denied = json_object_get(settings, "denyOut"), *text;
    int all = json_is_false(json_object_get(settings, "allow_internet_access"));
    const char *other = NULL;
    size_t i;

    json_array_foreach((json_t *)(uintptr_t)denied, i, text) {
        if (!strcmp(json_string_value(text), EVERYTHING))
            all = 1;
        else
            other = json_string_value(text);
    }
    if (all || !other)
        return all;
    exchange_problem(exchange, 400, "feature_missing",
        "denyOut: \"%.64s\": rollbox denies everything (" EVERYTHING ") but the hosts of allowOut; "
        "it cannot deny a part of everything",
        other);
    return -1;
}

static json_t *everything(void) {
    return json_pack("[s]", "*");
}

json_t *e2b_network_rules(struct exchange *exchange, const json_t *settings, bool is_default) {
    static const char *const refused[] = { "rules", "egressProxy", "dnsServers" };
    json_t *allowed = json_object_get(settings, "allowOut");

    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        if (is_given(settings, refused[i])) {
            exchange_problem(exchange, 400, "feature_missing",
                "network.%s: rollbox does not offer this to E2B's clients; a policy of a template "
                "may have net_allow with requests and inject",
                refused[i]);
            return NULL;
        }
    }
    if (!is_list_of_texts(allowed) || !is_list_of_texts(json_object_get(settings, "denyOut"))) {
        exchange_problem(
            exchange, 400, "invalid_argument", "allowOut and denyOut must be lists of strings");
        return NULL;
    }
    int all_denied = denies_all(exchange, settings);
    if (all_denied < 0)
        return NULL;
    if (json_array_size(allowed) == 1 &&
        !strcmp(json_string_value(json_array_get(allowed, 0)), EVERYTHING))
        return everything();
    if (json_array_size(allowed))
        return json_incref(allowed);
    if (all_denied)
        return json_array();
    return is_default || json_is_true(json_object_get(settings, "allow_internet_access"))
               ? everything()
               : json_array();
}
