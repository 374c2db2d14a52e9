/* SPDX-License-Identifier: Apache-2.0 */
/* The server's options; config.h has the model. */
#include "serve/config.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fd.h"

#define FILE_MAX ((size_t)1 << 20)
#define ENGINES_MAX 64
#define DRAIN_MAX_S 86400
#define DRAIN_DEFAULT_S 30

enum kind { KIND_FLAG, KIND_TEXT, KIND_LIST, KIND_NUMBER };

static const struct setting {
    const char *name;
    enum kind kind;
    size_t offset;
    int64_t least, most; /* of a number */
} settings[] = {
    { "listen", KIND_LIST, offsetof(struct config, listen), 0, 0 },
    { "host", KIND_LIST, offsetof(struct config, host), 0, 0 },
    { "tokens", KIND_TEXT, offsetof(struct config, tokens), 0, 0 },
    { "engine", KIND_LIST, offsetof(struct config, engine), 0, 0 },
    { "engines", KIND_NUMBER, offsetof(struct config, engines), 1, ENGINES_MAX },
    { "engine-per-tenant", KIND_FLAG, offsetof(struct config, engine_per_tenant), 0, 0 },
    { "state", KIND_TEXT, offsetof(struct config, state), 0, 0 },
    { "prices", KIND_TEXT, offsetof(struct config, prices), 0, 0 },
    { "template", KIND_LIST, offsetof(struct config, templates), 0, 0 },
    { "drain", KIND_NUMBER, offsetof(struct config, drain_s), 0, DRAIN_MAX_S },
    { "quota", KIND_LIST, offsetof(struct config, quota), 0, 0 },
    { "insecure", KIND_FLAG, offsetof(struct config, insecure), 0, 0 },
    { "otlp-endpoint", KIND_TEXT, offsetof(struct config, otlp_endpoint), 0, 0 },
    { "otlp-header", KIND_LIST, offsetof(struct config, otlp_header), 0, 0 },
    { "otlp-service-name", KIND_TEXT, offsetof(struct config, otlp_service_name), 0, 0 },
    { "otlp-sampler", KIND_TEXT, offsetof(struct config, otlp_sampler), 0, 0 },
    { "otlp-sampler-arg", KIND_TEXT, offsetof(struct config, otlp_sampler_arg), 0, 0 },
    { "tls-cert", KIND_TEXT, offsetof(struct config, tls_cert), 0, 0 },
    { "tls-key", KIND_TEXT, offsetof(struct config, tls_key), 0, 0 },
    { "tls-client-ca", KIND_TEXT, offsetof(struct config, tls_client_ca), 0, 0 },
    { "tls-client-required", KIND_FLAG, offsetof(struct config, tls_client_required), 0, 0 },
};

#define N_SETTINGS ARRAY_SIZE(settings)
#define CONFIG_FILE ((int)N_SETTINGS)
#define CONFIG_VERSION ((int)N_SETTINGS + 1)

static void *place_of(struct config *config, const struct setting *setting) {
    return (char *)config + setting->offset;
}

/* Returns NULL, or an error text for the value. */
static const char *set(struct config *config, const struct setting *setting, const char *text) {
    void *place = place_of(config, setting);
    struct config_list *list = place;
    long long number;
    char *end;

    switch (setting->kind) {
    case KIND_FLAG:
        *(bool *)place = !text || !strcmp(text, "true");
        return NULL;
    case KIND_TEXT:
        *(const char **)place = text;
        return *text ? NULL : "must not be empty";
    case KIND_LIST:
        if (list->n == CONFIG_LIST_MAX)
            return "is given too often";
        list->values[list->n++] = text;
        return *text ? NULL : "must not be empty";
    case KIND_NUMBER:
        errno = 0;
        number = strtoll(text, &end, 10);
        if (errno || end == text || *end || number < setting->least || number > setting->most)
            return "is out of its range";
        *(int64_t *)place = number;
        return NULL;
    }
    return NULL;
}

/* ---- the file ---- */

struct reading {
    struct config *config;
    const char *path;
    const bool *given; /* settings of the command line */
};

static const struct setting *find(const char *name) {
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (!strcmp(settings[i].name, name))
            return &settings[i];
    return NULL;
}

static int set_from_file(const char *name, char kind, const char *text, long line, void *data) {
    static const char kinds[] = {
        [KIND_FLAG] = 'b', [KIND_TEXT] = 's', [KIND_LIST] = 's', [KIND_NUMBER] = 'i'
    };
    static const char *const types[] = { [KIND_FLAG] = "true or false",
        [KIND_TEXT] = "a string",
        [KIND_LIST] = "a string or an array of strings",
        [KIND_NUMBER] = "an integer" };
    struct reading *reading = data;
    const struct setting *setting = find(name);

    if (!setting && !strncmp(name, "quota-", 6) && (kind == 's' || kind == 'i')) {
        char *pair = NULL;

        if (asprintf(&pair, "%s=%s", name + 6, text) < 0)
            return -1;
        return set_from_file("quota", 's', pair, line, data);
    }
    if (!setting) {
        fprintf(
            stderr, "rollbox-serve: %s:%ld: unknown option \"%.64s\"\n", reading->path, line, name);
        return -1;
    }
    if (kinds[setting->kind] != kind && !(kind == 'S' && setting->kind == KIND_LIST)) {
        fprintf(stderr, "rollbox-serve: %s:%ld: %s must be %s\n", reading->path, line, name,
            types[setting->kind]);
        return -1;
    }
    if (reading->given[setting - settings])
        return 0;
    char *copy = strdup(text);
    const char *why = copy ? set(reading->config, setting, copy) : "cannot be kept: out of memory";
    if (!why)
        return 0;
    fprintf(stderr, "rollbox-serve: %s:%ld: %s %s\n", reading->path, line, name, why);
    return -1;
}

static int read_file(struct config *config, const char *path, const bool *given) {
    struct reading reading = { .config = config, .path = path, .given = given };
    auto_buf struct buf text = BUF_INIT;
    auto_free char *why = NULL;

    int r = fd_read_file(path, FILE_MAX, &text);
    if (r < 0) {
        fprintf(stderr, "rollbox-serve: cannot read %s: %s\n", path, strerror(-r));
        return 2;
    }
    if (config_parse_toml(
            text.data ? text.data : "", text.length, path, set_from_file, &reading, &why) >= 0)
        return 0;
    if (why)
        fprintf(stderr, "rollbox-serve: %s\n", why);
    return 2;
}

/* ---- all ---- */

/* NAME=VALUE, each. */
static int read_quotas(struct config *config) {
    config->quotas = quota_unlimited();
    for (size_t i = 0; i < config->quota.n; i++) {
        const char *text = config->quota.values[i];
        char why[QUOTA_FAULT];
        enum quota quota;
        uint64_t value;

        if (quota_argument(text, &quota, &value, why) < 0) {
            fprintf(stderr, "rollbox-serve: quota %.64s: %s\n", text, why);
            return 2;
        }
        config->quotas.of[quota] = value;
    }
    return 0;
}

static int check(const struct config *config) {
    const char *why = NULL;

    if (!config->tls_cert != !config->tls_key)
        why = "--tls-cert and --tls-key belong together";
    else if (config->tls_client_ca && !config->tls_cert)
        why = "--tls-client-ca needs --tls-cert and --tls-key";
    else if (config->tls_client_required && !config->tls_client_ca)
        why = "--tls-client-required needs --tls-client-ca";
    else if (config->engine.n && (config->engines || config->engine_per_tenant))
        why = "--engines and --engine-per-tenant start engines; leave them out with --engine";
    else if (config->engines && config->engine_per_tenant)
        why = "--engine-per-tenant has one engine a tenant; leave --engines out";
    if (why)
        fprintf(stderr, "rollbox-serve: %s\n", why);
    return why ? 2 : 0;
}

int config_read(struct config *config, int argc, char **argv) {
    struct option options[N_SETTINGS + 3] = { { 0 } };
    bool given[N_SETTINGS] = { false };
    const char *path = NULL;
    int c;

    memset(config, 0, sizeof *config);
    config->drain_s = DRAIN_DEFAULT_S;
    for (size_t i = 0; i < N_SETTINGS; i++)
        options[i] = (struct option){ settings[i].name, settings[i].kind != KIND_FLAG, NULL, 0 };
    options[CONFIG_FILE] = (struct option){ "config", 1, NULL, 0 };
    options[CONFIG_VERSION] = (struct option){ "version", 0, NULL, 0 };
    for (int which = -1; (c = getopt_long(argc, argv, "", options, &which)) >= 0; which = -1) {
        if (c != 0) {
            fprintf(stderr, "rollbox-serve: see rollbox serve --help\n");
            return 2;
        }
        if (which == CONFIG_FILE) {
            path = optarg;
        } else if (which == CONFIG_VERSION) {
            config->shows_version = true;
        } else {
            const char *why = set(config, &settings[which], optarg);

            if (why) {
                fprintf(stderr, "rollbox-serve: --%s %s\n", settings[which].name, why);
                return 2;
            }
            given[which] = true;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "rollbox-serve: unknown option \"%.100s\"\n", argv[optind]);
        return 2;
    }
    int status = path ? read_file(config, path, given) : 0;
    if (!status)
        status = read_quotas(config);
    return status ? status : check(config);
}
