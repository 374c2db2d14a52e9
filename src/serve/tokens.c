/* SPDX-License-Identifier: Apache-2.0 */
/* Reading of the tokens file, and search for a token; tokens.h has the model. */
#include "serve/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "serve/ceiling.h"
#include "serve/digits.h"

#define FILE_MAX ((size_t)16 << 20)
#define DEFAULT_SANDBOXES 1000u
#define DEFAULT_RUNNING 1000u

static const struct {
    const char *name;
    enum token_scope scope;
} scope_names[] = {
    { "run", TOKEN_RUN },
    { "net", TOKEN_NET },
    { "host", TOKEN_HOST },
    { "admin", TOKEN_ADMIN },
    { "metrics", TOKEN_METRICS },
};

void tokens_digest(const unsigned char salt[16], const char *secret, unsigned char digest[32]) {
    struct sha256_ctx context;

    sha256_init(&context);
    sha256_update(&context, 16, salt);
    sha256_update(&context, strlen(secret), (const uint8_t *)secret);
    sha256_digest(&context, 32, digest);
}

bool token_tenant_ok(const char *tenant) {
    size_t length = strlen(tenant);

    return length >= 1 && length <= TOKEN_TENANT_MAX &&
           strspn(tenant, "abcdefghijklmnopqrstuvwxyz0123456789") == length;
}

unsigned tokens_scope(const char *name) {
    for (size_t i = 0; i < ARRAY_SIZE(scope_names); i++)
        if (!strcmp(scope_names[i].name, name))
            return scope_names[i].scope;
    return 0;
}

const char *tokens_scope_name(unsigned scopes) {
    for (size_t i = 0; i < ARRAY_SIZE(scope_names); i++)
        if (scope_names[i].scope & scopes)
            return scope_names[i].name;
    return "";
}

static void forget_all(struct tokens *tokens) {
    if (!tokens->list.next)
        list_init(&tokens->list);
    if (!tokens->tenants.next)
        list_init(&tokens->tenants);
    list_for_each(node, &tokens->list) {
        struct token *token = container_of(node, struct token, of_tokens);

        list_remove(node);
        free(token->certificate);
        free(token);
    }
    list_for_each(node, &tokens->tenants) {
        struct tenant_rules *rules = container_of(node, struct tenant_rules, of_tokens);

        list_remove(node);
        json_decref(rules->ceiling);
        free(rules);
    }
}

void tokens_done(struct tokens *tokens) {
    forget_all(tokens);
}

/* Changes the quotas that are named. */
static int read_quotas(const json_t *json, struct amounts *quotas) {
    const char *name;
    json_t *value;

    if (json && !json_is_object(json))
        return -EBADMSG;
    json_object_foreach((json_t *)(uintptr_t)json, name, value) {
        enum quota quota = quota_of_name(name);

        if (quota == QUOTA_N || quota_from_json(quota, value, &quotas->of[quota]) < 0)
            return -EBADMSG;
    }
    return 0;
}

static bool is_count(const json_t *json) {
    return json_is_integer(json) && json_integer_value(json) >= 0;
}

/* A misspelt member would be a limit that does not hold, such as "expire". */
static bool has_only(const json_t *row, const char *const *members) {
    const char *name;
    json_t *value;
    size_t i;

    json_object_foreach((json_t *)(uintptr_t)row, name, value) {
        for (i = 0; members[i] && strcmp(members[i], name); i++)
            ;
        if (!members[i])
            return false;
    }
    return json_is_object(row);
}

static const char *const token_members[] = { "id", "tenant", "scopes", "created", "expires", "salt",
    "sha256", "certificate", "quota", "max_sandboxes", "max_running", NULL };
static const char *const tenant_members[] = { "quota", "weight", "ceiling", NULL };
static const char *const file_members[] = { "tokens", "tenants", NULL };

/* 0, or a scope is not known. */
static int read_scopes(const json_t *scopes, unsigned *ret_scopes) {
    const json_t *scope;
    size_t i;

    *ret_scopes = 0;
    json_array_foreach(scopes, i, scope) {
        unsigned one = json_is_string(scope) ? tokens_scope(json_string_value(scope)) : 0;

        if (!one)
            return -EBADMSG;
        *ret_scopes |= one;
    }
    return json_is_array(scopes) ? 0 : -EBADMSG;
}

/* The members max_sandboxes and max_running are of files that were made before "quota". */
static int read_token_quotas(const json_t *row, struct amounts *quotas) {
    const json_t *sandboxes = json_object_get(row, "max_sandboxes");
    const json_t *running = json_object_get(row, "max_running");

    *quotas = quota_unlimited();
    quotas->of[QUOTA_SANDBOXES] = DEFAULT_SANDBOXES;
    quotas->of[QUOTA_RUNNING] = DEFAULT_RUNNING;
    if ((sandboxes && !is_count(sandboxes)) || (running && !is_count(running)))
        return -EBADMSG;
    if (sandboxes)
        quotas->of[QUOTA_SANDBOXES] = (uint64_t)json_integer_value(sandboxes);
    if (running)
        quotas->of[QUOTA_RUNNING] = (uint64_t)json_integer_value(running);
    return read_quotas(json_object_get(row, "quota"), quotas);
}

static int read_row(struct tokens *tokens, const json_t *row) {
    const char *id = json_string_value(json_object_get(row, "id"));
    const char *tenant = json_string_value(json_object_get(row, "tenant"));
    const char *certificate = json_string_value(json_object_get(row, "certificate"));
    const json_t *expires = json_object_get(row, "expires");
    struct token *token = calloc(1, sizeof *token);

    if (!token)
        return -ENOMEM;
    list_init(&token->of_tokens);
    bool is_named = id && *id && strlen(id) < sizeof token->id && tenant && token_tenant_ok(tenant);
    bool has_secret =
        digits_read(json_string_value(json_object_get(row, "salt")), token->salt, 16) &&
        digits_read(json_string_value(json_object_get(row, "sha256")), token->digest, 32);
    bool is_sound = has_only(row, token_members) && (!expires || is_count(expires)) &&
                    read_scopes(json_object_get(row, "scopes"), &token->scopes) >= 0;
    if (!is_named || !is_sound || has_secret == (certificate != NULL)) {
        free(token);
        return -EBADMSG;
    }
    if (certificate) {
        token->certificate = strdup(certificate);
        if (!token->certificate) {
            free(token);
            return -ENOMEM;
        }
    }
    memcpy(token->id, id, strlen(id) + 1);
    memcpy(token->tenant, tenant, strlen(tenant) + 1);
    token->expires = json_integer_value(expires);
    int r = read_token_quotas(row, &token->quotas);
    if (r < 0) {
        free(token->certificate);
        free(token);
        return r;
    }
    list_add_tail(&tokens->list, &token->of_tokens);
    return 0;
}

static int read_tenant(struct tokens *tokens, const char *name, const json_t *row) {
    const json_t *weight = json_object_get(row, "weight"),
                 *ceiling = json_object_get(row, "ceiling");
    struct tenant_rules *rules = calloc(1, sizeof *rules);
    char why[CEILING_TEXT];

    if (!rules)
        return -ENOMEM;
    list_add_tail(&tokens->tenants, &rules->of_tokens);
    rules->weight = 1;
    rules->quotas = tokens->defaults;
    if (!token_tenant_ok(name) || !has_only(row, tenant_members) ||
        (ceiling && !json_is_object(ceiling)))
        return -EBADMSG;
    if (weight && (!is_count(weight) || json_integer_value(weight) < 1 ||
                      json_integer_value(weight) > TOKEN_WEIGHT_MAX))
        return -EBADMSG;
    if (weight)
        rules->weight = (unsigned)json_integer_value(weight);
    memcpy(rules->name, name, strlen(name) + 1);
    if (ceiling && ceiling_fault(ceiling, why))
        return -EBADMSG;
    rules->ceiling = json_incref((json_t *)(uintptr_t)ceiling);
    return read_quotas(json_object_get(row, "quota"), &rules->quotas);
}

static int malformed(struct tokens *tokens, const char *what) {
    (void)snprintf(tokens->fault, sizeof tokens->fault, "%s", what);
    return -EBADMSG;
}

/* Reads all rows into empty lists. */
static int read_all(struct tokens *tokens, const json_t *all) {
    const json_t *rows = json_object_get(all, "tokens");
    json_t *tenants = json_object_get(all, "tenants"), *row;
    const char *name;
    char what[64];
    size_t i;

    if (!json_is_array(rows))
        return malformed(tokens, "it has no list \"tokens\"");
    if (tenants && !json_is_object(tenants))
        return malformed(tokens, "\"tenants\" is no object");
    if (!has_only(all, file_members))
        return malformed(tokens, "it has members besides \"tokens\" and \"tenants\"");
    json_object_foreach(tenants, name, row) {
        int r = read_tenant(tokens, name, row);

        (void)snprintf(what, sizeof what, "the tenant \"%.16s\" is not valid", name);
        if (r < 0)
            return r == -EBADMSG ? malformed(tokens, what) : r;
    }
    json_array_foreach(rows, i, row) {
        int r = read_row(tokens, row);

        (void)snprintf(what, sizeof what, "the row %zu of \"tokens\" is not valid", i + 1);
        if (r < 0)
            return r == -EBADMSG ? malformed(tokens, what) : r;
    }
    return 0;
}

static void move_all(struct list *to, struct list *from) {
    list_for_each(node, from) {
        list_remove(node);
        list_add_tail(to, node);
    }
}

/* A file that anybody may write to has tokens of anybody. A pipe would make the server wait. */
static int read_file(struct tokens *tokens, struct buf *to) {
    auto_close int fd = open(tokens->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;

    int r = fd < 0 || fstat(fd, &st) < 0 ? -errno : 0;
    if (r >= 0 && !S_ISREG(st.st_mode))
        return malformed(tokens, "it is no regular file");
    if (r >= 0 && st.st_mode & S_IWOTH)
        return malformed(tokens, "every user may write to it; chmod o-w takes that away");
    if (r >= 0)
        r = fd_read_all(fd, FILE_MAX, to);
    if (r < 0)
        (void)snprintf(tokens->fault, sizeof tokens->fault, "it cannot be read: %s", strerror(-r));
    return MIN(r, 0);
}

int tokens_read(struct tokens *tokens) {
    auto_buf struct buf text = BUF_INIT;

    if (!tokens->list.next)
        forget_all(tokens);
    int r = read_file(tokens, &text);
    if (r < 0)
        return r;
    return tokens_parse(tokens, text.data ? text.data : "", text.length);
}

int tokens_parse(struct tokens *tokens, const char *text, size_t length) {
    struct tokens fresh = { .defaults = tokens->defaults };
    json_error_t problem;

    forget_all(&fresh);
    json_t *all = json_loadb(text, length, JSON_REJECT_DUPLICATES, &problem);
    if (!all)
        (void)snprintf(
            fresh.fault, sizeof fresh.fault, "line %d: %.120s", problem.line, problem.text);
    int r = all ? read_all(&fresh, all) : -EBADMSG;
    json_decref(all);
    /* It quotes the file, and is for a terminal. */
    for (char *p = fresh.fault; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
    if (r < 0) {
        forget_all(&fresh);
        if (fresh.fault[0])
            memcpy(tokens->fault, fresh.fault, sizeof tokens->fault);
        return r;
    }
    forget_all(tokens);
    move_all(&tokens->list, &fresh.list);
    move_all(&tokens->tenants, &fresh.tenants);
    tokens->fault[0] = '\0';
    tokens->generation++;
    return 0;
}

/* `at_once`: a token that is not known may be new. */
static void renew(struct tokens *tokens, bool at_once) {
    int64_t now = clock_now_ns();
    struct stat st = { 0 };

    if (!at_once && now - tokens->checked_ns < 1000000000 && tokens->checked_ns)
        return;
    tokens->checked_ns = now;
    if (stat(tokens->path, &st) < 0) {
        forget_all(tokens);
        tokens->fault[0] = '\0';
        tokens->generation++;
        memset(&tokens->seen, 0, sizeof tokens->seen);
        return;
    }
    if (st.st_ino == tokens->seen.st_ino && st.st_size == tokens->seen.st_size &&
        st.st_mtim.tv_sec == tokens->seen.st_mtim.tv_sec &&
        st.st_mtim.tv_nsec == tokens->seen.st_mtim.tv_nsec)
        return;
    tokens->seen = st;
    if (tokens_read(tokens) < 0)
        fprintf(stderr,
            "rollbox-serve: the tokens file %s is not valid: %s; the tokens that were read before "
            "stay valid until it is mended\n",
            tokens->path, tokens->fault);
}

static bool same(const unsigned char a[32], const unsigned char b[32]) {
    unsigned char difference = 0;

    for (size_t i = 0; i < 32; i++)
        difference |= a[i] ^ b[i];
    return !difference;
}

static bool is_current(const struct token *token) {
    return !token->expires || token->expires > time(NULL);
}

const struct token *tokens_of_certificate(struct tokens *tokens, const char *name) {
    if (!tokens->path)
        return NULL;
    for (int attempt = 0; attempt < 2; attempt++) {
        renew(tokens, attempt > 0);
        list_for_each(node, &tokens->list) {
            const struct token *token = container_of(node, struct token, of_tokens);

            if (token->certificate && !strcmp(token->certificate, name) && is_current(token))
                return token;
        }
    }
    return NULL;
}

const struct token *tokens_find(struct tokens *tokens, const char *authorization) {
    unsigned char digest[32];

    if (!tokens->path || !authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
        return NULL;
    const char *given = authorization + 7;
    given += strspn(given, " ");
    const char *id = strncmp(given, "rbx_", 4) ? NULL : given + 4;
    const char *secret = id ? strchr(id, '_') : NULL;
    if (!secret || strlen(secret + 1) != TOKEN_SECRET_DIGITS)
        return NULL;
    for (int attempt = 0; attempt < 2; attempt++) {
        renew(tokens, attempt > 0);
        list_for_each(node, &tokens->list) {
            const struct token *token = container_of(node, struct token, of_tokens);

            if (token->certificate || strlen(token->id) != (size_t)(secret - id) ||
                strncmp(token->id, id, (size_t)(secret - id)) != 0)
                continue;
            tokens_digest(token->salt, secret + 1, digest);
            return same(digest, token->digest) && is_current(token) ? token : NULL;
        }
    }
    return NULL;
}

void tokens_renew(struct tokens *tokens) {
    if (tokens->path)
        renew(tokens, false);
}

bool tokens_holds(const struct tokens *tokens, const char *id) {
    list_for_each(node, &tokens->list) {
        const struct token *token = container_of(node, struct token, of_tokens);

        if (!strcmp(token->id, id))
            return is_current(token);
    }
    return false;
}

const struct tenant_rules *tokens_tenant(struct tokens *tokens, const char *name) {
    if (!tokens->path)
        return NULL;
    renew(tokens, false);
    list_for_each(node, &tokens->tenants) {
        const struct tenant_rules *rules = container_of(node, struct tenant_rules, of_tokens);

        if (!strcmp(rules->name, name))
            return rules;
    }
    return NULL;
}
