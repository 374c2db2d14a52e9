/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stopwatch of the benchmarks.
 *
 * A contestant is a way to run one program to its end: `spawn` (posix_spawn and waitpid of the
 * given argv: the bare program, or a sandboxing tool in front of it), `engine` (through librollbox
 * and an engine that is warm: a private one, or the one listening at $ROLLBOX_BENCH_SOCKET) or
 * `code` (the same, of a command of python3's that an interpreter may take). The process stays
 * alive and takes orders on its standard input, one a line, so that a driver can let several
 * contestants take turns within one run, on the machine as it is at that time:
 *
 *     latency N               -> N times in ns, of runs one after the other
 *     throughput WORKERS MS   -> runs done and ns passed: threads that start the next run when
 * theirs ended, until the time is up; then until all is torn down burst N                 -> N
 * times in ns from the common start to each one's end, all started at once clients N TOTAL -> TOTAL
 * times in ns, of runs by N threads, each with a connection of its own to the shared engine; a
 * failed run is 0 status                  -> the engine's status, or {}
 *
 * What is spawned reads BENCH_STDIN, or /dev/null. An argument "%" of a spawned argv becomes a new
 * id each time (containers have names). What goes wrong ends the process with a word on stderr: a
 * benchmark of failures measures nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rollbox/rollbox.h>

#define MAX_ARGUMENTS 512
#define MAX_WORKERS 1024
#define MAX_INTERPRETERS 8

extern char **environ;

static char **command;
static bool is_code;
static const char *policy, *socket_path; /* of an engine; socket_path NULL: a private one */
static struct rollbox_engine *engine;    /* NULL: spawn */
static struct rollbox_plan *plan;
static posix_spawn_file_actions_t quiet;
static _Atomic unsigned next_id;

__attribute__((format(printf, 1, 2))) _Noreturn static void die(const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    fputs("bench: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    _exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- one run ---- */

static pid_t spawn_start(void) {
    char *argv[MAX_ARGUMENTS], id[48];
    size_t n = 0;
    pid_t pid;

    snprintf(id, sizeof id, "bench-%d-%u", (int)getpid(), atomic_fetch_add(&next_id, 1));
    for (; command[n]; n++)
        argv[n] = strcmp(command[n], "%") ? command[n] : id;
    argv[n] = NULL;
    int r = posix_spawn(&pid, argv[0], &quiet, NULL, argv, environ);
    if (r)
        die("%s: %s", argv[0], strerror(r));
    return pid;
}

static void check_status(int status) {
    if (status)
        die("%s ended with wait status 0x%x", command[0], status);
}

static struct rollbox_run *engine_start(rollbox_callback callback, void *userdata) {
    struct rollbox_run_options options = {
        .size = sizeof options,
        .argv = (const char *const *)command,
        .timeout_ms = -1,
        .output_limit = -1,
        .callback = callback,
        .userdata = userdata,
        .is_code = is_code,
    };
    struct rollbox_error error;
    struct rollbox_run *run;

    if (rollbox_start(engine, plan, &options, &run, &error) < 0)
        die("rollbox_start: %s", error.message);
    return run;
}

static void check_result(const struct rollbox_result *result) {
    if (result->outcome != ROLLBOX_OUTCOME_EXIT || result->exit_code)
        die("%s: %s %d %s %.*s", command[0], rollbox_outcome_name(result->outcome),
            result->exit_code, result->error.message, (int)result->stderr_length,
            (const char *)result->stderr_data);
}

static void run_once(void) {
    if (engine) {
        const struct rollbox_result *result;
        struct rollbox_run *run = engine_start(NULL, NULL);

        if (rollbox_wait(run, -1, &result) < 0)
            die("rollbox_wait failed");
        check_result(result);
        rollbox_run_free(run);
    } else {
        int status;
        pid_t pid = spawn_start();

        if (waitpid(pid, &status, 0) != pid)
            die("waitpid: %s", strerror(errno));
        check_status(status);
    }
}

/* ---- orders ---- */

static void print_times(const int64_t *times, unsigned n) {
    for (unsigned i = 0; i < n; i++)
        printf("%" PRId64 "%c", times[i], i + 1 < n ? ' ' : '\n');
}

static void latency(unsigned n) {
    int64_t *times = calloc(n, sizeof *times);

    if (!times)
        die("out of memory");
    for (unsigned i = 0; i < n; i++) {
        int64_t start = now_ns();
        run_once();
        times[i] = now_ns() - start;
    }
    print_times(times, n);
    free(times);
}

static _Atomic bool stop;

static void *work(void *argument) {
    unsigned *done = argument;

    while (!atomic_load(&stop)) {
        run_once();
        ++*done;
    }
    return NULL;
}

/* Waits until the engine has torn down all that runs left behind: a rate that only counted what
 * comes back would leave the bill to the next. The sandboxes of the next interpreters may stay: the
 * engine keeps them for half a minute. */
static void settle(void) {
    for (;;) {
        struct rollbox_error error;
        unsigned sandboxes = 0, spares = 0;
        char *json, *at;

        if (rollbox_engine_status(engine, &json, &error) < 0)
            die("rollbox_engine_status: %s", error.message);
        if ((at = strstr(json, "\"sandboxes\": ")))
            sandboxes = (unsigned)strtoul(at + 13, NULL, 10);
        if ((at = strstr(json, "\"spares\": ")))
            spares = (unsigned)strtoul(at + 10, NULL, 10);
        free(json);
        if (sandboxes <= spares + (is_code ? MAX_INTERPRETERS : 0))
            return;
        nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
    }
}

static void throughput(unsigned workers, unsigned ms) {
    pthread_t threads[MAX_WORKERS];
    unsigned done[MAX_WORKERS] = { 0 }, total = 0;
    int64_t start = now_ns();

    if (workers > MAX_WORKERS)
        die("too many workers");
    atomic_store(&stop, false);
    for (unsigned i = 0; i < workers; i++)
        if (pthread_create(&threads[i], NULL, work, &done[i]))
            die("pthread_create failed");
    nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l }, NULL);
    atomic_store(&stop, true);
    for (unsigned i = 0; i < workers; i++) {
        pthread_join(threads[i], NULL);
        total += done[i];
    }
    if (engine)
        settle();
    printf("%u %" PRId64 "\n", total, now_ns() - start);
}

struct burst {
    int64_t start;
    int64_t *times;
    unsigned n_ended;
};

static void on_end(struct rollbox_run *run, void *userdata) {
    struct burst *burst = userdata;

    (void)run;
    burst->times[burst->n_ended++] = now_ns() - burst->start;
}

static void burst(unsigned n) {
    struct burst burst = { .times = calloc(n, sizeof(int64_t)) };
    struct rollbox_run **runs = calloc(n, sizeof *runs);

    if (!burst.times || !runs)
        die("out of memory");
    burst.start = now_ns();
    if (engine) {
        for (unsigned i = 0; i < n; i++)
            runs[i] = engine_start(on_end, &burst);
        for (unsigned i = 0; i < n; i++) {
            const struct rollbox_result *result;

            if (rollbox_wait(runs[i], -1, &result) < 0)
                die("rollbox_wait failed");
            check_result(result);
            rollbox_run_free(runs[i]);
        }
        if (burst.n_ended != n)
            die("%u of %u callbacks came", burst.n_ended, n);
        settle();
    } else {
        for (unsigned i = 0; i < n; i++)
            spawn_start();
        while (burst.n_ended < n) {
            int status;

            if (waitpid(-1, &status, 0) < 0)
                die("waitpid: %s", strerror(errno));
            check_status(status);
            burst.times[burst.n_ended++] = now_ns() - burst.start;
        }
    }
    print_times(burst.times, n);
    free(burst.times);
    free(runs);
}

/* ---- clients of a shared engine ---- */

struct client {
    unsigned n;
    int64_t *times;
    pthread_t thread;
};

static void *be_client(void *argument) {
    struct client *client = argument;
    struct rollbox_engine_options options = { .size = sizeof options, .socket_path = socket_path };
    struct rollbox_engine *own;
    struct rollbox_plan *own_plan;
    struct rollbox_error error;

    if (rollbox_engine_open(&options, &own, &error) < 0)
        die("rollbox_engine_open: %s", error.message);
    if (rollbox_prepare(own, policy, strlen(policy), &own_plan, &error) < 0)
        die("rollbox_prepare: %s", error.message);
    for (unsigned i = 0; i < client->n; i++) {
        struct rollbox_run_options run_options = { .size = sizeof run_options,
            .argv = (const char *const *)command,
            .timeout_ms = -1,
            .output_limit = -1 };
        const struct rollbox_result *result;
        struct rollbox_run *run;
        int64_t start = now_ns();

        if (rollbox_start(own, own_plan, &run_options, &run, &error) < 0)
            die("rollbox_start: %s", error.message);
        if (rollbox_wait(run, -1, &result) < 0)
            die("rollbox_wait failed");
        if (result->outcome == ROLLBOX_OUTCOME_EXIT && result->exit_code == 0)
            client->times[i] = now_ns() - start;
        else
            fprintf(stderr, "bench: %s %s\n", rollbox_outcome_name(result->outcome),
                result->error.message);
        rollbox_run_free(run);
    }
    rollbox_engine_close(own);
    return NULL;
}

static void clients(unsigned n, unsigned total) {
    struct client *all = calloc(n, sizeof *all);
    int64_t *times = calloc(total, sizeof *times);
    unsigned given = 0;

    if (!socket_path || !n || !all || !times)
        die("clients: %s", socket_path ? "out of memory" : "needs a shared engine");
    for (unsigned i = 0; i < n; i++) {
        all[i].n = total / n + (i < total % n);
        all[i].times = times + given;
        given += all[i].n;
        if (pthread_create(&all[i].thread, NULL, be_client, &all[i]))
            die("pthread_create failed");
    }
    for (unsigned i = 0; i < n; i++)
        pthread_join(all[i].thread, NULL);
    print_times(times, total);
    free(all);
    free(times);
}

static void status(void) {
    struct rollbox_error error;
    char *json;

    if (!engine) {
        puts("{}");
        return;
    }
    if (rollbox_engine_status(engine, &json, &error) < 0)
        die("rollbox_engine_status: %s", error.message);
    puts(json);
    free(json);
}

static void serve(void) {
    char line[256];

    while (fgets(line, sizeof line, stdin)) {
        unsigned a, b;

        if (sscanf(line, "latency %u", &a) == 1)
            latency(a);
        else if (sscanf(line, "throughput %u %u", &a, &b) == 2)
            throughput(a, b);
        else if (sscanf(line, "burst %u", &a) == 1)
            burst(a);
        else if (sscanf(line, "clients %u %u", &a, &b) == 2)
            clients(a, b);
        else if (!strncmp(line, "status", 6))
            status();
        else
            die("no such order: %s", line);
        fflush(stdout);
    }
}

static void open_engine(void) {
    struct rollbox_engine_options options = { .size = sizeof options, .socket_path = socket_path };
    struct rollbox_error error;

    if (rollbox_engine_open(&options, &engine, &error) < 0)
        die("rollbox_engine_open: %s", error.message);
    if (rollbox_prepare(engine, policy, strlen(policy), &plan, &error) < 0)
        die("rollbox_prepare: %s", error.message);
}

int main(int argc, char **argv) {
    is_code = argc > 3 && !strcmp(argv[1], "code");
    bool through_engine = is_code || (argc > 3 && !strcmp(argv[1], "engine"));

    if (argc < 3 || (!through_engine && strcmp(argv[1], "spawn"))) {
        fputs("usage: bench spawn ARGV... | bench engine|code POLICY-JSON ARGV...\n", stderr);
        return 2;
    }
    command = argv + (through_engine ? 3 : 2);
    if (argc > MAX_ARGUMENTS)
        die("too many arguments");
    posix_spawn_file_actions_init(&quiet);
    const char *input = getenv("BENCH_STDIN");
    posix_spawn_file_actions_addopen(
        &quiet, STDIN_FILENO, input ? input : "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (through_engine) {
        policy = argv[2];
        socket_path = getenv("ROLLBOX_BENCH_SOCKET");
        open_engine();
    }
    serve();
    rollbox_engine_close(engine);
    return 0;
}
