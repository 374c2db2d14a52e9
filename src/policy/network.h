/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network part of a policy: which hosts a sandbox may reach, and how.
 *
 * With net "allow" every connection of a sandbox goes through a gateway outside of it. The gateway
 * reads these rules from the text of net_rules_text, by policy_parse, so that they have one format
 * and one parser. docs/reference/network.md documents every key.
 */
#ifndef ROLLBOX_POLICY_NETWORK_H
#define ROLLBOX_POLICY_NETWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/strings.h"

struct buf;
struct policy;

/* The addresses inside each sandbox with net "allow". Names get addresses of 198.18.0.0/15, which
 * is set aside for tests of network devices, so that no real host has them. */
#define NET_OWN_ADDRESS "10.0.2.15"
#define NET_NAMESERVER "10.0.2.3"
#define NET_NAMESERVER_PORT 53

enum net_tls {
    NET_TLS_CHECK,     /* the gateway reads the name in the handshake, and passes TLS through */
    NET_TLS_TERMINATE, /* the gateway decrypts, and so sees requests */
    NET_TLS_RAW,       /* bytes of any kind are passed through */
};

enum net_log { NET_LOG_CONNECTIONS, NET_LOG_REQUESTS, NET_LOG_NONE };

struct net_ports {
    uint16_t first, last;
    bool is_udp;
};

/* Requests that a rule allows: any of the methods with any of the paths. */
struct net_request {
    struct policy_strings methods; /* empty: any */
    struct policy_strings paths;   /* empty: any; '*' matches any characters */
};

/* A header that the gateway sets in each request. */
struct net_header {
    char *name;
    char *value; /* {NAME} stands for the secret of that name */
};

struct net_address {
    uint8_t bytes[16]; /* IPv4: the first four */
    bool is_v6;
    uint8_t prefix; /* 32 or 128: one address */
};

struct net_rule {
    char *host; /* lower case: "pypi.org", "*.pythonhosted.org", "*"; NULL: `address` */
    char *set;  /* "@pypi": a set whose rules are not filled in yet, or that this rule comes from */
    struct net_address address;
    struct net_ports *ports;
    size_t n_ports;
    enum net_tls tls;
    /* Where connections really go. NULL: to the host. */
    struct net_target {
        struct net_address address;
        uint16_t port;
        bool is_plain; /* the gateway speaks no TLS to it */
    } * to;
    struct net_request *requests; /* none: all */
    size_t n_requests;
    struct net_header *inject;
    size_t n_inject;
    bool tls_given;      /* `tls` is not the default */
    bool allows_private; /* private and otherwise refused addresses of the host */
    bool allows_ech;     /* TLS handshakes whose name is encrypted */
};

struct net_secret {
    char *name;
    char *from; /* "env:VARIABLE", "file:/path", "fd:3"; only the client reads it */
    char *as;   /* the guest's variable with a placeholder, or NULL */
};

struct net_rules {
    struct net_rule *items;
    size_t n;
    struct net_secret *secrets;
    size_t n_secrets;
    uint32_t max_connections; /* at one time: 64 */
    uint32_t max_requests;    /* 0: no limit, as of the next three */
    uint64_t max_upload_bytes, max_download_bytes;
    uint64_t max_bytes_per_s;
    uint32_t idle_s; /* 300 */
    enum net_log log;
    char *log_file, *record, *replay; /* absolute paths, or NULL */
};

#define NET_RULES_DEFAULT                                                                          \
    { .max_connections = 64, .idle_s = 300 }

/* The keys of net "allow" as a policy text for policy_parse, without secrets' sources; for the
 * caller to free. NULL: out of memory. */
char *net_rules_text(const struct policy *policy);

/* network_text.c: the same for a reader, a line a rule; nothing without net "allow". */
void net_rules_explain(const struct policy *policy, struct buf *to);

/* Does the gateway have to read the requests of this rule, and so decrypt TLS? */
bool net_rule_terminates(const struct net_rule *rule);
/* Do connections lead to the same server (NULL: the host's own), with or without TLS? */
bool net_target_is_same(const struct net_target *a, const struct net_target *b);
/* Does any rule? */
bool net_rules_terminate(const struct net_rules *rules);

void net_rules_done(struct net_rules *rules);

#endif
