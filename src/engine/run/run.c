/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs: one command in a box of its own.
 *
 * A run ends in one place, run_finish, when three facts are known: how the command ended (reported
 * by init, or decided by the engine when it killed the command), that none of its processes is
 * alive, and that its streams are at their ends. Init reports the end only after it has killed and
 * reaped all other processes. So a run that ends by itself need not wait until the kernel has
 * removed its namespaces.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/box/box.h"
#include "engine/box/cgroup_lease.h"
#include "engine/box/guest_error.h"
#include "engine/box/no_namespace.h"
#include "engine/checkpoint/dirty_tracking.h"
#include "engine/command/command.h"
#include "engine/command/output.h"
#include "engine/command/result.h"
#include "engine/command/stream.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/core/host_oom.h"
#include "engine/pool/profile.h"
#include "engine/pool/profile_launcher.h"
#include "engine/pool/python_zygote.h"
#include "engine/run/admission.h"
#include "engine/checkpoint/dump_job.h"
#include "engine/network/gateway.h"
#include "engine/core/log.h"
#include "engine/protocol.h"
#include "engine/pool/spares.h"
#include "engine/box/disk_upper.h"
#include "engine/run/hoards.h"
#include "engine/run/run.h"
#include "sys/proc.h"

/* The watcher tolerates so many processes over max_processes with isolation process, because the
 * count of the user's other processes may have changed. */
#define PROCESSES_SLACK 8
#define WATCH_LEAST_NS 2000000ll
#define MAX_WATCH_NS 200000000ll
#define MAX_LOOK_NS                                                                                \
    50000000ll /* a look that takes longer than this is not what a kill waits for                  \
                */

/* ---- the request ---- */

static const struct output_ops output_ops;

struct run *run_new(struct engine *engine) {
    struct run *run = calloc(1, sizeof *run);

    if (!run)
        return NULL;
    run->engine = engine;
    run->limits.received_ns = clock_now_ns();
    list_init(&run->in_queue);
    list_init(&run->of_session);
    list_init(&run->of_client);
    list_init(&run->waiters);
    list_add_tail(&engine->runs.all, &run->of_engine);
    run->terminal.input = -EBADF;
    run->end.counts = (struct run_counts){ UINT64_MAX, UINT64_MAX, UINT64_MAX, 0, NULL };
    for (size_t i = 0; i < ARRAY_SIZE(run->fds.stdio); i++)
        run->fds.stdio[i] = -EBADF;
    for (size_t i = 0; i < ARRAY_SIZE(run->outputs); i++) {
        list_init(&run->outputs[i].streams);
        run->outputs[i].fd = run->outputs[i].spool = run->fds.streams[i] = -EBADF;
        run->outputs[i].run = run;
        run->outputs[i].ops = &output_ops;
    }
    for (size_t i = 0; i < ARRAY_SIZE(run->fds.pipes); i++)
        run->fds.pipes[i].kept = -EBADF;
    return run;
}

void run_free(struct run *run) {
    loop_timer_clear(run->engine->loop, &run->limits.timer);
    loop_timer_clear(run->engine->loop, &run->watch.timer);
    for (size_t i = 0; i < ARRAY_SIZE(run->fds.stdio); i++)
        close_fd(&run->fds.stdio[i]);
    run->terminal.writer = terminal_input_free(run->terminal.writer);
    close_fd(&run->terminal.input);
    while (run->fds.n_extra)
        close(run->fds.extra[--run->fds.n_extra]);
    for (size_t i = 0; i < ARRAY_SIZE(run->fds.pipes); i++)
        close_fd(&run->fds.pipes[i].kept);
    for (size_t i = 0; i < ARRAY_SIZE(run->outputs); i++) {
        close_fd(&run->fds.streams[i]);
        output_done(&run->outputs[i]);
    }
    buf_done(&run->given.message);
    free(run->end.counts.network);
    list_for_each(node, &run->waiters) {
        list_remove(node);
        free(container_of(node, struct waiter, node));
    }
    admission_leave(run);
    list_remove(&run->of_session);
    admission_unhold(run);
    list_remove(&run->of_client);
    list_remove(&run->of_engine);
    free(run);
}

static bool is_operation(const struct run *run, const unsigned char *operation, size_t length) {
    return run->end.outcome != ROLLBOX_OUTCOME_ERROR && run->operation.length == length &&
           !memcmp(run->operation.id, operation, length);
}

/* One that has failed is none: a retry of it is meant to try again. */
struct run *run_find(struct engine *engine, const struct run *except,
    const unsigned char *operation, size_t length) {
    list_for_each(node, &engine->runs.all) {
        struct run *run = container_of(node, struct run, of_engine);

        if (run != except && is_operation(run, operation, length))
            return run;
    }
    return NULL;
}

int run_wait_for(struct client *client, uint64_t serial, struct run *run) {
    struct waiter *waiter = calloc(1, sizeof *waiter);

    if (!waiter)
        return -ENOMEM;
    waiter->client = client;
    waiter->serial = serial;
    list_add_tail(&run->waiters, &waiter->node);
    return 0;
}

void run_enqueue(struct run *run) {
    struct profile *base = run->profile;

    if (run->code.is_wanted && (run->profile = interpreter_profile(base)) != base) {
        base->n_runs--;
        base->n_running--;
        run->profile->n_runs++;
        run->profile->n_running++;
    }
    run->code.is_cold = run->code.is_wanted && run->profile == base;
    base->code.n_cold += run->code.is_cold;
    admission_join(run);
}

/* ---- the course ---- */

void run_finish(struct run *run) {
    struct engine *engine = run->engine;
    struct profile *profile = run->profile;
    struct box *box = run->box;

    if (run->state == RUN_ENDED)
        return;
    log_at(LOG_DEBUG, "run", ABOUT(.sandbox = run_sandbox(run).name, .run = run->init.serial),
        "ends: %s", rollbox_outcome_name(run->end.outcome));
    if (run->session) {
        run->session_ops->finish(run);
        return;
    }
    run->state = RUN_ENDED;
    for (size_t i = 0; i < ARRAY_SIZE(run->outputs); i++)
        output_drain(&run->outputs[i]);
    if (box) {
        uint64_t peak;

        if (box->slot && cgroup_slot_peak(box->slot->cgroup, &peak) == 0)
            run->end.peak_memory = MAX(run->end.peak_memory, peak);
        box_set_owner(box, NULL, NULL);
        run->box = NULL;
        if (box->state != BOX_DYING)
            box_kill(box);
    }
    admission_end(run);
    if (run->code.is_cold) {
        profile->code.n_cold--;
        interpreter_release_queue(profile->code.interpreter);
    }
    result_send(run);
    run_free(run);
    run_schedule(engine);
    if (!profile)
        return;
    profile->n_running--;
    if (profile->serves)
        profile = interpreter_base_of(profile);
    else if (profile->number)
        (void)profile_keep_spares(profile);
    profile_leave(profile);
}

static bool streams_ended(const struct run *run) {
    return run->outputs[0].fd < 0 && run->outputs[1].fd < 0;
}

void run_fail(struct run *run, enum rollbox_error_code code, int error_number, const char *stage,
    const char *message) {
    if (run->state == RUN_ENDED || run->end.outcome == ROLLBOX_OUTCOME_ERROR)
        return;
    run->end.outcome = ROLLBOX_OUTCOME_ERROR;
    error_set(&run->end.error, code, error_number, stage, "%s", message);
    if (run->session) {
        list_remove(&run->in_queue);
        if (run->state == RUN_QUEUED || !run->session_ops->kill(run))
            run_finish(run);
        return; /* else it ends when init says so */
    }
    if (!list_empty(&run->in_queue)) {
        admission_leave(run);
        run->engine->runs.n_queued--;
    }
    if (run->box && run->box->pidfd >= 0 && run->state == RUN_RUNNING) {
        run->end.killed = true;
        box_kill(run->box); /* the end comes with its death */
        return;
    }
    run_finish(run);
}

/* Past the limit a figure says only that it was passed: shared memory is taken for used as far as
 * it is mapped. */
static void note_memory(struct run *run, uint64_t memory) {
    run->end.peak_memory =
        MAX(run->end.peak_memory, MIN(memory, run->profile->policy->max_memory_bytes));
}

/* Before a kill: reads usage that cannot be read from dead processes. */
static void note_usage(struct run *run) {
    uint64_t memory, cpu;
    uint32_t processes;

    if (!run->box || run->watch.look_ns > MAX_LOOK_NS ||
        box_usage(run->box, &memory, &cpu, &processes) < 0)
        return;
    note_memory(run, memory);
    run->end.cpu_ns = MAX(run->end.cpu_ns, cpu);
    run->end.processes_peak = MAX(run->end.processes_peak, processes);
}

static int handle_started(struct run *run);

void run_kill(struct run *run, enum rollbox_outcome outcome) {
    if (run->end.killed || run->end.exited || run->state == RUN_ENDED)
        return;
    if (outcome == ROLLBOX_OUTCOME_ERROR) {
        run_fail(run, ROLLBOX_ERR_CANCELLED, ECANCELED, "run", "cancelled");
        return;
    }
    if (run->state != RUN_RUNNING) {
        run_fail(run, ROLLBOX_ERR_CANCELLED, ECANCELED, "run", "cancelled before the command ran");
        return;
    }
    if (!run->session)
        note_usage(run);
    run->end.killed = true;
    run->end.outcome = outcome;
    run->end.wall_ns = (uint64_t)(clock_now_ns() - run->limits.started_ns);
    loop_timer_clear(run->engine->loop, &run->limits.timer);
    loop_timer_clear(run->engine->loop, &run->watch.timer);
    if (run->session) {
        if (!run->session_ops->kill(run))
            run_finish(run);
        return;
    }
    if (run->box->pidfd >= 0)
        box_kill(run->box);
    else
        run->box->state = BOX_DYING; /* it is killed when the launcher has told its pid */
}

/* The same whether the end of the command, its output, or init's word of its start is seen first.
 */
static void end_overflow(struct run *run) {
    if (!run->end.killed && (run->end.exited || run->state == RUN_ENDED)) {
        if (run->end.outcome == ROLLBOX_OUTCOME_EXIT || run->end.outcome == ROLLBOX_OUTCOME_SIGNAL)
            run->end.outcome = ROLLBOX_OUTCOME_OUTPUT_LIMIT;
        return;
    }
    if (run->state == RUN_STARTING && handle_started(run) < 0)
        return;
    run_kill(run, ROLLBOX_OUTCOME_OUTPUT_LIMIT);
}

static const char broken[] =
    "the process that captured the sandbox was killed from outside while it made calls in a "
    "process of it, which would not have gone on as it was; what ran is ended, the files are kept";

void run_broken(struct run *run) {
    if (run->state != RUN_QUEUED && !run->end.killed && !run->end.exited)
        run_fail(run, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "run", broken);
}

static const char host_has_no_memory[] =
    "the host ran out of memory and its OOM killer ended the command; run fewer sandboxes at once";

void run_out_of_memory(struct run *run, bool of_host) {
    if (run->state == RUN_QUEUED || (run->state == RUN_STARTING && handle_started(run) < 0))
        return;
    if (!of_host)
        run_kill(run, ROLLBOX_OUTCOME_OUT_OF_MEMORY);
    else if (!run->end.killed && !run->end.exited)
        run_fail(run, ROLLBOX_ERR_HOST_OUT_OF_MEMORY, ENOMEM, "run", host_has_no_memory);
}

static void on_output_lost(struct output *output, int error_number) {
    struct run *run = output->run;
    static const char message[] = "the host has no memory left for the output of the command";
    enum rollbox_error_code code = error_code_of(error_number, ROLLBOX_ERR_RESOURCE_EXHAUSTED);

    if (run->state != RUN_ENDED) {
        run_fail(run, code, error_number, "result", message);
    } else if (run->end.outcome != ROLLBOX_OUTCOME_ERROR) {
        run->end.outcome = ROLLBOX_OUTCOME_ERROR;
        error_set(&run->end.error, code, error_number, "result", "%s", message);
    }
}

static void on_timeout(struct loop_timer *timer) {
    struct run *run = container_of(timer, struct run, limits.timer);

    run_kill(run, ROLLBOX_OUTCOME_TIMEOUT);
}

/* Without a memory cgroup: looks as often as the limit could have been reached since the last look,
 * never mind what the guest does. */
static void on_watch(struct loop_timer *timer) {
    struct run *run = container_of(timer, struct run, watch.timer);
    uint64_t limit = run->profile->policy->max_memory_bytes, memory, cpu;
    const int64_t begun = clock_now_ns();
    uint32_t processes;

    if (run->box && box_usage(run->box, &memory, &cpu, &processes) == 0) {
        note_memory(run, memory);
        run->end.cpu_ns = MAX(run->end.cpu_ns, cpu);
        run->end.processes_peak = MAX(run->end.processes_peak, processes);
        if (box_is_over(run->box, memory)) {
            run_kill(run, ROLLBOX_OUTCOME_OUT_OF_MEMORY);
            return;
        }
        /* Without a namespace of its own a sandbox's processes are counted with others', so the
         * kernel's limit may leave it more than its due. */
        if (run->box->private_dir && !run->box->slot &&
            processes > run->profile->policy->max_processes + PROCESSES_SLACK) {
            run->end.status = SIGKILL;
            run_kill(run, ROLLBOX_OUTCOME_SIGNAL);
            return;
        }
    }
    if (run->box && run->box->private_dir &&
        private_dir_is_over(run->box->private_dir, run->profile->policy->max_disk_bytes)) {
        run->end.status = SIGXFSZ; /* what a single file past the limit ends with */
        run_kill(run, ROLLBOX_OUTCOME_SIGNAL);
        return;
    }
    /* A look at many processes and mappings takes long. Other work gets at least the same time
     * before the next look. */
    const int64_t now = clock_now_ns();
    run->watch.look_ns = now - begun;
    uint64_t left = run->box && run->box->slot ? limit : limit - MIN(run->end.peak_memory, limit);
    loop_timer_set(run->engine->loop, &run->watch.timer,
        now + MAX(MAX(WATCH_LEAST_NS, run->watch.look_ns),
                  MIN(run_filling_ns(run->engine, left), MAX_WATCH_NS)),
        on_watch);
}

/* 0, or -ENOMEM: it has failed, and may be gone. */
static int handle_started(struct run *run) {
    struct loop *loop = run->engine->loop;
    int64_t now = clock_now_ns();

    run->state = RUN_RUNNING;
    run->limits.started_ns = now;
    if (run->session)
        loop_timer_clear(loop, &run->limits.timer); /* of its start */
    else
        box_expect_nothing(run->box);
    run->end.processes_peak = 1;
    hoards_watch(run->engine);
    if (run->session)
        return run->limits.timeout_ms > 0 ? loop_timer_set(loop, &run->limits.timer,
                                                now + run->limits.timeout_ms * 1000000, on_timeout)
                                          : 0;
    int r = run->limits.timeout_ms > 0 ? loop_timer_set(loop, &run->limits.timer,
                                             now + run->limits.timeout_ms * 1000000, on_timeout)
                                       : 0;
    if (r == 0)
        r = loop_timer_set(loop, &run->watch.timer,
            now + MAX(WATCH_LEAST_NS,
                      MIN(run_filling_ns(run->engine, run->profile->policy->max_memory_bytes),
                          MAX_WATCH_NS)),
            on_watch);
    if (r < 0)
        run_fail(run, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -r, "run", "the engine is out of memory");
    return r;
}

/* The word of an OOM kill may come after that of the end it has caused. */
/* By the group's own count where there is one: the host's counts the kills of all groups, so it is
 * used only for commands that were killed. Only for those is it known, too, which of several
 * commands lost a process. */
static enum oom_cause oom_cause(struct run *run, bool was_killed) {
    struct box *box = run_sandbox(run).box;

    if (!run->session && box && box->memory.met_limit)
        return OOM_LIMIT;
    if (box && box->slot && run->session)
        return was_killed ? run->session_ops->oom_cause(run) : OOM_NONE;
    if (box && box->slot)
        return was_killed || cgroup_lease_oom_told(box->slot) ? cgroup_lease_oom_cause(box->slot)
                                                              : OOM_NONE;
    /* A session may have run for hours: kills of that time do not concern it. */
    if (run->session)
        return was_killed && !run->end.was_sent_kill && engine_oom_lately(run->engine) ? OOM_HOST
                                                                                       : OOM_NONE;
    return was_killed && engine_oom_kills(run->engine, true) > run->watch.oom_kills_before
               ? OOM_HOST
               : OOM_NONE;
}

static void handle_exited(struct run *run, const struct guest_record *record) {
    run->end.exited = true;
    run->end.wall_ns = record->wall_ns;
    run->end.cpu_ns = MAX(run->end.cpu_ns, record->cpu_ns);
    run->end.counts.read_bytes = record->read_bytes;
    run->end.counts.written_bytes = record->written_bytes;
    run->end.peak_memory = MAX(run->end.peak_memory, record->max_rss_bytes);
    /* A process that was killed for a limit of its files ends by the signal that says so. */
    if (!run->end.killed || run->end.outcome != ROLLBOX_OUTCOME_SIGNAL)
        run->end.status = (int)record->value;
    if (run->end.killed || run->end.outcome == ROLLBOX_OUTCOME_ERROR)
        return;
    run->end.outcome = WIFSIGNALED(run->end.status) ? ROLLBOX_OUTCOME_SIGNAL : ROLLBOX_OUTCOME_EXIT;
    if (run->session && run->session_ops->is_broken(run)) {
        run->end.outcome = ROLLBOX_OUTCOME_ERROR;
        error_set(&run->end.error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "run", "%s", broken);
        return;
    }
    enum oom_cause cause =
        oom_cause(run, WIFSIGNALED(run->end.status) && WTERMSIG(run->end.status) == SIGKILL);
    if (cause == OOM_LIMIT)
        run->end.outcome = ROLLBOX_OUTCOME_OUT_OF_MEMORY;
    if (cause != OOM_HOST)
        return;
    run->end.outcome = ROLLBOX_OUTCOME_ERROR;
    error_set(
        &run->end.error, ROLLBOX_ERR_HOST_OUT_OF_MEMORY, ENOMEM, "run", "%s", host_has_no_memory);
}

/* Of the request as init got it. */
static const char *first_text(const struct run *run, uint32_t tag) {
    struct wire_field field;
    size_t position = 0;

    if (run->given.message.length < sizeof(struct wire_header))
        return NULL;
    while (wire_next(run->given.message.data + sizeof(struct wire_header),
               run->given.message.length - sizeof(struct wire_header), &position, &field) > 0)
        if (field.tag == tag)
            return wire_text(&field);
    return NULL;
}

/* Also called (with NULL) when a stream has come to its end. */
void run_answer(struct run *run, const struct guest_record *record) {
    struct rollbox_error error;

    if (record && record->kind == GUEST_STARTED && run->state == RUN_STARTING) {
        if (run->code.is_wanted && run->profile->serves)
            interpreter_started(run->profile, record);
        (void)handle_started(run);
        return; /* its streams may be at their ends, but it is not */
    } else if (record && record->kind == GUEST_EXEC_FAILED) {
        guest_error_to_text(
            run->profile, record, first_text(run, GUEST_ARG), first_text(run, GUEST_CWD), &error);
        run_fail(run, error.code, error.error_number, error.stage, error.message);
        return;
    } else if (record && record->kind == GUEST_FROZEN) {
        if (run->box)
            disk_upper_stands(run->box, (int)record->error);
        return;
    } else if (record && record->kind == GUEST_EXITED) {
        handle_exited(run, record);
    }
    if (run->end.exited && (run->session ? record != NULL : !run->end.killed && streams_ended(run)))
        run_finish(run);
}

static void on_output_ended(struct output *output) {
    if (output->run->state == RUN_RUNNING)
        run_answer(output->run, NULL);
}

static void on_output_overflowed(struct output *output) {
    end_overflow(output->run);
}

static const struct output_ops output_ops = {
    .ended = on_output_ended, .overflowed = on_output_overflowed, .lost = on_output_lost
};

static void waiter_free(struct waiter *waiter) {
    list_remove(&waiter->node);
    free(waiter);
}

static void forget_waiter(struct run *run, const struct client *client) {
    list_for_each(node, &run->waiters) {
        struct waiter *waiter = container_of(node, struct waiter, node);

        if (waiter->client == client)
            waiter_free(waiter);
    }
}

void run_abandon(struct run *run) {
    /* From here on nobody may find the run by its client, so no pointer to that may stay in it. */
    forget_waiter(run, run->client);
    struct waiter *heir =
        list_empty(&run->waiters) ? NULL : container_of(run->waiters.next, struct waiter, node);
    list_remove(&run->of_client);
    if (heir) { /* another client waits for the same operation: it is theirs now */
        admission_move(run, heir->client);
        run->serial = heir->serial;
        list_add_tail(&heir->client->runs, &run->of_client);
        waiter_free(heir);
        return;
    }
    admission_move(run, NULL);
    if (!run->session || !run->given.is_detached)
        run_fail(run, ROLLBOX_ERR_CANCELLED, ECANCELED, "run", "the client is gone");
}

void run_forget_client(struct client *client) {
    list_for_each(node, &client->engine->runs.all)
        forget_waiter(container_of(node, struct run, of_engine), client);
}

/* A client that waits for another's run stops waiting and leaves the run alone. False if it does
 * not wait. */
static bool cancel_waiter(struct run *run, const struct client *client, uint64_t serial) {
    list_for_each(node, &run->waiters) {
        struct waiter *waiter = container_of(node, struct waiter, node);

        if (waiter->client == client && waiter->serial == serial) {
            struct rollbox_error error;

            error_set(&error, ROLLBOX_ERR_CANCELLED, ECANCELED, "run", "cancelled");
            result_send_error(waiter->client, serial, &error);
            waiter_free(waiter);
            return true;
        }
    }
    return false;
}

void run_cancel(struct client *client, uint64_t serial, enum rollbox_outcome outcome) {
    list_for_each(node, &client->runs) {
        struct run *run = container_of(node, struct run, of_client);

        if (run->serial != serial)
            continue;
        if (outcome == ROLLBOX_OUTCOME_OUTPUT_LIMIT)
            end_overflow(run); /* of streams that the client reads itself */
        else
            run_kill(run, outcome);
        return;
    }
    list_for_each(node, &client->engine->runs.all)
        if (cancel_waiter(container_of(node, struct run, of_engine), client, serial))
            return;
}

static void on_box_dead(void *owner, struct box *box) {
    struct run *run = owner;

    (void)box;
    if (!run->end.exited && !run->end.killed && run->end.outcome != ROLLBOX_OUTCOME_ERROR) {
        enum oom_cause cause = oom_cause(run, true);

        run->end.outcome = ROLLBOX_OUTCOME_ERROR;
        if (cause != OOM_NONE)
            error_set(&run->end.error, ROLLBOX_ERR_HOST_OUT_OF_MEMORY, ENOMEM, "run",
                "the sandbox's init was killed because memory was short; run fewer sandboxes at "
                "once");
        else
            error_set(&run->end.error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "run",
                "the sandbox's init was killed from outside");
        if (cause == OOM_LIMIT && run->state == RUN_RUNNING)
            run->end.outcome = ROLLBOX_OUTCOME_OUT_OF_MEMORY;
    }
    run_finish(run);
}

static void on_box_failed(void *owner, struct box *box, const struct guest_record *record) {
    struct run *run = owner;
    struct rollbox_error error;

    run->box = NULL;
    guest_error_to_text(box->profile, record, NULL, NULL, &error);
    run_fail(run, error.code, error.error_number, error.stage, error.message);
}

static void on_box_report(
    void *owner, struct box *box, const struct guest_record *record, int *fds, size_t n_fds) {
    (void)box;
    (void)fds;
    (void)n_fds;
    run_answer(owner, record);
}

static void on_box_limit(void *owner, struct box *box, enum box_limit limit) {
    struct run *run = owner;

    (void)box;
    if (limit == BOX_LIMIT_MEMORY || limit == BOX_LIMIT_HOST_MEMORY) {
        run_out_of_memory(run, limit == BOX_LIMIT_HOST_MEMORY);
        return;
    }
    run->end.status = SIGXFSZ; /* what a single file past the limit ends with */
    run_kill(run, ROLLBOX_OUTCOME_SIGNAL);
}

/* Makes the sandbox of the run, whose box is ready, known to the network gateway. */
static int use_gateway(struct box *box, struct run *run, struct rollbox_error *error) {
    int r = gateway_use(box, &(struct gateway_user){ 0 }, error);

    if (r > 0)
        gateway_tally_begin(run, box);
    return MIN(r, 0);
}

static void on_box_ready(void *owner, struct box *box) {
    if (use_gateway(box, owner, NULL) < 0)
        box_fail(box, &gateway_failure);
}

/* A command has a box for itself. */
static const struct box_owner_ops box_ops = { .ready = on_box_ready,
    .report = on_box_report,
    .limit = on_box_limit,
    .failed = on_box_failed,
    .dead = on_box_dead };

/* ---- starting ---- */

int run_open_streams(struct run *run) {
    if (run->fds.stdio[1] >= 0)
        return 0; /* the client's own */
    if (run->session && run->outputs[0].fd >= 0)
        return 0; /* tried before */
    if (run->fds.stdio[0] < 0 &&
        (run->fds.stdio[0] = fcntl(run->engine->null_fd, F_DUPFD_CLOEXEC, 3)) < 0)
        return -errno;
    for (int i = 0; i < 2; i++) {
        int r = output_open(&run->outputs[i], run, &run->fds.stdio[i + 1]);
        if (r < 0)
            return r;
    }
    return 0;
}

static void close_streams_again(struct run *run) {
    for (int i = 0; i < 2; i++) {
        if (run->outputs[i].fd < 0)
            continue;
        output_done(&run->outputs[i]);
        close_fd(&run->fds.stdio[i + 1]);
    }
}

static int hand_over(struct run *run, const struct box *box) {
    auto_buf struct buf fixed = BUF_INIT;
    bool restored = run->code.is_wanted && run->profile->serves,
         is_fixed = run->code.is_wanted && interpreter_is_fixed(run->profile);
    auto_close int code = restored || is_fixed ? interpreter_code(&run->given.message) : -EBADF;
    const int fds[5] = { run->fds.stdio[0], run->fds.stdio[1], run->fds.stdio[2], code,
        run->engine->null_fd };

    if ((restored || is_fixed) && code < 0)
        return code;
    int r = is_fixed ? interpreter_request(&run->given.message, &fixed) : 0;
    if (r < 0)
        return r;
    struct buf *request = is_fixed ? &fixed : &run->given.message;
    ((struct wire_header *)(void *)request->data)->flags =
        GUEST_EXEC_FINAL | (restored ? GUEST_EXEC_RESTORED : 0) |
        (restored && is_fixed ? GUEST_EXEC_ALIKE : 0);
    const size_t n_fds = restored ? 4 : 3;
    return wire_send_patiently(box->socket, request, fds, is_fixed ? 5 : n_fds);
}

/* The most processes that the running commands with isolation process may have. Each command has a
 * box of its own. */
static uint64_t other_processes(const struct engine *engine) {
    uint64_t n = 0;

    list_for_each(node, &engine->runs.all) {
        const struct run *run = container_of(node, struct run, of_engine);

        if (!run->session && run->state == RUN_RUNNING && run->box && run->box->private_dir)
            n += run->profile->policy->max_processes;
    }
    return n;
}

static int start_run(struct run *run, struct rollbox_error *error) {
    struct box *box = spares_take(run->profile, false);
    bool is_spare = box;
    uint64_t processes;
    int r = run_open_streams(run);

    if (r < 0) {
        if (box)
            spares_add(box);
        close_streams_again(run);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "setup",
            "the pipes of the command cannot be made: %s", strerror(-r));
    }
    if (!box)
        r = gateway_prepare(run->engine, run->profile->policy, error);
    if (!box && r == 0)
        r = profile_new_box(run->profile, &(struct box_config){ 0 }, NULL, NULL, &box, error);
    if (r < 0) {
        close_streams_again(run);
        return r;
    }
    run->state = RUN_STARTING;
    run->limits.begun_ns = clock_now_ns();
    run->watch.oom_kills_before = engine_oom_kills(run->engine, false);
    run->box = box;
    if (box->state == BOX_READY && (r = use_gateway(box, run, error)) < 0) {
        run->box = NULL;
        box_kill(box);
        close_streams_again(run);
        return r;
    }
    box_set_owner(box, &box_ops, run);
    box_expect_start(box);
    if (box->private_dir && (processes = process_limit(run->profile, other_processes(run->engine))))
        wire_add_u64(&run->given.message, GUEST_PROCESSES, processes);
    r = hand_over(run, box);
    /* A new one that has ended already has said why: that is in its socket yet. */
    if (!is_spare && (r == -EPIPE || r == -ECONNRESET))
        r = 0;
    if (r < 0) {
        box_set_owner(box, NULL, NULL);
        run->box = NULL;
        box_kill(box);
        close_streams_again(run);
        if (is_spare && (r == -EPIPE || r == -ECONNRESET))
            return start_run(
                run, error); /* it has died and we have not heard yet; there are not many */
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "setup",
            "the command cannot be handed to the sandbox: %s", strerror(-r));
    }
    for (size_t i = 0; i < ARRAY_SIZE(run->fds.stdio); i++)
        close_fd(&run->fds.stdio[i]);
    admission_handed_over(run);
    return 0;
}

/* Starts queued runs, as far as memory allows: the sum of their limits stays within the budget, or
 * one runs alone. When the host is out of something, spares go and what runs already is waited for;
 * only a run that fails alone fails. */
static void start_queued(struct engine *engine) {
    struct client *client;

    while (!engine->stopping && (client = admission_next(engine))) {
        struct run *run = admission_first(client);
        struct rollbox_error error;

        if (!run->profile->n_spares && !tracking_make_room(engine)) {
            profile_drop_spares(engine);
            return;
        }
        if (start_run(run, &error) < 0) {
            if (error.code == ROLLBOX_ERR_RESOURCE_EXHAUSTED && engine->boxes.n) {
                profile_drop_spares(engine);
                if (engine->boxes.n)
                    return; /* the next box to be freed schedules again */
                continue;
            }
            run_fail(run, error.code, error.error_number, error.stage, error.message);
            continue;
        }
        admission_start(run);
        (void)profile_keep_spares(run->profile);
    }
}

static void on_schedule(struct loop_task *task) {
    start_queued(container_of(task, struct engine, runs.schedule));
}

void run_schedule(struct engine *engine) {
    if (!list_empty(&engine->runs.turns))
        loop_defer(engine->loop, &engine->runs.schedule, on_schedule);
}

void run_release_code(struct engine *engine, struct list *in_queue) {
    run_enqueue(container_of(in_queue, struct run, in_queue));
    run_schedule(engine);
}
