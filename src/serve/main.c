/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox-serve: the HTTP server. One loop; a client of its engine like any other.
 *
 *   rollbox-serve [--config FILE] [--OPTION VALUE]...      (config.c has the options)
 *   rollbox-serve token create|ls|rm ...
 *
 * SIGHUP reads the certificate again.
 * SIGTERM drains: no new work is taken, open requests may end within --drain seconds, then the
 * server exits. When an engine is lost, engines.c gets another one.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/admission.h"
#include "serve/config.h"
#include "serve/confine.h"
#include "serve/engines.h"
#include "serve/keeper.h"
#include "serve/listen.h"
#include "serve/server.h"
#include "serve/store_worker.h"
#include "serve/templates.h"
#include "serve/traces.h"
#include "serve/trajectories.h"
#include "serve/usage.h"
#include "sys/limits.h"

#define TRANSFER_THREADS 16u
#define POOL_THREADS 16u
#define CONNECTIONS_MAX 65536u
#define FILES_KEPT 1024u /* descriptors for engines, commands and files */

static struct loop_timer end_timer;
static struct server *the_server;
static struct config config;

static int complain(const char *doing, const char *what, int error_number) {
    fprintf(stderr, "rollbox-serve: %s%s: %s\n", doing, what, strerror(error_number));
    return 1;
}

/* ---- the end ---- */

static void on_end(struct loop_timer *timer) {
    (void)timer;
    listen_remove();
    traces_stop();
    engines_stop(the_server);
    /* A private engine ends with its connection, and every sandbox with it. */
    _exit(the_server->exit_status);
}

static void look_whether_drained(struct loop_timer *timer);

static void end_within(struct server *server, int64_t ms, void (*then)(struct loop_timer *)) {
    (void)loop_timer_set(server->loop, &end_timer, clock_now_ns() + ms * 1000000, then);
}

static int64_t drain_deadline_ns;

static void look_whether_drained(struct loop_timer *timer) {
    (void)timer;
    http_close_all(&the_server->http, true);
    bool idle = !the_server->n_exchanges && list_empty(&the_server->http.connections);
    end_within(
        the_server, 20, idle || clock_now_ns() > drain_deadline_ns ? on_end : look_whether_drained);
}

static void drain(struct server *server) {
    if (server->draining)
        return;
    server->draining = server->http.draining = true;
    listen_stop();
    drain_deadline_ns = clock_now_ns() + config.drain_s * 1000000000;
    look_whether_drained(&end_timer);
}

static struct loop_source signals;

/* New connections get the certificates that the files have now. The tokens are read again by
 * themselves. */
static void reload(struct server *server) {
    auto_free char *why = NULL;

    if (!server->tls)
        return;
    if (tls_reload(server->tls, &why) < 0)
        fprintf(stderr, "rollbox-serve: the present certificate stays in use: %s\n",
            why ? why : "out of memory");
    else
        printf("the certificate is read again\n");
    (void)fflush(stdout);
}

static void on_signal(struct loop_source *source, uint32_t events) {
    struct signalfd_siginfo info;

    (void)events;
    if (read(source->fd, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    if (info.ssi_signo == SIGHUP)
        reload(the_server);
    else
        drain(the_server);
}

/* ---- the start ---- */

/* Confines the server to the files that it reads later, and the directories that it writes to. */
static int confine(const struct config *of) {
    const char *const read[] = { of->tokens, of->tls_cert, of->tls_key, of->tls_client_ca };
    int r = confine_files(read, ARRAY_SIZE(read), of->state, listen_local_path());

    return r < 0 ? complain("cannot ", "enter Landlock", -r) : 0;
}

static int start(struct server *server, const struct config *of) {
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return complain("cannot ", "block signals", errno);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    int r = fd < 0 ? -errno : loop_add(server->loop, &signals, fd, EPOLLIN, on_signal);
    if (r < 0)
        return complain("cannot ", "watch signals", -r);
    if (confine(of))
        return 1;
    r = pool_new(server->loop, POOL_THREADS, &server->pool);
    if (r >= 0)
        r = pool_new(server->loop, TRANSFER_THREADS, &server->transfers);
    if (r < 0)
        return complain("cannot ", "start threads", -r);
    usage_start(server);
    revocation_start(server);
    r = confine_server();
    return r < 0 ? complain("cannot ", "filter system calls", -r) : 0;
}

static int start_tls(struct server *server, const struct config *of) {
    const struct tls_files files = { .certificate = of->tls_cert,
        .key = of->tls_key,
        .client_ca = of->tls_client_ca,
        .client_required = of->tls_client_required };
    auto_free char *why = NULL;

    if (!of->tls_cert || tls_new(&files, &server->tls, &why) >= 0)
        return 0;
    fprintf(stderr, "rollbox-serve: %s\n", why ? why : "out of memory");
    return 1;
}

/* As many as there are descriptors for, and some for the rest of the server. */
static unsigned connections_max(void) {
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur == RLIM_INFINITY)
        return CONNECTIONS_MAX;
    rlim_t kept = MIN(FILES_KEPT, files.rlim_cur / 2);
    return (unsigned)MIN(files.rlim_cur - kept, (rlim_t)CONNECTIONS_MAX);
}

static void init(struct server *server, const struct config *of) {
    static const char *hosts[CONFIG_LIST_MAX + 4] = { "localhost", "127.0.0.1", "[::1]" };

    server->inner = router_inner;
    list_init(&server->tenants);
    list_init(&server->leases);
    list_init(&server->tokened);
    admission_start(server);
    list_init(&server->inputs);
    list_init(&server->mcp_calls);
    list_init(&server->rex_sessions);
    list_init(&server->e2b_boxes);
    list_init(&server->operations);
    server->operations_max = OPERATIONS_MAX;
    server->answer_bytes_max = ANSWER_BYTES_MAX;
    for (size_t i = 0; i < ARRAY_SIZE(server->operations_by); i++)
        list_init(&server->operations_by[i]);
    for (size_t i = 0; i < SERVER_BUCKETS; i++)
        list_init(&server->boxes[i]);
    list_init(&server->tokens.list);
    memcpy(hosts + 3, of->host.values, of->host.n * sizeof *hosts);
    server->http = (struct http_server){ .loop = server->loop,
        .user = &router_user,
        .hosts = hosts,
        .max_connections = connections_max(),
        .userdata = server };
    list_init(&server->http.connections);
}

int main(int argc, char **argv) {
    static struct server server;

    if (argc > 1 && !strcmp(argv[1], "token"))
        return tokens_main(argc - 1, argv + 1);
    int status = config_read(&config, argc, argv);
    if (status)
        return status;
    if (config.shows_version) {
        puts("rollbox-serve " ROLLBOX_VERSION);
        return 0;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)limits_raise_open_files();
    the_server = &server;
    server.tokens.defaults = config.quotas;
    if (start_tls(&server, &config) || (config.prices && usage_read_prices(config.prices)))
        return 1;
    for (size_t i = 0; i < config.templates.n; i++)
        if (templates_read(config.templates.values[i]))
            return 1;
    if (config.tokens) {
        server.tokens.path = config.tokens;
        if (tokens_read(&server.tokens) < 0) {
            fprintf(stderr, "rollbox-serve: the tokens file %s is not valid: %s\n", config.tokens,
                server.tokens.fault);
            return 1;
        }
    }
    if (loop_new(&server.loop) < 0)
        return complain("cannot ", "make a loop", ENOMEM);
    init(&server, &config);
    store_worker_define();
    keeper_define(&config);
    if (traces_start(&server, &config))
        return 1;
    int r = stores_start(&server);
    if (r < 0)
        return complain("cannot ", "start a process", -r);
    if (engines_start(&server, &config) || (config.state && state_open(&server, config.state)) ||
        (config.state && trajectories_open(&server, config.state)) ||
        listen_start(&server, &config) || start(&server, &config))
        return 1;
    if (!config.tokens)
        fprintf(stderr, "rollbox-serve: without --tokens only processes of this user are answered, "
                        "and only over a Unix socket; rollbox token create makes tokens\n");
    printf("ready\n");
    (void)fflush(stdout);
    r = loop_run(server.loop);
    return r < 0 ? complain("", "the loop failed", -r) : 0;
}
