/* SPDX-License-Identifier: Apache-2.0 */
/* Bearer tokens and their file; tokens.h has the model. */
#include "serve/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <jansson.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "serve/digits.h"

#define FILE_MAX ((size_t)16 << 20)
#define SECRET_DIGITS 64
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

static void digest_of(const unsigned char salt[16], const char *secret, unsigned char digest[32]) {
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

static unsigned scope_of(const char *name) {
    for (size_t i = 0; i < ARRAY_SIZE(scope_names); i++)
        if (!strcmp(scope_names[i].name, name))
            return scope_names[i].scope;
    return 0;
}

static void forget_all(struct tokens *tokens) {
    if (!tokens->list.next)
        list_init(&tokens->list);
    list_for_each(node, &tokens->list) {
        struct token *token = container_of(node, struct token, of_tokens);

        list_remove(node);
        free(token->certificate);
        free(token);
    }
}

void tokens_done(struct tokens *tokens) {
    forget_all(tokens);
}

static int read_row(struct tokens *tokens, const json_t *row) {
    const char *id = json_string_value(json_object_get(row, "id"));
    const char *tenant = json_string_value(json_object_get(row, "tenant"));
    const char *certificate = json_string_value(json_object_get(row, "certificate"));
    const json_t *scopes = json_object_get(row, "scopes"), *scope;
    const json_t *sandboxes = json_object_get(row, "max_sandboxes");
    const json_t *running = json_object_get(row, "max_running");
    struct token *token = calloc(1, sizeof *token);
    size_t i;

    if (!token)
        return -ENOMEM;
    list_init(&token->of_tokens);
    bool is_named = id && *id && strlen(id) < sizeof token->id && tenant && token_tenant_ok(tenant);
    bool has_secret =
        digits_read(json_string_value(json_object_get(row, "salt")), token->salt, 16) &&
        digits_read(json_string_value(json_object_get(row, "sha256")), token->digest, 32);
    if (!is_named || has_secret == (certificate != NULL)) {
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
    json_array_foreach(scopes, i, scope) {
        token->scopes |= json_is_string(scope) ? scope_of(json_string_value(scope)) : 0;
    }
    token->expires = json_integer_value(json_object_get(row, "expires"));
    token->max_sandboxes = sandboxes ? (unsigned)json_integer_value(sandboxes) : DEFAULT_SANDBOXES;
    token->max_running = running ? (unsigned)json_integer_value(running) : DEFAULT_RUNNING;
    list_add_tail(&tokens->list, &token->of_tokens);
    return 0;
}

int tokens_read(struct tokens *tokens) {
    auto_buf struct buf text = BUF_INIT;
    size_t i;
    json_t *row;

    forget_all(tokens);
    int r = fd_read_file(tokens->path, FILE_MAX, &text);
    if (r < 0)
        return r;
    json_t *all = json_loadb(text.data ? text.data : "", text.length, 0, NULL);
    const json_t *rows = json_object_get(all, "tokens");
    if (!json_is_array(rows))
        r = -EBADMSG;
    json_array_foreach(rows, i, row) {
        if (r >= 0)
            r = read_row(tokens, row);
    }
    json_decref(all);
    if (r < 0)
        forget_all(tokens);
    return MIN(r, 0);
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
        memset(&tokens->seen, 0, sizeof tokens->seen);
        return;
    }
    if (st.st_ino == tokens->seen.st_ino && st.st_size == tokens->seen.st_size &&
        st.st_mtim.tv_sec == tokens->seen.st_mtim.tv_sec &&
        st.st_mtim.tv_nsec == tokens->seen.st_mtim.tv_nsec)
        return;
    tokens->seen = st;
    (void)tokens_read(tokens);
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
    if (!secret || strlen(secret + 1) != SECRET_DIGITS)
        return NULL;
    for (int attempt = 0; attempt < 2; attempt++) {
        renew(tokens, attempt > 0);
        list_for_each(node, &tokens->list) {
            const struct token *token = container_of(node, struct token, of_tokens);

            if (token->certificate || strlen(token->id) != (size_t)(secret - id) ||
                strncmp(token->id, id, (size_t)(secret - id)) != 0)
                continue;
            digest_of(token->salt, secret + 1, digest);
            return same(digest, token->digest) && is_current(token) ? token : NULL;
        }
    }
    return NULL;
}

/* ---- the commands ---- */

static int fail(const char *what, const char *path, int error_number) {
    fprintf(stderr, "rollbox token: %s %s: %s\n", what, path, strerror(error_number));
    return 1;
}

/* The file's content and a lock on it; an empty list if there is no file. */
static json_t *load(const char *path, int *ret_lock) {
    auto_buf struct buf lock_path = BUF_INIT;
    auto_buf struct buf text = BUF_INIT;

    buf_printf(&lock_path, "%s.lock", path);
    *ret_lock = buf_failed(&lock_path)
                    ? -1
                    : open(lock_path.data, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*ret_lock < 0 || flock(*ret_lock, LOCK_EX) < 0) {
        fail("cannot lock", path, errno);
        return NULL;
    }
    int r = fd_read_file(path, FILE_MAX, &text);
    if (r == -ENOENT)
        return json_pack("{s:[]}", "tokens");
    json_t *all = r < 0 || !text.data ? NULL : json_loadb(text.data, text.length, 0, NULL);
    if (json_is_array(json_object_get(all, "tokens")))
        return all;
    json_decref(all);
    fail("cannot read", path, r < 0 ? -r : EBADMSG);
    return NULL;
}

static int store(const char *path, const json_t *all) {
    auto_buf struct buf beside = BUF_INIT;
    auto_free char *text = json_dumps(all, JSON_INDENT(1));

    buf_printf(&beside, "%s.new", path);
    if (!text || buf_failed(&beside))
        return fail("cannot write", path, ENOMEM);
    (void)unlink(beside.data);
    auto_close int fd = open(beside.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || fd_write_all(fd, text, strlen(text)) < 0 || fsync(fd) < 0 ||
        rename(beside.data, path) < 0)
        return fail("cannot write", path, errno);
    return 0;
}

struct arguments {
    const char *file, *tenant, *id, *certificate;
    json_t *scopes;
    long long expires_s, max_sandboxes, max_running;
};

static int create(const struct arguments *arguments) {
    unsigned char random[8 + 16 + 32], digest[32];
    char id[17], salt[33], secret[SECRET_DIGITS + 1], digits[65];
    auto_close int lock = -EBADF;

    if (!token_tenant_ok(arguments->tenant)) {
        fprintf(stderr, "rollbox token: tenant: 1 to %d of a-z and 0-9: \"%.100s\"\n",
            TOKEN_TENANT_MAX, arguments->tenant);
        return 1;
    }
    json_t *all = load(arguments->file, &lock);
    if (!all)
        return 1;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return fail("cannot make", arguments->file, errno);
    digits_of(random, 8, id);
    digits_of(random + 8, 16, salt);
    digits_of(random + 24, 32, secret);
    digest_of(random + 8, secret, digest);
    digits_of(digest, 32, digits);
    json_int_t now = time(NULL);
    json_t *row = json_pack("{s:s, s:s, s:O, s:I, s:I}", "id", id, "tenant", arguments->tenant,
        "scopes", arguments->scopes, "created", now, "expires",
        arguments->expires_s ? now + (json_int_t)arguments->expires_s : 0);
    if (arguments->certificate) {
        json_object_set_new(row, "certificate", json_string(arguments->certificate));
    } else {
        json_object_set_new(row, "salt", json_string(salt));
        json_object_set_new(row, "sha256", json_string(digits));
    }
    if (arguments->max_sandboxes >= 0)
        json_object_set_new(row, "max_sandboxes", json_integer(arguments->max_sandboxes));
    if (arguments->max_running >= 0)
        json_object_set_new(row, "max_running", json_integer(arguments->max_running));
    json_array_append_new(json_object_get(all, "tokens"), row);
    int status = store(arguments->file, all);
    json_decref(all);
    if (!status && arguments->certificate)
        printf("%s\n", id);
    else if (!status)
        printf("rbx_%s_%s\n", id, secret);
    return status;
}

static int list(const struct arguments *arguments) {
    auto_close int lock = -EBADF;
    json_t *all = load(arguments->file, &lock), *row;
    size_t i;

    if (!all)
        return 1;
    json_array_foreach(json_object_get(all, "tokens"), i, row) {
        json_object_del(row, "salt");
        json_object_del(row, "sha256");
        auto_free char *line = json_dumps(row, JSON_COMPACT);

        puts(line ? line : "{}");
    }
    json_decref(all);
    return 0;
}

static int remove_token(const struct arguments *arguments) {
    auto_close int lock = -EBADF;
    json_t *all = load(arguments->file, &lock), *rows = json_object_get(all, "tokens");
    bool found = false;

    if (!all)
        return 1;
    for (size_t i = json_array_size(rows); i-- > 0;) {
        const char *id = json_string_value(json_object_get(json_array_get(rows, i), "id"));

        if (id && !strcmp(id, arguments->id)) {
            json_array_remove(rows, i);
            found = true;
        }
    }
    int status = found ? store(arguments->file, all) : 1;
    if (!found)
        fprintf(stderr,
            "rollbox token: there is no token %.100s in %s; list them with: rollbox "
            "token ls\n",
            arguments->id, arguments->file);
    json_decref(all);
    return status;
}

static bool names_certificate(const char *text) {
    const char *colon = strchr(text, ':');

    return colon && colon[1] &&
           (!strncmp(text, "DNS:", 4) || !strncmp(text, "URI:", 4) || !strncmp(text, "email:", 6));
}

static bool number(const char *text, long long *ret) {
    char *end;

    errno = 0;
    *ret = strtoll(text, &end, 10);
    return !errno && end != text && !*end && *ret >= 0;
}

int tokens_main(int argc, char **argv) {
    static const struct option options[] = { { "tokens", 1, NULL, 'f' }, { "tenant", 1, NULL, 't' },
        { "scope", 1, NULL, 's' }, { "expires", 1, NULL, 'e' }, { "max-sandboxes", 1, NULL, 'm' },
        { "max-running", 1, NULL, 'r' }, { "certificate", 1, NULL, 'c' }, { NULL, 0, NULL, 0 } };
    struct arguments arguments = {
        .tenant = "default", .scopes = json_array(), .max_sandboxes = -1, .max_running = -1
    };
    int c, status = 2;
    bool ok = true;

    while ((c = getopt_long(argc, argv, "", options, NULL)) >= 0)
        switch (c) {
        case 'f':
            arguments.file = optarg;
            break;
        case 't':
            arguments.tenant = optarg;
            break;
        case 'c':
            ok = ok && names_certificate(optarg);
            arguments.certificate = optarg;
            break;
        case 's':
            ok = ok && scope_of(optarg);
            json_array_append_new(arguments.scopes, json_string(optarg));
            break;
        case 'e':
            ok = ok && number(optarg, &arguments.expires_s);
            break;
        case 'm':
            ok = ok && number(optarg, &arguments.max_sandboxes);
            break;
        case 'r':
            ok = ok && number(optarg, &arguments.max_running);
            break;
        default:
            ok = false;
        }
    if (!json_array_size(arguments.scopes))
        json_array_append_new(arguments.scopes, json_string("run"));
    const char *verb = optind < argc ? argv[optind] : "";
    arguments.id = optind + 1 < argc ? argv[optind + 1] : NULL;
    if (!ok || !arguments.file)
        fprintf(stderr,
            "rollbox token: give --tokens FILE; --scope is run, net, host, admin or metrics; "
            "--expires, --max-sandboxes and --max-running are whole numbers; "
            "--certificate is DNS:NAME, URI:NAME or email:NAME\n");
    else if (!strcmp(verb, "create") && !arguments.id)
        status = create(&arguments);
    else if (!strcmp(verb, "ls") && !arguments.id)
        status = list(&arguments);
    else if (!strcmp(verb, "rm") && arguments.id)
        status = remove_token(&arguments);
    else
        fprintf(stderr, "rollbox token: create, ls, or rm ID\n");
    json_decref(arguments.scopes);
    return status;
}
