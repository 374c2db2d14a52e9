/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server's options, of its command line and of a TOML file (--config). Both have the same
 * names: `--tls-cert FILE` is `tls-cert = "FILE"`, and also `[tls]` with `cert = "FILE"`. An option
 * of the command line wins over the file's. Unknown names and wrong types are errors. `[quota]`
 * with `memory = "64G"` is `--quota memory=64G`.
 */
#ifndef ROLLBOX_SERVE_CONFIG_H
#define ROLLBOX_SERVE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "serve/quota.h"

#define CONFIG_LIST_MAX 64

struct config_list {
    const char *values[CONFIG_LIST_MAX + 1]; /* NULL-terminated */
    size_t n;
};

struct config {
    struct config_list listen, host, engine, quota, otlp_header, templates;
    const char *tokens, *state, *prices;
    const char *otlp_endpoint, *otlp_service_name, *otlp_sampler, *otlp_sampler_arg;
    const char *tls_cert, *tls_key, *tls_client_ca;
    bool tls_client_required, insecure, engine_per_tenant;
    int64_t engines, drain_s;
    bool shows_version;
    struct amounts quotas; /* of `quota` */
};

/* 0; or 2, the exit status after a message. Strings live as long as the process. */
int config_read(struct config *config, int argc, char **argv);

/* toml.cc: calls `set` for each value of a TOML text, for each member of an array once; nested
 * tables' names are joined with '-'. `kind` is 's'tring, 'i'nteger or
 * 'b'oolean ("true", "false"), in upper case for a member of an array.
 * 0, or -1 with *ret_why, which the caller frees. */
typedef int config_setter(const char *name, char kind, const char *text, long line, void *data);
int config_parse_toml(const char *text, size_t length, const char *path, config_setter *set,
    void *data, char **ret_why);

#endif
