/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the network keys of a policy, and writes them as a text for the gateway.
 *
 * A rule is given as a text ("pypi.org", "db.example.org:5432", "192.0.2.0/24:22", "@pypi") or as
 * an object with a "host" of that form and more. Nothing on the host is looked at: sets such as
 * "@pypi" are filled in by the client before the policy is sent.
 */
#include "policy/network.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "policy/network_read.h"
#include "policy/policy.h"

#define MAX_RULES 1024u
#define MAX_PORTS 64u
#define MAX_REQUESTS 64u
#define MAX_WORDS 64u
#define MAX_HEADERS 16u
#define MAX_SECRETS 64u
#define MAX_HOST 253u
#define MAX_LABEL 63u
#define MAX_HEADER_BYTES 4096u

static const char *const tls_words[] = {
    [NET_TLS_CHECK] = "check", [NET_TLS_TERMINATE] = "terminate", [NET_TLS_RAW] = "raw"
};
static const char *const log_words[] = {
    [NET_LOG_CONNECTIONS] = "connections", [NET_LOG_REQUESTS] = "requests", [NET_LOG_NONE] = "none"
};

/* One more zeroed item at the end of an array; NULL after noting that memory is out. */
static void *add_item(struct reader *r, void *items_pointer, size_t *n, size_t size) {
    void **items = items_pointer;
    char *more = reallocarray(*items, *n + 1, size);

    if (!more) {
        r->out_of_memory = true;
        return NULL;
    }
    *items = more;
    memset(more + *n * size, 0, size);
    return more + (*n)++ * size;
}

static void add_word(struct reader *r, struct policy_strings *to, const char *text) {
    char **items = reallocarray(to->items, to->n + 2, sizeof *items);

    if (!items) {
        r->out_of_memory = true;
        return;
    }
    to->items = items;
    items[to->n] = read_copy(r, text);
    to->n += items[to->n] != NULL;
    items[to->n] = NULL;
}

/* ---- hosts, addresses and ports ---- */

static bool is_label_character(char c) {
    return isalnum((unsigned char)c) || c == '-' || c == '_';
}

/* NULL if the text can be the name of a host, else the reason. */
static const char *host_problem(const char *host) {
    size_t label = 0, length = strlen(host);
    const char *last = host;

    if (length > MAX_HOST)
        return "is longer than 253 characters";
    for (const char *p = host; *p; p++) {
        if (*p == '.') {
            if (label == 0)
                return "has two dots in a row, or begins with one";
            label = 0;
            last = p + 1;
        } else if (!is_label_character(*p))
            return "is not a host name";
        else if (++label > MAX_LABEL)
            return "has a part of more than 63 characters";
    }
    if (label == 0)
        return "ends with a dot";
    if (last[strspn(last, "0123456789")] == 0)
        return "is not an address, and no host name ends with a number";
    return NULL;
}

static bool read_number(const char *text, size_t length, unsigned max, unsigned *ret) {
    unsigned value = 0;

    if (length == 0 || length > 5)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (!isdigit((unsigned char)text[i]))
            return false;
        value = value * 10 + (unsigned)(text[i] - '0');
    }
    *ret = value;
    return value <= max;
}

/* "443", "8000-8010", "53/udp", "53/tcp". */
static bool parse_ports(const char *text, struct net_ports *ret) {
    size_t length = strcspn(text, "/"), dash = strcspn(text, "-/");
    unsigned first, last;

    if (text[length] && strcmp(text + length, "/udp") && strcmp(text + length, "/tcp"))
        return false;
    if (!read_number(text, dash, 65535, &first))
        return false;
    last = first;
    if (dash < length && !read_number(text + dash + 1, length - dash - 1, 65535, &last))
        return false;
    *ret = (struct net_ports){ (uint16_t)first, (uint16_t)last, !strcmp(text + length, "/udp") };
    return first > 0 && first <= last;
}

static void add_ports(struct reader *r, struct net_rule *rule, const char *text) {
    struct net_ports ports;

    if (!parse_ports(text, &ports)) {
        read_bad(r, "write 443, \"8000-8010\" or \"53/udp\"",
            "\"%.40s\" is not a port: those are 1 to 65535", text);
        return;
    }
    if (rule->n_ports == MAX_PORTS) {
        read_bad(r, "write ranges", "has more than %u ports", MAX_PORTS);
        return;
    }
    struct net_ports *added = add_item(r, &rule->ports, &rule->n_ports, sizeof *rule->ports);
    if (added)
        *added = ports;
}

/* "192.0.2.1", "2001:db8::/32". 1: it is an address; 0: it is none; -EINVAL: a bad prefix. */
static int parse_address(const char *text, size_t length, struct net_address *ret) {
    char copy[INET6_ADDRSTRLEN + 8], *slash;
    unsigned prefix;

    if (length >= sizeof copy)
        return 0;
    memcpy(copy, text, length);
    copy[length] = '\0';
    slash = strchr(copy, '/');
    if (slash)
        *slash++ = '\0';
    *ret = (struct net_address){ .is_v6 = strchr(copy, ':') != NULL };
    if (inet_pton(ret->is_v6 ? AF_INET6 : AF_INET, copy, ret->bytes) != 1)
        return 0;
    prefix = ret->is_v6 ? 128 : 32;
    if (slash && !read_number(slash, strlen(slash), prefix, &prefix))
        return -EINVAL;
    ret->prefix = (uint8_t)prefix;
    for (unsigned bit = prefix; bit < (ret->is_v6 ? 128u : 32u); bit++)
        if (ret->bytes[bit / 8] & (0x80 >> bit % 8))
            return -EINVAL;
    return 1;
}

/* The end of the host in "host:port", "[v6]:port", "v6", "v4/8:port". */
static size_t host_length(const char *text) {
    const char *colon = strchr(text, ':');

    if (*text == '[')
        return strcspn(text, "]") + (strchr(text, ']') != NULL);
    return colon && !strchr(colon + 1, ':') ? (size_t)(colon - text) : strlen(text);
}

static const char *host_hint(const char *text) {
    if (strstr(text, "://"))
        return "write the host alone; \"requests\" restricts methods and paths";
    if (strchr(text, '/'))
        return "a host has no path; \"requests\" restricts paths";
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p >= 0x80)
            return "write an international name in its ASCII form, \"xn--...\"";
    return "write \"pypi.org\", \"*.example.org\", \"192.0.2.0/24\" or \"@pypi\"";
}

static void refuse_own(struct reader *r, const char *text) {
    read_bad(r,
        "the loopback is the sandbox's own; for a server of the host, name one and say "
        "where it is: {\"host\": \"model\", \"to\": \"127.0.0.1:9000\"}",
        "\"%.80s\" is the sandbox itself", text);
}

/* Such connections never leave the sandbox, so a rule for them would do nothing. */
static bool is_loopback(const struct net_address *address) {
    static const uint8_t v6[16] = { [15] = 1 };

    return address->is_v6 ? address->prefix == 128 && memcmp(address->bytes, v6, sizeof v6) == 0
                          : address->prefix >= 8 && address->bytes[0] == 127;
}

static void read_name(struct reader *r, struct net_rule *rule, const char *text, size_t length) {
    char name[MAX_HOST + 3];
    const char *problem = "is longer than 253 characters";

    if (length && text[length - 1] == '.')
        length--; /* the root of names */
    if (length < sizeof name) {
        for (size_t i = 0; i < length; i++)
            name[i] = (char)tolower((unsigned char)text[i]);
        name[length] = '\0';
        problem = strcmp(name, "*") == 0
                      ? NULL
                      : host_problem(strncmp(name, "*.", 2) == 0 ? name + 2 : name);
    }
    if (problem)
        read_bad(r, host_hint(text), "\"%.80s\" %s", text, problem);
    else if (strcmp(name, "localhost") == 0)
        refuse_own(r, text);
    else
        rule->host = read_copy(r, name);
}

/* "host", "host:port", "ADDRESS", "ADDRESS/PREFIX:port", "@set". */
static void read_host(struct reader *r, struct net_rule *rule, const char *text) {
    size_t length = host_length(text);
    bool in_brackets = *text == '[' && length > 2;
    int r_address = parse_address(text + in_brackets, length - 2 * in_brackets, &rule->address);

    if (strstr(text, "://")) {
        read_bad(r, host_hint(text), "\"%.80s\" is a URL, not a host", text);
        return;
    }
    if (*text == '@') {
        if (!text[1] || text[1 + strspn(text + 1, "abcdefghijklmnopqrstuvwxyz0123456789-_")])
            read_bad(r, "write \"@pypi\"", "\"%.40s\" is not the name of a set", text);
        else
            rule->set = read_copy(r, text);
        return;
    }
    if (r_address < 0)
        read_bad(r, "write the network with zeros after its prefix: \"10.0.0.0/8\"",
            "\"%.60s\" is not a network", text);
    else if (r_address == 0)
        read_name(r, rule, text, length);
    else if (is_loopback(&rule->address))
        refuse_own(r, text);
    if (text[length] == ':')
        add_ports(r, rule, text + length + 1);
    else if (text[length])
        read_bad(r, host_hint(text), "\"%.80s\" is not a host", text);
}

/* ---- members of a rule ---- */

static void read_rule_ports(struct reader *r, struct net_rule *rule, const json_t *value) {
    const json_t *one = value;
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    char number[24];

    for (size_t i = 0; i < n; i++) {
        if (json_is_array(value))
            one = json_array_get(value, i);
        if (json_is_integer(one)) {
            snprintf(number, sizeof number, "%lld", (long long)json_integer_value(one));
            add_ports(r, rule, number);
        } else if (json_is_string(one))
            add_ports(r, rule, json_string_value(one));
        else
            read_bad(r, "write [443]", "must be a port or a list of ports, not %s", read_type(one));
    }
}

static void read_words(struct reader *r, const json_t *value, const char *what,
    bool (*is_good)(const char *), struct policy_strings *to) {
    const json_t *one = value;
    size_t n = json_is_array(value) ? json_array_size(value) : 1;

    if (n > MAX_WORDS) {
        read_bad(r, "", "has more than %u entries", MAX_WORDS);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (json_is_array(value))
            one = json_array_get(value, i);
        const char *text = read_text(r, one, what);
        if (text && !is_good(text))
            read_bad(r, "", "\"%.60s\" is not %s", text, what);
        else if (text)
            add_word(r, to, text);
    }
}

/* A token of RFC 9110: methods and the names of headers. */
static bool is_token(const char *text) {
    for (const char *p = text; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("!#$%&'*+-.^_`|~", *p))
            return false;
    return *text != 0;
}

static bool is_method(const char *text) {
    for (const char *p = text; *p; p++)
        if (islower((unsigned char)*p))
            return false;
    return is_token(text);
}

static bool is_request_path(const char *text) {
    for (const char *p = text; *p; p++)
        if (!isgraph((unsigned char)*p) || *p == '#')
            return false;
    return *text == '/' || *text == '*';
}

static void read_request(struct reader *r, struct net_rule *rule, json_t *value) {
    char path[96];
    const char *outer = r->member, *key;
    json_t *member;

    if (!json_is_object(value)) {
        read_bad(r, "write {\"methods\": [\"GET\"], \"paths\": [\"/simple/*\"]}",
            "must be an object, not %s", read_type(value));
        return;
    }
    struct net_request *request =
        add_item(r, &rule->requests, &rule->n_requests, sizeof *rule->requests);
    if (!request)
        return;
    json_object_foreach(value, key, member) {
        snprintf(path, sizeof path, "%.60s.%.30s", outer, key);
        r->member = path;
        if (strcmp(key, "methods") == 0)
            read_words(r, member, "a method in capitals", is_method, &request->methods);
        else if (strcmp(key, "paths") == 0)
            read_words(r, member, "a path that begins with /", is_request_path, &request->paths);
        else
            read_bad(r, "there are methods and paths", "unknown key \"%.40s\"", key);
    }
    r->member = outer;
}

static void read_requests(struct reader *r, struct net_rule *rule, json_t *value) {
    char path[48];
    const char *outer = r->member;

    if (!json_is_array(value) || !json_array_size(value)) {
        read_bad(r, "write [{\"methods\": [\"GET\"], \"paths\": [\"/*\"]}]",
            "must be a list with a request, not %s",
            json_is_array(value) ? "an empty one" : read_type(value));
        return;
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (i == MAX_REQUESTS) {
            read_bad(r, "", "has more than %u entries", MAX_REQUESTS);
            break;
        }
        snprintf(path, sizeof path, "%.20s[%zu]", outer, i);
        r->member = path;
        read_request(r, rule, json_array_get(value, i));
    }
    r->member = outer;
}

/* Headers that decide where a message goes and where it ends belong to the gateway. */
static bool is_reserved_header(const char *name) {
    static const char *const reserved[] = { "host", "content-length", "transfer-encoding",
        "connection", "upgrade", "te", "trailer", "keep-alive", "proxy-connection" };

    for (size_t i = 0; i < ARRAY_SIZE(reserved); i++)
        if (strcasecmp(name, reserved[i]) == 0)
            return true;
    return false;
}

static bool is_header_value(const char *text) {
    for (const char *p = text; *p; p++)
        if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7f)
            return false;
    return strlen(text) <= MAX_HEADER_BYTES;
}

static void read_inject(struct reader *r, struct net_rule *rule, json_t *value) {
    const char *name;
    json_t *member;

    if (!json_is_object(value) || json_object_size(value) > MAX_HEADERS) {
        read_bad(r, "write {\"Authorization\": \"Bearer {token}\"}",
            "must be an object of at most %u headers", MAX_HEADERS);
        return;
    }
    json_object_foreach(value, name, member) {
        const char *text = json_string_value(member);

        if (!is_token(name) || is_reserved_header(name))
            read_bad(r, "", "\"%.40s\" is not a header that can be set", name);
        else if (!text || strlen(text) != json_string_length(member) || !is_header_value(text))
            read_bad(r, "write \"Bearer {token}\"",
                "the header \"%.40s\" must have a text of one line", name);
        else {
            struct net_header *header =
                add_item(r, &rule->inject, &rule->n_inject, sizeof *rule->inject);
            if (header) {
                header->name = read_copy(r, name);
                header->value = read_copy(r, text);
            }
        }
    }
}

/* "127.0.0.1:9000", "[::1]:9000", "http://127.0.0.1:9000". */
static void read_target(struct reader *r, struct net_rule *rule, const json_t *value) {
    static const char plain[] = "http://";
    const char *text = read_text(r, value, "\"ADDRESS:PORT\""), *at = text;
    struct net_target target = { 0 };
    unsigned port = 0;

    if (!text)
        return;
    if (strncmp(text, plain, sizeof plain - 1) == 0) {
        target.is_plain = true;
        at += sizeof plain - 1;
    } else if (strncmp(text, "https://", 8) == 0)
        at += 8;
    size_t length = host_length(at);
    bool in_brackets = *at == '[' && length > 2;
    if (parse_address(at + in_brackets, length - 2 * in_brackets, &target.address) != 1 ||
        target.address.prefix != (target.address.is_v6 ? 128 : 32) || at[length] != ':' ||
        !read_number(at + length + 1, strlen(at + length + 1), 65535, &port) || !port) {
        read_bad(r, "write \"127.0.0.1:9000\", or \"http://127.0.0.1:9000\" for one without TLS",
            "\"%.60s\" is not an address with a port", text);
        return;
    }
    target.port = (uint16_t)port;
    rule->to = malloc(sizeof *rule->to);
    if (rule->to)
        *rule->to = target;
    else
        r->out_of_memory = true;
}

static void read_ech(struct reader *r, struct net_rule *rule, const json_t *value) {
    static const char *const words[] = { "refuse", "allow" };
    int found = read_word(r, value, words, ARRAY_SIZE(words));

    if (found >= 0)
        rule->allows_ech = found == 1;
}

static void read_set_name(struct reader *r, struct net_rule *rule, const json_t *value) {
    const char *text = read_text(r, value, "\"@NAME\"");

    if (text && !rule->set)
        rule->set = read_copy(r, text);
}

/* Checks of a rule's members against one another. */
static void check_rule(struct reader *r, struct net_rule *rule, bool tls_given) {
    r->member = NULL;
    if (tls_given && rule->tls != NET_TLS_TERMINATE && (rule->n_requests || rule->n_inject))
        read_bad(r, "leave tls out, or write \"terminate\"",
            "tls \"%s\" passes requests through unread: \"%s\" cannot be carried out",
            tls_words[rule->tls], rule->n_requests ? "requests" : "inject");
    else if (rule->n_requests || rule->n_inject)
        rule->tls = NET_TLS_TERMINATE;
    if (rule->to && rule->to->is_plain)
        rule->tls = rule->tls == NET_TLS_CHECK && !tls_given ? NET_TLS_TERMINATE : rule->tls;
    if (rule->to && !rule->host && !rule->set)
        read_bad(r, "give \"host\" a name for it: {\"host\": \"model\", \"to\": ...}",
            "\"to\" needs a name in \"host\", not an address");
    if (!rule->n_ports && !rule->set) {
        /* A secret is never sent in clear over a network. */
        bool is_secret = rule->n_inject && !rule->to;
        if (!is_secret)
            add_ports(r, rule, "80");
        add_ports(r, rule, "443");
    }
    for (size_t i = 0; i < rule->n_ports; i++)
        if (rule->ports[i].is_udp && (rule->tls == NET_TLS_TERMINATE))
            read_bad(r, "give UDP ports a rule of their own",
                "requests and headers cannot be read in UDP");
}

static void read_rule_object(struct reader *r, struct net_rule *rule, json_t *value) {
    const char *key;
    json_t *member, *host = json_object_get(value, "host");
    bool tls_given = rule->tls_given = json_object_get(value, "tls") != NULL;
    int found;

    r->member = "host";
    const char *text = host ? read_text(r, host, "a host") : NULL;
    if (text)
        read_host(r, rule, text);
    else if (!host)
        read_bad(r, "write {\"host\": \"pypi.org\", ...}", "a rule has no \"host\"");
    json_object_foreach(value, key, member) {
        r->member = key;
        if (strcmp(key, "ports") == 0)
            read_rule_ports(r, rule, member);
        else if (strcmp(key, "tls") == 0) {
            found = read_word(r, member, tls_words, ARRAY_SIZE(tls_words));
            if (found >= 0)
                rule->tls = (enum net_tls)found;
        } else if (strcmp(key, "to") == 0)
            read_target(r, rule, member);
        else if (strcmp(key, "requests") == 0)
            read_requests(r, rule, member);
        else if (strcmp(key, "inject") == 0)
            read_inject(r, rule, member);
        else if (strcmp(key, "private") == 0)
            read_bool(r, member, &rule->allows_private);
        else if (strcmp(key, "ech") == 0)
            read_ech(r, rule, member);
        else if (strcmp(key, "set") == 0)
            read_set_name(r, rule, member);
        else if (strcmp(key, "host") != 0)
            read_bad(r, "there are host, ports, tls, to, requests, inject, private and ech",
                "unknown key \"%.40s\"", key);
    }
    check_rule(r, rule, tls_given);
}

static void read_rules(struct reader *r, json_t *value, bool objects) {
    struct net_rules *rules = &r->policy->network;

    if (!json_is_array(value)) {
        read_bad(r, json_is_string(value) ? "put it between [ and ]" : "", "must be a list, not %s",
            read_type(value));
        return;
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        json_t *one = json_array_get(value, i);

        r->index = (long)i;
        r->member = NULL;
        if (rules->n == MAX_RULES) {
            read_bad(r, "use \"*.example.org\"", "has more than %u rules", MAX_RULES);
            break;
        }
        if (!json_is_string(one) && !(objects && json_is_object(one))) {
            read_bad(r, objects ? "" : "use net_allow for rules with more than a host",
                "must be a host, not %s", read_type(one));
            continue;
        }
        struct net_rule *rule = add_item(r, &rules->items, &rules->n, sizeof *rules->items);
        if (!rule)
            return;
        if (json_is_object(one))
            read_rule_object(r, rule, one);
        else {
            const char *text = read_text(r, one, "a host");
            if (text)
                read_host(r, rule, text);
            if (text && !r->bad)
                check_rule(r, rule, false);
        }
    }
    r->index = -1;
    r->member = NULL;
}

/* ---- keys ---- */

void key_net(struct reader *r, json_t *value) {
    static const char *const words[] = { [POLICY_NET_NONE] = "none",
        [POLICY_NET_LOOPBACK] = "loopback",
        [POLICY_NET_ALLOW] = "allow",
        [POLICY_NET_HOST] = "host" };
    int found = read_word(r, value, words, ARRAY_SIZE(words));

    if (found < 0)
        return;
    r->policy->net = (enum policy_net)found;
    r->net_given = true;
}

void key_net_allow_hosts(struct reader *r, json_t *value) {
    read_rules(r, value, false);
}

void key_net_allow(struct reader *r, json_t *value) {
    read_rules(r, value, true);
}

static bool is_source(const char *from) {
    if (strncmp(from, "env:", 4) == 0)
        return from[4] && !strchr(from, '=');
    if (strncmp(from, "file:", 5) == 0)
        return from[5] == '/';
    return strncmp(from, "fd:", 3) == 0 && from[3] &&
           from[3 + strspn(from + 3, "0123456789")] == 0 && strlen(from) < 10;
}

static bool is_variable(const char *text) {
    size_t length = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");

    return length && !text[length] && !isdigit((unsigned char)*text);
}

static void read_secret(struct reader *r, const char *name, json_t *value) {
    json_t *from = json_is_object(value) ? json_object_get(value, "from") : value;
    json_t *as = json_is_object(value) ? json_object_get(value, "as") : NULL;
    const char *source = from ? read_text(r, from, "\"env:VARIABLE\"") : NULL;
    const char *variable = as ? read_text(r, as, "the name of a variable") : NULL;

    if (!is_variable(name))
        read_bad(r, "use letters, digits and _", "\"%.40s\" cannot name a secret", name);
    if (json_is_object(value) && !from)
        read_bad(r, "write {\"from\": \"env:GITHUB_TOKEN\"}", "has no \"from\"");
    if (json_is_object(value) && json_object_size(value) > (size_t) !!from + !!as)
        read_bad(r, "there are from and as", "has an unknown key");
    if (source && !is_source(source))
        read_bad(r,
            "write \"env:VARIABLE\", \"file:/path\" or \"fd:3\": the secret itself is never "
            "in a policy",
            "does not say where the secret is");
    if (variable && !is_variable(variable))
        read_bad(r, "", "\"%.40s\" is not a name for a variable", variable);
    if (!source || r->bad)
        return;
    struct net_rules *rules = &r->policy->network;
    struct net_secret *secret =
        add_item(r, &rules->secrets, &rules->n_secrets, sizeof *rules->secrets);
    if (!secret)
        return;
    secret->name = read_copy(r, name);
    secret->from = read_copy(r, source);
    secret->as = variable ? read_copy(r, variable) : NULL;
}

void key_net_secrets(struct reader *r, json_t *value) {
    const char *name;
    json_t *member;

    if (!json_is_object(value) || json_object_size(value) > MAX_SECRETS) {
        read_bad(r, "write {\"github\": {\"from\": \"env:GITHUB_TOKEN\"}}",
            "must be an object of at most %u secrets", MAX_SECRETS);
        return;
    }
    json_object_foreach(value, name, member) {
        r->member = name;
        read_secret(r, name, member);
    }
    r->member = NULL;
}

void key_net_max_connections(struct reader *r, json_t *value) {
    read_count(r, value, 1, 65536, &r->policy->network.max_connections);
}

void key_net_max_requests(struct reader *r, json_t *value) {
    read_count(r, value, 1, UINT32_MAX, &r->policy->network.max_requests);
}

void key_net_max_upload(struct reader *r, json_t *value) {
    read_size(r, value, 1, "1", &r->policy->network.max_upload_bytes);
}

void key_net_max_download(struct reader *r, json_t *value) {
    read_size(r, value, 1, "1", &r->policy->network.max_download_bytes);
}

void key_net_max_rate(struct reader *r, json_t *value) {
    read_size(r, value, 1024, "1K", &r->policy->network.max_bytes_per_s);
}

void key_net_idle(struct reader *r, json_t *value) {
    read_count(r, value, 1, 86400, &r->policy->network.idle_s);
}

void key_net_log(struct reader *r, json_t *value) {
    int found = read_word(r, value, log_words, ARRAY_SIZE(log_words));

    if (found >= 0)
        r->policy->network.log = (enum net_log)found;
}

void key_net_log_file(struct reader *r, json_t *value) {
    r->policy->network.log_file = read_path(r, value);
}

void key_net_record(struct reader *r, json_t *value) {
    r->policy->network.record = read_path(r, value);
}

void key_net_replay(struct reader *r, json_t *value) {
    r->policy->network.replay = read_path(r, value);
}

/* ---- the keys together ---- */

static bool has_secret(const struct net_rules *rules, const char *name, size_t length) {
    for (size_t i = 0; i < rules->n_secrets; i++)
        if (strlen(rules->secrets[i].name) == length &&
            strncmp(rules->secrets[i].name, name, length) == 0)
            return true;
    return false;
}

static void check_placeholders(struct reader *r, const struct net_header *header) {
    const char *end;

    for (const char *p = header->value; (p = strchr(p, '{')); p = end + 1) {
        end = strchr(p, '}');
        if (!end) {
            read_bad(r, "write \"Bearer {token}\"",
                "the header \"%.40s\" has a \"{\" without \"}\"", header->name);
            return;
        }
        if (!has_secret(&r->policy->network, p + 1, (size_t)(end - p) - 1))
            read_bad(r, "name it there: {\"token\": {\"from\": \"env:TOKEN\"}}",
                "the header \"%.40s\" uses %.*s, which net_secrets does not have", header->name,
                (int)(end - p) + 1, p);
    }
}

/* Refuses rules whose traffic could not be recorded, or not be answered from a recording. */
static void check_tape(struct reader *r) {
    const struct net_rules *rules = &r->policy->network;
    const char *key = r->key;

    if (!rules->record && !rules->replay)
        return;
    r->key = rules->replay ? "net_replay" : "net_record";
    if (rules->record && rules->replay)
        read_bad(r, "leave net_record out", "a replay is not recorded at the same time");
    for (size_t i = 0; i < rules->n; i++) {
        const struct net_rule *rule = &rules->items[i];

        if (rule->tls_given && rule->tls == NET_TLS_CHECK)
            read_bad(r, "leave \"tls\" out of the rule, or write \"terminate\"",
                "TLS that is passed through (\"tls\": \"check\", %.80s) cannot be recorded",
                rule->host ? rule->host : "an address");
        for (size_t k = 0; k < rule->n_ports; k++)
            if (rule->ports[k].is_udp)
                read_bad(r, "leave the UDP port out", "UDP (port %u) cannot be recorded",
                    (unsigned)rule->ports[k].first);
    }
    r->key = key;
}

void network_check(struct reader *r) {
    struct policy *policy = r->policy;
    const struct net_rules *rules = &policy->network;

    r->index = -1;
    r->member = NULL;
    r->key = "net_allow";
    for (size_t i = 0; i < rules->n; i++)
        for (size_t k = 0; k < rules->items[i].n_inject; k++)
            check_placeholders(r, &rules->items[i].inject[k]);
    check_tape(r);
    if (rules->n && !r->net_given)
        policy->net = POLICY_NET_ALLOW;
    r->key = "net";
    if (rules->n && policy->net != POLICY_NET_ALLOW)
        read_bad(r, "write \"net\": \"allow\", or leave \"net\" out",
            "the policy allows hosts (net_allow, net_allow_hosts), which needs net \"allow\"");
    else if (policy->net != POLICY_NET_ALLOW &&
             (rules->record || rules->replay || rules->n_secrets))
        read_bad(r, "write \"net\": \"allow\"", "%s needs net \"allow\"",
            rules->n_secrets ? "net_secrets"
            : rules->record  ? "net_record"
                             : "net_replay");
}

/* ---- rules ---- */

bool net_rule_terminates(const struct net_rule *rule) {
    return rule->tls == NET_TLS_TERMINATE;
}

bool net_target_is_same(const struct net_target *a, const struct net_target *b) {
    if (!a || !b)
        return a == b;
    if (a->port != b->port || a->is_plain != b->is_plain || a->address.is_v6 != b->address.is_v6)
        return false;
    return !memcmp(a->address.bytes, b->address.bytes, a->address.is_v6 ? 16 : 4);
}

bool net_rules_terminate(const struct net_rules *rules) {
    if (rules->record || rules->replay)
        return true;
    for (size_t i = 0; i < rules->n; i++)
        if (net_rule_terminates(&rules->items[i]))
            return true;
    return false;
}

static void free_strings(struct policy_strings *strings) {
    for (size_t i = 0; i < strings->n; i++)
        free(strings->items[i]);
    free(strings->items);
}

static void free_rule(struct net_rule *rule) {
    free(rule->host);
    free(rule->set);
    free(rule->ports);
    free(rule->to);
    for (size_t i = 0; i < rule->n_requests; i++) {
        free_strings(&rule->requests[i].methods);
        free_strings(&rule->requests[i].paths);
    }
    free(rule->requests);
    for (size_t i = 0; i < rule->n_inject; i++) {
        free(rule->inject[i].name);
        free(rule->inject[i].value);
    }
    free(rule->inject);
}

void net_rules_done(struct net_rules *rules) {
    for (size_t i = 0; i < rules->n; i++)
        free_rule(&rules->items[i]);
    free(rules->items);
    for (size_t i = 0; i < rules->n_secrets; i++) {
        free(rules->secrets[i].name);
        free(rules->secrets[i].from);
        free(rules->secrets[i].as);
    }
    free(rules->secrets);
    free(rules->log_file);
    free(rules->record);
    free(rules->replay);
    *rules = (struct net_rules)NET_RULES_DEFAULT;
}

/* ---- as text ---- */

static json_t *address_text(const struct net_address *address, unsigned port) {
    char text[INET6_ADDRSTRLEN] = "";
    unsigned whole = address->is_v6 ? 128 : 32;

    (void)inet_ntop(address->is_v6 ? AF_INET6 : AF_INET, address->bytes, text, sizeof text);
    if (port)
        return json_sprintf(address->is_v6 ? "[%s]:%u" : "%s:%u", text, port);
    return address->prefix == whole ? json_string(text)
                                    : json_sprintf("%s/%u", text, address->prefix);
}

static json_t *ports_text(const struct net_rule *rule) {
    json_t *list = json_array();

    for (size_t i = 0; i < rule->n_ports; i++) {
        const struct net_ports *ports = &rule->ports[i];
        const char *protocol = ports->is_udp ? "/udp" : "";

        json_array_append_new(
            list, ports->first == ports->last
                      ? json_sprintf("%u%s", ports->first, protocol)
                      : json_sprintf("%u-%u%s", ports->first, ports->last, protocol));
    }
    return list;
}

static json_t *strings_text(const struct policy_strings *strings) {
    json_t *list = json_array();

    for (size_t i = 0; i < strings->n; i++)
        json_array_append_new(list, json_string(strings->items[i]));
    return list;
}

static void add_requests(json_t *to, const struct net_rule *rule) {
    json_t *list = json_array();

    for (size_t i = 0; i < rule->n_requests; i++)
        json_array_append_new(
            list, json_pack("{s:o, s:o}", "methods", strings_text(&rule->requests[i].methods),
                      "paths", strings_text(&rule->requests[i].paths)));
    json_object_set_new(to, "requests", list);
}

static json_t *rule_text(const struct net_rule *rule) {
    json_t *to = json_pack("{s:o, s:o}", "host",
        rule->host ? json_string(rule->host) : address_text(&rule->address, 0), "ports",
        ports_text(rule));

    /* The default, which rules with a recording do not take as a wish. */
    if (rule->tls != NET_TLS_CHECK || rule->tls_given)
        json_object_set_new(to, "tls", json_string(tls_words[rule->tls]));
    if (rule->set)
        json_object_set_new(to, "set", json_string(rule->set));
    if (rule->to) {
        json_t *address = address_text(&rule->to->address, rule->to->port);
        json_object_set_new(to, "to",
            json_sprintf("%s%s", rule->to->is_plain ? "http://" : "", json_string_value(address)));
        json_decref(address);
    }
    if (rule->n_requests)
        add_requests(to, rule);
    if (rule->n_inject) {
        json_t *headers = json_object();
        for (size_t i = 0; i < rule->n_inject; i++)
            json_object_set_new(headers, rule->inject[i].name, json_string(rule->inject[i].value));
        json_object_set_new(to, "inject", headers);
    }
    if (rule->allows_private)
        json_object_set_new(to, "private", json_true());
    if (rule->allows_ech)
        json_object_set_new(to, "ech", json_string("allow"));
    return to;
}

static void add_number(json_t *to, const char *key, uint64_t value) {
    if (value)
        json_object_set_new(to, key, json_integer((json_int_t)value));
}

char *net_rules_text(const struct policy *policy) {
    const struct net_rules *rules = &policy->network;
    json_t *secrets = json_object(), *list = json_array();

    for (size_t i = 0; i < rules->n; i++)
        if (rules->items[i].host || !rules->items[i].set || rules->items[i].n_ports)
            json_array_append_new(list, rule_text(&rules->items[i]));
    for (size_t i = 0; i < rules->n_secrets; i++)
        json_object_set_new(secrets, rules->secrets[i].name, json_string("fd:0"));
    json_t *root = json_pack(
        "{s:s, s:o, s:s}", "net", "allow", "net_allow", list, "net_log", log_words[rules->log]);
    if (json_object_size(secrets))
        json_object_set(root, "net_secrets", secrets);
    add_number(root, "net_max_connections", rules->max_connections);
    add_number(root, "net_max_requests", rules->max_requests);
    add_number(root, "net_max_upload", rules->max_upload_bytes);
    add_number(root, "net_max_download", rules->max_download_bytes);
    add_number(root, "net_max_rate", rules->max_bytes_per_s);
    add_number(root, "net_idle", rules->idle_s);
    if (rules->record)
        json_object_set_new(root, "net_record", json_string(rules->record));
    if (rules->replay)
        json_object_set_new(root, "net_replay", json_string(rules->replay));
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(secrets);
    json_decref(root);
    return text;
}
