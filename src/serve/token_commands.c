/* SPDX-License-Identifier: Apache-2.0 */
/* rollbox-serve token create|tenant|ls|rm: changes of the tokens file; tokens.h has the model. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "policy/read.h"
#include "serve/ceiling.h"
#include "serve/digits.h"
#include "serve/tokens.h"

#define FILE_MAX ((size_t)16 << 20)

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
    json_t *scopes, *quotas, *ceiling;
    long long expires_s, max_sandboxes, max_running, weight; /* -1: not given */
};

static int create(const struct arguments *arguments) {
    unsigned char random[8 + 16 + 32], digest[32];
    char id[17], salt[33], secret[TOKEN_SECRET_DIGITS + 1], digits[65];
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
    tokens_digest(random + 8, secret, digest);
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
    if (json_object_size(arguments->quotas))
        json_object_set(row, "quota", arguments->quotas);
    json_array_append_new(json_object_get(all, "tokens"), row);
    int status = store(arguments->file, all);
    json_decref(all);
    if (!status && arguments->certificate)
        printf("%s\n", id);
    else if (!status)
        printf("rbx_%s_%s\n", id, secret);
    return status;
}

/* Whether the file says anything of the tenant, or has a token of it. False after a message. */
static bool is_known(const struct arguments *arguments, const json_t *all) {
    const json_t *rows = json_object_get(all, "tokens"), *row;
    json_t *tenants = json_object_get(all, "tenants");
    size_t room = json_array_size(rows) + json_object_size(tenants), n = 0, i;
    const char **names = calloc(room + 1, sizeof *names), *name, *near = NULL;
    bool found = false;
    json_t *unused;

    json_object_foreach(tenants, name, unused) {
        if (names)
            names[n++] = name;
    }
    json_array_foreach(rows, i, row) {
        name = json_string_value(json_object_get(row, "tenant"));
        if (names && name)
            names[n++] = name;
    }
    for (i = 0; i < n; i++)
        found = found || !strcmp(names[i], arguments->id);
    if (!found && n)
        near = read_nearest(arguments->id, names, n);
    auto_buf struct buf hint = BUF_INIT;
    if (near)
        buf_printf(&hint, ": did you mean %s?", near);
    if (!found)
        fprintf(stderr,
            "rollbox token: there is no tenant %s in %s%s; rollbox token ls lists the tokens with "
            "their tenants\n",
            arguments->id, arguments->file, hint.data ? hint.data : "");
    free(names);
    return found;
}

/* Changes what is given; prints all of it if nothing is. */
static int tenant(const struct arguments *arguments) {
    auto_close int lock = -EBADF;

    if (!token_tenant_ok(arguments->id)) {
        fprintf(stderr, "rollbox token: tenant: 1 to %d of a-z and 0-9: \"%.100s\"\n",
            TOKEN_TENANT_MAX, arguments->id);
        return 1;
    }
    json_t *all = load(arguments->file, &lock), *tenants, *row, *quotas;
    if (!all)
        return 1;
    bool changes =
        json_object_size(arguments->quotas) || arguments->weight >= 0 || arguments->ceiling;
    if (!changes && !is_known(arguments, all)) {
        json_decref(all);
        return 1;
    }
    tenants = json_object_get(all, "tenants");
    if (!tenants)
        json_object_set_new(all, "tenants", tenants = json_object());
    row = json_object_get(tenants, arguments->id);
    if (!row)
        json_object_set_new(tenants, arguments->id, row = json_object());
    quotas = json_object_get(row, "quota");
    if (!quotas)
        json_object_set_new(row, "quota", quotas = json_object());
    json_object_update(quotas, arguments->quotas);
    if (arguments->weight >= 0)
        json_object_set_new(row, "weight", json_integer(arguments->weight));
    if (json_is_null(arguments->ceiling))
        json_object_del(row, "ceiling");
    else if (arguments->ceiling)
        json_object_set(row, "ceiling", arguments->ceiling);
    int status = 0;
    if (changes) {
        status = store(arguments->file, all);
    } else {
        auto_free char *text = json_dumps(row, JSON_COMPACT);

        puts(text ? text : "{}");
    }
    json_decref(all);
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

/* NAME=VALUE. The value is kept as it is written. */
static bool take_quota(json_t *quotas, const char *text) {
    char why[QUOTA_FAULT];
    enum quota quota;
    uint64_t number;

    if (quota_argument(text, &quota, &number, why) < 0) {
        fprintf(stderr, "rollbox token: --quota %.64s: %s\n", text, why);
        return false;
    }
    json_object_set_new(quotas, quota_name(quota), json_string(strchr(text, '=') + 1));
    return true;
}

/* An empty file is no ceiling: null. */
static json_t *read_ceiling(const char *path) {
    auto_buf struct buf text = BUF_INIT;
    json_error_t problem;
    int r = fd_read_file(path, FILE_MAX, &text);

    if (r < 0) {
        fail("cannot read", path, -r);
        return NULL;
    }
    if (!text.length)
        return json_null();
    json_t *ceiling = json_loadb(text.data, text.length, JSON_REJECT_DUPLICATES, &problem);
    char why[CEILING_TEXT];
    if (json_is_object(ceiling) && !ceiling_fault(ceiling, why))
        return ceiling;
    if (json_is_object(ceiling))
        fprintf(stderr, "rollbox token: %s: %s\n", path, why);
    else
        fprintf(stderr, "rollbox token: %s:%d: a ceiling is a JSON object: %s\n", path,
            problem.line, ceiling ? "another type" : problem.text);
    json_decref(ceiling);
    return NULL;
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
        { "max-running", 1, NULL, 'r' }, { "certificate", 1, NULL, 'c' }, { "quota", 1, NULL, 'q' },
        { "weight", 1, NULL, 'w' }, { "ceiling", 1, NULL, 'C' }, { NULL, 0, NULL, 0 } };
    struct arguments arguments = { .tenant = "default",
        .scopes = json_array(),
        .quotas = json_object(),
        .max_sandboxes = -1,
        .max_running = -1,
        .weight = -1 };
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
            ok = ok && tokens_scope(optarg);
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
        case 'q':
            if (!take_quota(arguments.quotas, optarg))
                return 2;
            break;
        case 'w':
            ok = ok && number(optarg, &arguments.weight) && arguments.weight >= 1 &&
                 arguments.weight <= TOKEN_WEIGHT_MAX;
            break;
        case 'C':
            json_decref(arguments.ceiling);
            arguments.ceiling = read_ceiling(optarg);
            if (!arguments.ceiling)
                return 1;
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
            "--certificate is DNS:NAME, URI:NAME or email:NAME; --weight is 1 to %d\n",
            TOKEN_WEIGHT_MAX);
    else if (!strcmp(verb, "create") && !arguments.id)
        status = create(&arguments);
    else if (!strcmp(verb, "tenant") && arguments.id)
        status = tenant(&arguments);
    else if (!strcmp(verb, "ls") && !arguments.id)
        status = list(&arguments);
    else if (!strcmp(verb, "rm") && arguments.id)
        status = remove_token(&arguments);
    else
        fprintf(stderr, "rollbox token: create, tenant NAME, ls, or rm ID\n");
    json_decref(arguments.scopes);
    json_decref(arguments.quotas);
    json_decref(arguments.ceiling);
    return status;
}
