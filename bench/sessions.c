/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of sessions: one private engine, the default policy with a copy-on-write grant, one JSON
 * object of rows on standard output.
 *
 *   bench-sessions REPEATS TREE CHAIN
 *
 * TREE is a directory of the host with 1,000 files, granted copy-on-write. CHAIN is how many
 * snapshots the long chain has. Where the target is a ratio to bare posix_spawn, both are done in
 * turn.
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rollbox/rollbox.h>

#define MOST 20000
#define FORKS 100

extern char **environ;

static struct rollbox_error error;
static struct rollbox_engine *engine;
static struct rollbox_plan *plan;
static const char *separator = "";

static double now_us(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void must(int r, const char *what) {
    if (r >= 0)
        return;
    fprintf(
        stderr, "bench-sessions: %s: %s\n", what, error.message[0] ? error.message : strerror(-r));
    exit(1);
}

static void run_bare(void) {
    char *argv[] = { (char[]){ "/bin/true" }, NULL };
    pid_t pid;

    must(-posix_spawn(&pid, argv[0], NULL, NULL, argv, environ), "posix_spawn");
    waitpid(pid, NULL, 0);
}

static struct rollbox_sandbox *create(void) {
    struct rollbox_sandbox_options options = { .size = sizeof options };
    struct rollbox_sandbox *sandbox;

    must(rollbox_sandbox_create(engine, plan, &options, &sandbox, &error), "create");
    return sandbox;
}

static const struct rollbox_result *finished(struct rollbox_run *run) {
    const struct rollbox_result *result;

    must(rollbox_wait(run, -1, &result), "wait");
    if (result->outcome != ROLLBOX_OUTCOME_EXIT || result->exit_code) {
        fprintf(stderr, "bench-sessions: outcome %s, exit code %d, %s\n",
            rollbox_outcome_name(result->outcome), result->exit_code, result->error.message);
        exit(1);
    }
    return result;
}

static void exec_argv(struct rollbox_sandbox *sandbox, const char *const *argv) {
    struct rollbox_exec_options options = { .size = sizeof options,
        .argv = argv,
        .timeout_ms = -1,
        .output_limit = -1,
        .input_fd = -1,
        .stream_fds = { -1, -1 } };
    struct rollbox_run *run;

    must(rollbox_exec(sandbox, &options, &run, &error), "exec");
    (void)finished(run);
    rollbox_run_free(run);
}

static void exec_true(struct rollbox_sandbox *sandbox) {
    exec_argv(sandbox, (const char *const[]){ "/bin/true", NULL });
}

static void exec_shell(struct rollbox_sandbox *sandbox, const char *script) {
    exec_argv(sandbox, (const char *const[]){ "/bin/sh", "-c", script, NULL });
}

/* What the guest itself measured, in nanoseconds. */
static double exec_number(struct rollbox_sandbox *sandbox, const char *script) {
    struct rollbox_exec_options options = { .size = sizeof options,
        .argv = (const char *const[]){ "/usr/bin/python3", "-c", script, NULL },
        .timeout_ms = -1,
        .output_limit = -1,
        .input_fd = -1,
        .stream_fds = { -1, -1 } };
    struct rollbox_run *run;
    char text[64] = "";

    must(rollbox_exec(sandbox, &options, &run, &error), "exec");
    const struct rollbox_result *result = finished(run);
    memcpy(text, result->stdout_data,
        result->stdout_length < sizeof text ? result->stdout_length : sizeof text - 1);
    rollbox_run_free(run);
    return strtod(text, NULL);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, by_size);
    return values[n / 2];
}

static void row(const char *name, double *values, int n, double bare) {
    double p50 = median(values, n);

    printf("%s\"%s\": {\"p50_us\": %.1f, \"p99_us\": %.1f, \"runs\": %d", separator, name, p50,
        values[n * 99 / 100], n);
    if (bare > 0)
        printf(", \"of_bare\": %.3f, \"over_bare_us\": %.1f", p50 / bare, p50 - bare);
    printf("}");
    separator = ",\n ";
}

static double mine[MOST], other[MOST];

static void measure_exec(int n) {
    struct rollbox_sandbox *sandbox = create();

    exec_true(sandbox);
    for (int i = 0; i < n; i++) {
        double start = now_us();
        run_bare();
        other[i] = now_us() - start;
        start = now_us();
        exec_true(sandbox);
        mine[i] = now_us() - start;
    }
    row("exec /bin/true in a session", mine, n, median(other, n));
    must(rollbox_sandbox_close(sandbox, &error), "close");
}

/* With one ready ahead of need: the next is asked for when that is so again. */
static void measure_create(int n) {
    struct rollbox_sandbox *first = create(), *sandbox;

    exec_true(first);
    for (int i = 0; i < n; i++) {
        double start = now_us();
        run_bare();
        other[i] = now_us() - start;
        start = now_us();
        sandbox = create();
        mine[i] = now_us() - start;
        exec_true(sandbox);
        must(rollbox_sandbox_close(sandbox, &error), "close");
        exec_true(first);
    }
    row("create, one ready", mine, n, median(other, n));
    must(rollbox_sandbox_close(first, &error), "close");
}

static void snapshot(struct rollbox_sandbox *sandbox, const struct rollbox_state_options *options) {
    char *json;

    must(rollbox_snapshot(sandbox, NULL, options, &json, &error), "snapshot");
    free(json);
}

#define WRITE_1000                                                                                 \
    "mkdir -p /tmp/d; cd /tmp/d; i=0; while [ $i -lt 1000 ]; do echo \"$i "                        \
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa $$\" > f$i; i=$((i+1)); done"

static void measure_snapshots(int n, const char *tree) {
    struct rollbox_sandbox *sandbox = create(), *forks[FORKS];
    char script[4096];

    for (int i = 0; i < n; i++) {
        exec_shell(sandbox, "echo $$ > /tmp/f");
        double start = now_us();
        snapshot(sandbox, NULL);
        mine[i] = now_us() - start;
    }
    row("snapshot, nothing running", mine, n, 0);
    n = n / 10 + 5;
    for (int i = 0; i < n; i++) {
        exec_shell(sandbox, WRITE_1000);
        double start = now_us();
        must(rollbox_reset(sandbox, NULL, NULL, &error), "reset");
        exec_true(sandbox);
        mine[i] = now_us() - start;
    }
    row("reset, 1,000 dirty files, and /bin/true in it", mine, n, 0);
    snprintf(script, sizeof script, "cd '%s' && for f in *; do echo x >> $f; done", tree);
    for (int i = 0; i < n; i++) {
        exec_shell(sandbox, script);
        double start = now_us();
        must(rollbox_reset(sandbox, NULL, NULL, &error), "reset");
        mine[i] = now_us() - start;
    }
    row("reset, 1,000 copied-up files", mine, n, 0);
    exec_shell(sandbox, WRITE_1000);
    for (int i = 0; i < 9; i++) {
        double start = now_us();
        must(rollbox_fork(sandbox, NULL, FORKS, NULL, forks, &error), "fork");
        mine[i] = now_us() - start;
        for (int k = 0; k < FORKS; k++)
            must(rollbox_sandbox_close(forks[k], &error), "close");
    }
    row("fork of 100 file states", mine, 9, 0);
    exec_shell(sandbox, "sleep 1000 & sleep 1000 & sleep 1000 &");
    struct rollbox_state_options files = { .size = sizeof files,
        .processes = ROLLBOX_PROCESSES_DROP };
    for (int i = 0; i < n; i++) {
        exec_shell(sandbox, WRITE_1000);
        double start = now_us();
        snapshot(sandbox, &files);
        mine[i] = now_us() - start;
        exec_shell(sandbox, WRITE_1000);
        start = now_us();
        snapshot(sandbox, NULL);
        other[i] = now_us() - start;
    }
    row("snapshot of 1,000 changed files, beside 3 processes", mine, n, 0);
    row("snapshot of 1,000 changed files and 3 processes", other, n, 0);
    must(rollbox_sandbox_close(sandbox, &error), "close");
}

static void measure_files(int n) {
    struct rollbox_sandbox *sandbox = create();
    char block[4096];
    void *data;
    size_t length;

    memset(block, 'x', sizeof block);
    for (int i = 0; i < n; i++) {
        double start = now_us();
        must(rollbox_file_write(sandbox, "/tmp/file", block, sizeof block, 0644, &error), "write");
        mine[i] = now_us() - start;
        start = now_us();
        must(rollbox_file_read(sandbox, "/tmp/file", 0, &data, &length, &error), "read");
        other[i] = now_us() - start;
        free(data);
    }
    row("write_file 4 KiB", mine, n, 0);
    row("read_file 4 KiB", other, n, 0);
    must(rollbox_sandbox_close(sandbox, &error), "close");
}

#define LOOK                                                                                       \
    "import os,time\n"                                                                             \
    "def once():\n"                                                                                \
    " t=time.perf_counter_ns()\n"                                                                  \
    " for i in range(300): os.stat('/tmp/d/f%d'%i); os.close(os.open('/tmp/d/f%d'%i,0))\n"         \
    " return (time.perf_counter_ns()-t)/300\n"                                                     \
    "once(); print(min(once() for _ in range(15)))"

#define TURNS 5

static struct rollbox_sandbox *with_thousand_files(void) {
    struct rollbox_sandbox *sandbox = create();

    exec_shell(sandbox, WRITE_1000);
    snapshot(sandbox, NULL);
    return sandbox;
}

/* open + stat of files in a directory that every layer of the chain has touched, as the guest sees
 * it; in turns with a sandbox of one layer, as a machine is not equally fast for long. */
static void measure_chain(int chain) {
    struct rollbox_sandbox *one = with_thousand_files(), *many = with_thousand_files();
    double shallow = 1e12, deep = 1e12;

    for (int i = 0; i < chain; i++) {
        exec_shell(many, "echo $$ > /tmp/d/f0; echo $$ > /tmp/d/new$$");
        snapshot(many, NULL);
    }
    for (int i = 0; i < TURNS; i++) {
        double look = exec_number(one, LOOK);
        shallow = look < shallow ? look : shallow;
        look = exec_number(many, LOOK);
        deep = look < deep ? look : deep;
    }
    printf("%s\"open and stat, chain of %d\": {\"p50_us\": %.2f, \"depth_1_us\": %.2f, "
           "\"of_depth_1\": %.3f}",
        separator, chain, deep / 1000, shallow / 1000, deep / shallow);
    must(rollbox_sandbox_close(one, &error), "close");
    must(rollbox_sandbox_close(many, &error), "close");
}

int main(int argc, char **argv) {
    char policy[8192];

    if (argc != 4) {
        fprintf(stderr, "usage: bench-sessions REPEATS TREE CHAIN\n");
        return 2;
    }
    int n = atoi(argv[1]);
    if (n < 10)
        n = 10;
    if (n > MOST)
        n = MOST;
    must(rollbox_engine_open(NULL, &engine, &error), "engine");
    snprintf(policy, sizeof policy, "{\"fs_writable\": [\"%s\"]}", argv[2]);
    must(rollbox_prepare(engine, policy, strlen(policy), &plan, &error), "policy");
    printf("{");
    measure_exec(n);
    measure_create(n / 2);
    measure_snapshots(n / 2, argv[2]);
    measure_files(n / 2);
    measure_chain(atoi(argv[3]));
    printf("}\n");
    rollbox_engine_close(engine);
    return 0;
}
