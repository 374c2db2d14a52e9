/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox batch: runs a file of jobs, N at a time.
 *
 * One thread and one poll loop serve the engine, the signals and, if jobs come through a pipe, the
 * jobs. A job is read when one of N slots is free, so memory holds N jobs and their results,
 * however long the file is. A regular file is first read through once for its ids, to find
 * duplicates before hours of work and to know the total.
 *
 * A guest's failure becomes a row. A failure of the infrastructure is retried a few times, with a
 * new engine if the old one was lost, and only then becomes a row with outcome "error". The results
 * file is valid at every moment: see results.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "cli/cli.h"
#include "cli/id_set.h"
#include "cli/job.h"
#include "cli/line_reader.h"
#include "cli/policy.h"
#include "cli/private_engine.h"
#include "cli/progress.h"
#include "cli/record_report.h"
#include "cli/results.h"
#include "cli/signals.h"
#include "cli/trace.h"

#define MAX_JOBS 100000
#define DEFAULT_RETRIES 2
#define RETRY_FIRST_MS 50

/* With --ordered: how many jobs may be under way or waiting for an earlier one, for each of -j, and
 * how many bytes of rows may wait. */
#define ORDER_WINDOW 16
#define ORDER_BYTES (64u << 20)

/* How often a lost engine is started again before the batch gives up, and the pause before the
 * second and later tries. */
#define REOPEN_TRIES 5
#define REOPEN_MS 300

struct batch {
    const struct options *options;
    struct rollbox_engine *engine;
    struct cli_policy policy;
    json_t *policy_json;
    struct rollbox_plan *plan; /* of the base policy */
    const char *jobs_path;
    struct line_reader lines;
    struct id_set seen; /* ids of the jobs; of those read so far if they come through a pipe */
    struct results results;
    struct progress progress;
    uint64_t jobs; /* -j */
    uint64_t retries;
    bool ordered;
    bool lost;  /* the engine is lost; no job is started until there is a new one */
    bool stop;  /* no further job is read */
    int status; /* the error that ends the batch early; 0: none */
    int signal_fd;
    size_t n_running, n_retry, n_order, order_bytes;
    struct list retry, ended, order;
    uint64_t n_torn; /* trajectories that are not whole */
};

static void run_ended(struct rollbox_run *run, void *userdata) {
    struct job *job = userdata;

    (void)run;
    list_add_tail(&job->batch->ended, &job->of_batch);
}

/* Writes a job's row and forgets the job. */
static void put_job(struct batch *batch, struct job *job) {
    int r = batch->status ? 0 : results_write(&batch->results, job->row, job->row_length);

    if (r < 0) {
        progress_clear(&batch->progress);
        batch->status =
            cli_fail(batch->options, "cannot write to %s: %s", batch->results.path, strerror(-r));
    }
    batch->n_order--;
    job_free(job);
}

/* The job has its row. */
static void finish_job(struct batch *batch, struct job *job, enum rollbox_outcome outcome) {
    batch->progress.outcomes[outcome]++;
    if (!batch->ordered) {
        put_job(batch, job);
        return;
    }
    batch->order_bytes += job->row_length;
    list_for_each(node, &batch->order) {
        struct job *first = container_of(node, struct job, of_order);

        if (!first->row)
            break;
        batch->order_bytes -= first->row_length;
        put_job(batch, first);
    }
}

static void out_of_memory(struct batch *batch) {
    if (!batch->status)
        batch->status = cli_fail(batch->options, "out of memory");
}

/* The job could not be carried out: once more, or an error row. */
static void fail_job(struct batch *batch, struct job *job, const struct rollbox_error *error) {
    if (job_error_is_transient(error) && job->attempts > 0 && job->attempts <= batch->retries) {
        job->not_before_ns =
            clock_now_ns() + ((int64_t)RETRY_FIRST_MS << MIN(job->attempts - 1, 8u)) * 1000000;
        list_add_tail(&batch->retry, &job->of_batch);
        batch->n_retry++;
        batch->progress.retried++;
        return;
    }
    if (job_set_error_row(job, error) < 0) {
        out_of_memory(batch);
        return;
    }
    finish_job(batch, job, ROLLBOX_OUTCOME_ERROR);
}

/* The plan of the job's policy. The library keeps plans by their text, so equal policies cost one
 * compilation. */
static int plan_of(struct batch *batch, struct job *job, struct rollbox_plan **ret_plan,
    struct rollbox_error *error) {
    if (!job->policy || json_object_size(job->policy) == 0) {
        *ret_plan = batch->plan;
        return 0;
    }
    json_t *policy = cli_policy_override(batch->policy_json, job->policy);
    bool chosen;
    if (batch->policy.chose_clock && !json_object_get(job->policy, "time_mode"))
        json_object_del(policy, "time_mode");
    auto_free char *text =
        policy && cli_policy_choose_clock(policy, &chosen) == 0 ? cli_policy_text(policy) : NULL;
    json_decref(policy);
    if (!text) {
        *error = (struct rollbox_error){ .code = ROLLBOX_ERR_RESOURCE_EXHAUSTED,
            .error_number = ENOMEM,
            .stage = "policy",
            .message = "out of memory" };
        return -ENOMEM;
    }
    return rollbox_prepare(batch->engine, text, strlen(text), ret_plan, error);
}

static void launch_job(struct batch *batch, struct job *job) {
    struct rollbox_error error = { 0 };
    struct rollbox_plan *plan;

    job->attempts++;
    int r = plan_of(batch, job, &plan, &error);
    if (r >= 0)
        r = options_has(batch->options, OPTION_RECORD)
                ? record_report_start(batch->options, batch->engine, plan, job, &error)
                : rollbox_start(batch->engine, plan, &job->options, &job->run, &error);
    if (r >= 0) {
        batch->n_running++;
        return;
    }
    batch->lost = batch->lost || error.code == ROLLBOX_ERR_ENGINE_LOST;
    fail_job(batch, job, &error);
}

static bool is_blank(const char *text, size_t length) {
    return strspn(text, " \t\r") == length;
}

/* Reads one line and starts its job. False if there is no line to read now. */
static bool read_one(struct batch *batch) {
    struct rollbox_error error;
    char *text;
    size_t length;
    uint64_t first;

    int r = line_reader_next(&batch->lines, &text, &length);
    if (r <= 0) {
        if (r < 0)
            batch->status = r == -EFBIG ? cli_fail(batch->options,
                                              "%s:%" PRIu64 ": the line is longer than 256 MiB",
                                              batch->jobs_path, batch->lines.line + 1)
                                        : cli_fail(batch->options, "%s: cannot read it: %s",
                                              batch->jobs_path, strerror(-r));
        return false;
    }
    if (is_blank(text, length))
        return true;
    struct job *job = job_new(text, length, batch->lines.line, &error);
    if (!job) {
        out_of_memory(batch);
        return false;
    }
    if (job->has_id && !batch->lines.blocking) {
        r = id_set_add(&batch->seen, job->id, job->line, &first);
        if (r) {
            /* Running jobs may end; then the batch fails. */
            progress_clear(&batch->progress);
            batch->stop = true;
            if (r > 0)
                cli_fail(batch->options,
                    "%s:%" PRIu64 ": id %s was used on line %" PRIu64 " already", batch->jobs_path,
                    job->line, job->id, first);
            else
                out_of_memory(batch);
            job_free(job);
            return false;
        }
    }
    if (job->has_id && id_set_find(&batch->results.done, job->id)) {
        /* A regular file's were counted beforehand. */
        batch->progress.skipped += !batch->lines.blocking;
        job_free(job);
        return true;
    }
    job->batch = batch;
    job->options.callback = run_ended;
    list_add_tail(&batch->order, &job->of_order);
    batch->n_order++;
    if (error.code != ROLLBOX_OK)
        fail_job(batch, job, &error);
    else
        launch_job(batch, job);
    return true;
}

/* The first job that is due for a retry; NULL if none. */
static struct job *next_due_job(struct batch *batch) {
    int64_t now = clock_now_ns();

    list_for_each(node, &batch->retry) {
        struct job *job = container_of(node, struct job, of_batch);

        if (job->not_before_ns <= now) {
            list_remove(&job->of_batch);
            batch->n_retry--;
            return job;
        }
    }
    return NULL;
}

static bool may_read(const struct batch *batch) {
    if (batch->stop || batch->n_retry >= batch->jobs)
        return false;
    return !batch->ordered ||
           (batch->n_order < batch->jobs * ORDER_WINDOW && batch->order_bytes < ORDER_BYTES);
}

/* Fills the free places. True if more could be read from the jobs once they have more to give. */
static bool start_jobs(struct batch *batch) {
    struct job *job;

    while (!batch->status && !batch->lost && batch->n_running < batch->jobs && !signals_caught()) {
        if ((job = next_due_job(batch))) {
            launch_job(batch, job);
        } else if (may_read(batch)) {
            if (read_one(batch))
                continue;
            return !batch->lines.eof && !batch->stop && !batch->status;
        } else {
            break;
        }
    }
    return false;
}

/* Before the row, which says that all of the job is done. Of a lost engine the job is another
 * attempt's. */
static void end_record(struct batch *batch, struct job *job, const struct rollbox_result *result) {
    if (!job->sandbox)
        return;
    if (!result || result->error.code == ROLLBOX_ERR_ENGINE_LOST) {
        (void)rollbox_sandbox_close(TAKE_PTR(job->sandbox), NULL);
        return;
    }
    progress_clear(&batch->progress);
    batch->n_torn += record_report_end(batch->options, job) != 0;
}

/* Takes the results of the runs that have ended. */
static void take_ended(struct batch *batch) {
    list_for_each(node, &batch->ended) {
        struct job *job = container_of(node, struct job, of_batch);
        const struct rollbox_result *result;
        struct rollbox_error error;

        list_remove(&job->of_batch);
        batch->n_running--;
        int r = rollbox_wait(job->run, 0, &result);
        end_record(batch, job, r < 0 ? NULL : result);
        if (r >= 0)
            cli_trace(batch->options, result, NULL, NULL, 0);
        if (r < 0) {
            error = (struct rollbox_error){ .code = ROLLBOX_ERR_INTERNAL,
                .error_number = -r,
                .stage = "result",
                .message = "an ended run has no result" };
            job->run = rollbox_run_free(job->run);
            fail_job(batch, job, &error);
        } else if (result->outcome == ROLLBOX_OUTCOME_ERROR) {
            error = result->error;
            job->run = rollbox_run_free(job->run);
            fail_job(batch, job, &error);
        } else {
            enum rollbox_outcome outcome = result->outcome;

            r = job_set_row(job, result);
            job->run = rollbox_run_free(job->run);
            if (r < 0)
                out_of_memory(batch);
            else
                finish_job(batch, job, outcome);
        }
    }
}

/* Opens an engine and has it compile the base policy. */
static int open_engine(struct batch *batch, struct rollbox_error *error) {
    int r = cli_engine_open(batch->options, &batch->engine, error);

    if (r < 0)
        return r;
    r = rollbox_prepare(
        batch->engine, batch->policy.text, batch->policy.length, &batch->plan, error);
    if (r < 0)
        batch->engine = rollbox_engine_close(batch->engine);
    return r;
}

/* Opens a new engine for the lost one, after all of its runs were taken. */
static void reopen_engine(struct batch *batch) {
    struct rollbox_error error = { 0 };

    batch->engine = rollbox_engine_close(batch->engine);
    for (int i = 0; i < REOPEN_TRIES && !signals_caught(); i++) {
        struct pollfd pause = { .fd = batch->signal_fd, .events = POLLIN };

        if (i > 0)
            poll(&pause, 1, REOPEN_MS * i);
        if (open_engine(batch, &error) >= 0) {
            batch->lost = false;
            return;
        }
    }
    if (signals_caught())
        return;
    progress_clear(&batch->progress);
    batch->status = cli_fail_error(batch->options, &error);
}

/* The time that poll may sleep: until the next retry, if a job can start, and at most one tick of
 * the progress bar. */
static int pause_ms(const struct batch *batch) {
    int64_t now = clock_now_ns(), pause = batch->progress.bar ? PROGRESS_TICK_MS : -1;

    if (batch->n_running >= batch->jobs)
        return (int)pause;
    list_for_each(node, &batch->retry) {
        int64_t left =
            (container_of(node, struct job, of_batch)->not_before_ns - now + 999999) / 1000000;

        if (pause < 0 || left < pause)
            pause = MAX(left, (int64_t)0);
    }
    return (int)pause;
}

static void run_loop(struct batch *batch) {
    for (;;) {
        /* The engine first: a job is started only when it is known to be there. */
        if (rollbox_dispatch(batch->engine) == -ENOTCONN)
            batch->lost = true;
        take_ended(batch);
        if (signals_caught() || batch->status)
            return;
        if (batch->lost && batch->n_running == 0) {
            reopen_engine(batch);
            if (!batch->engine)
                return; /* no engine came back, or a signal came first */
            continue;
        }
        bool wants_more = start_jobs(batch);
        progress_draw(&batch->progress);
        if (batch->status)
            return;
        if (batch->n_running == 0 && batch->n_retry == 0 && !batch->lost && !wants_more &&
            (batch->stop || batch->lines.eof))
            return;
        struct pollfd polls[] = {
            { .fd = rollbox_engine_fd(batch->engine), .events = POLLIN },
            { .fd = batch->signal_fd, .events = POLLIN },
            { .fd = wants_more ? batch->lines.fd : -1, .events = POLLIN },
        };
        poll(polls, ARRAY_SIZE(polls), batch->lost ? 0 : pause_ms(batch));
    }
}

/* Reads the jobs through for their ids. */
static int survey_jobs(struct batch *batch) {
    struct line_reader lines;
    char *text;
    size_t length;
    int r, status = 0;
    uint64_t first;

    line_reader_init(&lines, batch->lines.fd, true);
    while (!status && (r = line_reader_next(&lines, &text, &length)) > 0) {
        if (is_blank(text, length))
            continue;
        batch->progress.total++;
        auto_free char *id = job_id(text, length);
        if (!id) {
            status = cli_fail(batch->options, "out of memory");
        } else if (strcmp(id, "null") != 0) {
            int known = id_set_add(&batch->seen, id, lines.line, &first);

            if (known > 0)
                status = cli_fail(batch->options,
                    "%s:%" PRIu64 ": id %s was used on line %" PRIu64 " already; nothing was run",
                    batch->jobs_path, lines.line, id, first);
            else if (known < 0)
                status = cli_fail(batch->options, "out of memory");
        }
    }
    if (!status && r == -EFBIG)
        status = cli_fail(batch->options, "%s:%" PRIu64 ": the line is longer than 256 MiB",
            batch->jobs_path, lines.line + 1);
    else if (!status && (r < 0 || lseek(batch->lines.fd, 0, SEEK_SET) < 0))
        status = cli_fail(batch->options, "%s: cannot read it: %s", batch->jobs_path,
            strerror(r < 0 ? -r : errno));
    line_reader_done(&lines);
    return status;
}

static int open_jobs(struct batch *batch, int *ret_fd) {
    bool standard = strcmp(batch->jobs_path, "-") == 0;
    auto_close int fd = standard ? -EBADF : open(batch->jobs_path, O_RDONLY | O_CLOEXEC);
    struct stat st;

    if (standard && cli_stdin_was_closed())
        return cli_fail(batch->options, "<stdin>: cannot read it: it is closed");
    if (!standard && fd < 0)
        return cli_fail(
            batch->options, "%s: cannot open it: %s", batch->jobs_path, strerror(errno));
    if (fstat(standard ? STDIN_FILENO : fd, &st) == 0 && S_ISDIR(st.st_mode))
        return cli_fail(batch->options, "%s: is a directory; the jobs are a file of JSON lines",
            batch->jobs_path);
    /* Standard input is read once, from its present position. */
    line_reader_init(&batch->lines, standard ? STDIN_FILENO : fd, !standard && S_ISREG(st.st_mode));
    if (standard)
        batch->jobs_path = "<stdin>";
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static uint64_t available_cpus(void) {
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) == 0 ? (uint64_t)MAX(CPU_COUNT(&set), 1) : 1;
}

/* Everything that must be right before the first job runs. */
static int prepare_batch(struct batch *batch, int *ret_jobs_fd) {
    const struct option_use *jobs = options_last(batch->options, OPTION_JOBS),
                            *retries = options_last(batch->options, OPTION_RETRIES);
    const char *output = options_text(batch->options, OPTION_OUTPUT);
    struct rollbox_error error = { 0 };

    batch->jobs = jobs ? jobs->count : available_cpus();
    batch->retries = retries ? retries->count : DEFAULT_RETRIES;
    if (batch->jobs == 0 || batch->jobs > MAX_JOBS)
        return cli_fail(
            batch->options, "--jobs %" PRIu64 ": must be from 1 to %d", batch->jobs, MAX_JOBS);
    int status = record_report_check(batch->options);
    if (!status)
        status = open_jobs(batch, ret_jobs_fd);
    if (!status)
        status = cli_policy_make(
            batch->options, options_text(batch->options, OPTION_POLICY), &batch->policy, NULL);
    if (status)
        return status;
    batch->policy_json = json_loadb(batch->policy.text, batch->policy.length, 0, NULL);
    if (!batch->policy_json)
        return cli_fail(batch->options, "out of memory");
    /* First, because the engine prepares the common profile of the jobs meanwhile. */
    int opened = open_engine(batch, &error);
    if (batch->lines.blocking)
        status = survey_jobs(batch);
    if (!status)
        status = results_open(batch->options, output ? output : "-", &batch->results);
    if (status)
        return status;
    batch->progress.skipped = id_set_common(&batch->seen, &batch->results.done);
    return opened < 0 ? cli_fail_error(batch->options, &error) : 0;
}

/* Frees the jobs that have no row. */
static void drop_jobs(struct batch *batch) {
    list_for_each(node, &batch->order)
        job_free(container_of(node, struct job, of_order));
}

int cmd_batch(const struct options *options) {
    struct batch batch = {
        .options = options,
        .jobs_path = options->rest[0],
        .results = { .fd = -EBADF, .locked_fd = -EBADF },
        .ordered = options_has(options, OPTION_ORDERED),
    };
    auto_close int jobs_fd = -EBADF;

    list_init(&batch.retry);
    list_init(&batch.ended);
    list_init(&batch.order);
    progress_init(
        &batch.progress, !options_has(options, OPTION_NO_PROGRESS) && isatty(STDERR_FILENO));
    private_engine_start(options);
    int status = prepare_batch(&batch, &jobs_fd);
    if (!status) {
        batch.signal_fd = signals_catch();
        if (batch.signal_fd < 0)
            status = cli_fail(options, "cannot make a pipe: %s", strerror(-batch.signal_fd));
    }
    if (!status) {
        batch.progress.started_ns = clock_now_ns();
        run_loop(&batch);
        drop_jobs(&batch);
        int r = results_sync(&batch.results), caught = signals_caught();
        if (r < 0 && !batch.status) {
            progress_clear(&batch.progress);
            batch.status = cli_fail(
                options, "%s: cannot sync it to disk: %s", batch.results.path, strerror(-r));
        }
        progress_summary(&batch.progress, caught);
        if (options_has(options, OPTION_JSON)) {
            cli_notify();
            progress_json(&batch.progress, caught,
                batch.results.fd == STDOUT_FILENO ? STDERR_FILENO : STDOUT_FILENO);
        }
        if (batch.status || batch.stop)
            status = CLI_EXIT_ERROR;
        else if (caught)
            status = 128 + caught;
        else
            status = batch.progress.outcomes[ROLLBOX_OUTCOME_ERROR] || batch.n_torn ? 1 : 0;
    }
    rollbox_engine_close(batch.engine);
    results_close(&batch.results);
    id_set_done(&batch.seen);
    line_reader_done(&batch.lines);
    json_decref(batch.policy_json);
    cli_policy_done(&batch.policy);
    return status;
}
