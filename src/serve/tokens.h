/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bearer tokens: "rbx_ID_SECRET". The file has a salted SHA-256 of each secret, never the secret; a
 * plain digest is enough, because the secret is 256 random bits.
 *
 *   {"tokens": [{"id", "tenant", "scopes": ["run", ...], "salt", "sha256", "created", "expires",
 *                "quota"?: {"sandboxes", "running", "memory", "cpus", ...}}],
 *    "tenants"?: {NAME: {"quota"?, "weight"?, "ceiling"?}}}
 *
 * A row with "certificate" instead of "salt" and "sha256" is for clients with a TLS certificate of
 * that subject alternative name, such as "DNS:trainer-7.example"; they need no secret.
 *
 * Of a token's quotas and its tenant's the lesser holds (quota.h). "weight" is the tenant's share
 * of the server when it is full, and "ceiling" a policy that its policies must not exceed
 * (ceiling.h).
 *
 * The server reads the file again when it has changed, at most once a second, so a removed token is
 * refused within a second. While the file is malformed, what was read last stays valid: an
 * operator's mistake must not end the requests of all tenants. A file that is gone has no tokens.
 */
#ifndef ROLLBOX_SERVE_TOKENS_H
#define ROLLBOX_SERVE_TOKENS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/list.h"
#include "serve/quota.h"

#define TOKEN_TENANT_MAX 16
#define TOKEN_SECRET_DIGITS 64
#define TOKEN_WEIGHT_MAX 1000

enum token_scope {
    TOKEN_RUN = 1,      /* runs and sandboxes of one's own */
    TOKEN_NET = 2,      /* policies with net allow */
    TOKEN_HOST = 4,     /* policies that name paths, devices and networks of the host */
    TOKEN_ADMIN = 8,    /* the server's state */
    TOKEN_METRICS = 16, /* its metrics alone */
};
#define TOKEN_EVERYTHING 31u

struct token {
    struct list of_tokens;
    char id[17];
    char tenant[TOKEN_TENANT_MAX + 1];
    unsigned scopes;
    unsigned char salt[16], digest[32];
    char *certificate; /* NULL: the token has a secret */
    int64_t expires;   /* seconds since 1970; 0: never */
    struct amounts quotas;
};

/* What the operator has said of a tenant. */
struct tenant_rules {
    struct list of_tokens;
    char name[TOKEN_TENANT_MAX + 1];
    struct amounts quotas;
    unsigned weight;
    json_t *ceiling; /* NULL: none */
};

#define TOKENS_FAULT 200

struct tokens {
    const char *path;         /* NULL: no token is valid */
    char fault[TOKENS_FAULT]; /* of the file as it is now; "": none */
    struct list list, tenants;
    struct amounts defaults; /* quotas of tenants of which nothing else is said: --quota */
    struct stat seen;
    unsigned generation; /* how often the file was read */
    int64_t checked_ns;
};

/* 0, or -errno if the file cannot be read or is malformed, which `fault` describes: then the tokens
 * stay as they were. */
int tokens_read(struct tokens *tokens);
/* The same of the file's content; the lists of `tokens` are initialised. */
int tokens_parse(struct tokens *tokens, const char *text, size_t length);
/* The token of an Authorization header; NULL: none is valid. Compares in constant time. */
const struct token *tokens_find(struct tokens *tokens, const char *authorization);
/* The row of a verified certificate's name; NULL: none is valid. */
const struct token *tokens_of_certificate(struct tokens *tokens, const char *name);
/* NULL: nothing was said of this tenant. Valid until the file is read again. */
const struct tenant_rules *tokens_tenant(struct tokens *tokens, const char *name);
/* Reads the file again if it has changed. */
void tokens_renew(struct tokens *tokens);
/* Whether the file still has this token, and it has not expired. */
bool tokens_holds(const struct tokens *tokens, const char *id);
void tokens_done(struct tokens *tokens);

bool token_tenant_ok(const char *tenant);
/* 0: there is no such scope. */
unsigned tokens_scope(const char *name);
/* The name of one of these scopes; "" if there is none. */
const char *tokens_scope_name(unsigned scopes);
void tokens_digest(const unsigned char salt[16], const char *secret, unsigned char digest[32]);

/* rollbox-serve token create|tenant|ls|rm: the exit status. */
int tokens_main(int argc, char **argv);

#endif
