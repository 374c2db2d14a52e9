/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions in JSON. Bytes that guests have chosen (names of programs, arguments) need not be text.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/utf8.h"
#include "engine/box/box.h"
#include "engine/box/profile.h"
#include "engine/command/command.h"
#include "engine/command/run_text.h"
#include "engine/core/context.h"
#include "engine/files/layer_chain.h"
#include "engine/hibernate/hibernate.h"
#include "engine/box/disk_upper.h"
#include "engine/ops/auto_snapshot.h"
#include "engine/ops/peers.h"
#include "engine/ops/publish.h"
#include "engine/server/status_json.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "engine/snapshot/layer.h"
#include "sys/proc.h"

#define MAX_LISTED 4096
#define MAX_LINE 4096 /* bytes of a command line */

static const char *state_name(const struct session *session) {
    if (session->sleep && session->state != SESSION_CLOSING)
        return "asleep";
    switch (session->state) {
    case SESSION_NEW:
        return session->box || !list_empty(&session->queue.ops)
                   ? "starting"
                   : "idle"; /* its box is made when it is needed again */
    case SESSION_LIVE:
        return session->commands.n_runs ? "running" : "idle";
    case SESSION_PAUSED:
        return "paused";
    case SESSION_CLOSING:
        return "closing";
    }
    return "?";
}

static void operation_text(const unsigned char *operation, size_t length, struct buf *to) {
    size_t prefix = MIN(length, sizeof((struct session *)0)->number);

    json_add_string(to, operation + prefix, length - prefix);
}

/* Restored commands are runs again, which have not been resumed yet. */
static bool restores_runs(const struct session *session) {
    list_for_each(node, &session->commands.runs) {
        const struct run *run = container_of(node, struct run, of_session);

        if (run->init.main_pid && run->state == RUN_STARTING)
            return true;
    }
    return false;
}

/* "execs": [...]. */
static void add_execs(const struct session *session, struct buf *to) {
    const char *between = "";

    buf_add_text(to, "\"execs\": [");

    if (sleep_of(session) && !restores_runs(session))
        hibernate_execs(session, to, &between);
    list_for_each(node, &session->commands.runs) {
        const struct run *run = container_of(node, struct run, of_session);

        buf_printf(to, "%s{\"id\": ", between);
        operation_text(run->operation.id, run->operation.length, to);
        auto_free char *command = run_describe(run);

        buf_add_text(to, ", \"command\": ");
        json_add_string(to, command, command ? strlen(command) : 0);
        const char *terminal = run->terminal.is_wanted ? "true" : "false";
        buf_printf(to,
            ", \"state\": \"%s\", \"terminal\": %s, \"detached\": %s, "
            "\"stdout_bytes\": %llu, \"stderr_bytes\": %llu, \"output_bytes\": %llu}",
            run->state == RUN_RUNNING ? "running" : "starting", terminal,
            run->given.is_detached ? "true" : "false", (unsigned long long)run->outputs[0].total,
            (unsigned long long)run->outputs[1].total,
            (unsigned long long)(run->outputs[0].total + run->outputs[1].total));
        between = ", ";
    }
    list_for_each(node, &session->commands.ended) {
        const struct ended *ended = container_of(node, struct ended, node);

        buf_printf(to, "%s{\"id\": ", between);
        operation_text(ended->operation, ended->operation_length, to);
        buf_add_text(to, ", \"state\": \"ended\", \"command\": ");
        json_add_string(to, ended->command, ended->command ? strlen(ended->command) : 0);
        buf_printf(
            to, ", \"outcome\": \"%s\", \"exit_code\": ", rollbox_outcome_name(ended->outcome));
        if (ended->outcome == ROLLBOX_OUTCOME_EXIT)
            buf_printf(to, "%d}", WEXITSTATUS(ended->status));
        else
            buf_add_text(to, "null}");
        between = ", ";
    }
    buf_add_text(to, "]");
}

void session_text_execs(const struct session *session, struct buf *to) {
    buf_add_text(to, "{");
    add_execs(session, to);
    buf_add_text(to, "}");
}

static const char *snapshot_of(const struct session *session) {
    return session->sleep ? session->sleep->snapshot
                          : snapshot_nearest_visible(session->files.at)->id;
}

static void add_brief(const struct session *session, struct buf *to) {
    buf_printf(to,
        "{\"name\": \"%s\", \"state\": \"%s\", \"created\": %.3f, \"snapshot\": \"%s\", "
        "\"detached\": %s, \"commands\": %u, \"running\": %u, \"idle_s\": %.3f",
        session->name, state_name(session), (double)session->origin.made_ns / 1e9,
        snapshot_of(session), session->client ? "false" : "true",
        session->commands.n_runs + session->commands.n_ended, session->commands.n_runs,
        session->commands.n_runs ? 0.0
                                 : (double)(clock_now_ns() - session->timers.called_ns) / 1e9);
}

/* The size of its files: those of its snapshots, and its changes since. False if the latter
 * is not known now. */
static bool disk_usage(const struct session *session, uint64_t *ret_bytes) {
    const struct box *box = session->box;
    uint64_t entries = 0;
    struct statfs disk;

    snapshot_usage(session->files.base, ret_bytes, &entries);
    if (!box)
        return true;
    if (box->upper) {
        *ret_bytes += box->upper->bytes; /* as of the last look */
        return true;
    }
    if (box->disk < 0 || fstatfs(box->disk, &disk) < 0)
        return false;
    *ret_bytes += (uint64_t)(disk.f_blocks - disk.f_bfree) * (uint64_t)disk.f_bsize;
    return true;
}

struct use {
    bool has_memory, has_disk; /* the rest comes with the memory */
    uint64_t memory, memory_peak, cpu_ns, disk;
    uint32_t processes;
};

static struct use use_of(struct session *session) {
    struct use use = { 0 };
    struct box *box = session->box;
    uint64_t now;

    if (session->sleep && session->state != SESSION_CLOSING) {
        use.has_memory = use.has_disk = true;
        use.disk = session->sleep->disk_bytes;
        return use;
    }
    use.has_disk = disk_usage(session, &use.disk);
    use.has_memory = !box || box_usage(box, &use.memory, &use.cpu_ns, &use.processes) == 0;
    use.memory_peak = use.memory;
    /* Of a group box_usage tells the peak; without one there is only what is used now. */
    if (box && box->slot && use.has_memory && cgroup_slot_memory_now(box->slot->cgroup, &now) == 0)
        use.memory = MIN(now + box->sockets.bytes, use.memory_peak);
    return use;
}

static void add_number(struct buf *to, const char *key, bool is_known, uint64_t number) {
    if (is_known)
        buf_printf(to, ", \"%s\": %llu", key, (unsigned long long)number);
    else
        buf_printf(to, ", \"%s\": null", key);
}

void session_text_stats(struct session *session, struct buf *to) {
    const struct policy *policy = session->profile->policy;
    const struct use use = use_of(session);
    const bool has_peak = use.has_memory && session->box && session->box->slot;

    add_brief(session, to);
    buf_printf(to, ", \"age_s\": %.3f", (double)(clock_real_ns() - session->origin.made_ns) / 1e9);
    add_number(to, "memory_bytes", use.has_memory, use.memory);
    add_number(to, "peak_memory_bytes", has_peak, use.memory_peak);
    add_number(to, "max_memory_bytes", true, policy->max_memory_bytes);
    add_number(to, "disk_bytes", use.has_disk, use.disk);
    add_number(to, "max_disk_bytes", true, policy->max_disk_bytes);
    add_number(to, "processes", use.has_memory, use.processes);
    add_number(to, "max_processes", true, policy->max_processes);
    if (use.has_memory)
        buf_printf(to, ", \"cpu_ms\": %.3f", (double)use.cpu_ns / 1e6);
    else
        buf_add_text(to, ", \"cpu_ms\": null");
    buf_add_text(to, "}");
}

void session_text_all(struct engine *engine, bool has_stats, struct buf *to) {
    const char *between = "";

    buf_add_text(to, "[");
    list_for_each(node, &engine->sessions.all) {
        struct session *session = container_of(node, struct session, node);

        if (session->state == SESSION_CLOSING || session->is_dry_run)
            continue;
        buf_add_text(to, between);
        between = ", ";
        if (has_stats) {
            session_text_stats(session, to);
        } else {
            add_brief(session, to);
            buf_add_text(to, "}");
        }
    }
    buf_add_text(to, "]");
}

void session_text(struct session *session, struct buf *to) {
    const struct use use = use_of(session);
    uint64_t bytes = 0;

    (void)disk_usage(session, &bytes);
    buf_printf(to,
        "{\"name\": \"%s\", \"state\": \"%s\", \"created\": %.3f, \"snapshot\": \"%s\", "
        "\"detached\": %s, \"memory_bytes\": %llu, \"disk_bytes\": %llu, \"max_disk_bytes\": %llu, "
        "\"processes\": %u, \"idle_s\": %.3f, ",
        session->name, state_name(session), (double)session->origin.made_ns / 1e9,
        snapshot_of(session), session->client ? "false" : "true", (unsigned long long)use.memory,
        (unsigned long long)bytes, (unsigned long long)session->profile->policy->max_disk_bytes,
        use.processes,
        session->commands.n_runs ? 0.0
                                 : (double)(clock_now_ns() - session->timers.called_ns) / 1e9);
    if (session->sleep)
        buf_printf(to,
            "\"asleep\": {\"bytes\": %llu, \"written_bytes\": %llu, \"processes\": %u, "
            "\"memory_bytes\": %llu}, ",
            (unsigned long long)session->sleep->disk_bytes,
            (unsigned long long)session->sleep->written_bytes, session->sleep->processes,
            (unsigned long long)session->sleep->memory_bytes);
    else
        buf_add_text(to, "\"asleep\": null, ");
    buf_add_text(to, "\"policy\": ");
    buf_add(to, session->profile->key.text,
        session->profile->key.policy_length); /* as it was given, and found to be JSON */
    if (session->profile->policy->have_seed)
        buf_printf(to, ", \"random_seed\": %llu", (unsigned long long)session->origin.seed);
    else
        buf_add_text(to, ", \"random_seed\": null");
    if (session->origin.clone_id >= 0)
        buf_printf(to, ", \"clone_id\": %lld", (long long)session->origin.clone_id);
    else
        buf_add_text(to, ", \"clone_id\": null");
    buf_add_text(to, ", \"auto_snapshot\": ");
    auto_snapshot_text(session, to);
    buf_add_text(to, ", \"record\": ");
    if (!session_events_record_text(session, to))
        buf_add_text(to, "null");
    buf_add_text(to, ", \"published\": ");
    publish_text(session, 0, to);
    buf_add_text(to, ", \"private_network\": ");
    peers_text(session, to);
    buf_printf(to, ", \"pid\": %d, \"isolation\": %s, ", session->box ? (int)session->box->pid : 0,
        session->profile->isolation);
    add_execs(session, to);
    buf_add_text(to, "}");
}

/* ---- processes ---- */

static const char *text_after(const struct buf *text, const char *key) {
    const char *found = text->data ? strstr(text->data, key) : NULL;

    return found ? found + strlen(key) : NULL;
}

/* The last number of a line: that of the innermost namespace. */
static long last_number(const char *line) {
    long number = 0;

    for (char *end; line && *line && *line != '\n'; line = end) {
        number = strtol(line, &end, 10);
        if (end == line)
            break;
    }
    return number;
}

/* One that a walk from init has found, parents first. */
struct found {
    pid_t pid, inner;      /* on the host, in the sandbox */
    pid_t parent;          /* in the sandbox */
    const struct run *run; /* whose tree it is in; NULL: of none that runs */
};

static const struct run *run_of(
    const struct session *session, pid_t inner, const struct run *parents) {
    list_for_each(node, &session->commands.runs) {
        const struct run *run = container_of(node, struct run, of_session);

        if (run->init.main_pid == inner && inner)
            return run;
    }
    return parents;
}

static void add_process(
    const struct session *session, struct found *found, struct buf *to, const char **between) {
    pid_t pid = found->pid;
    auto_buf struct buf status = BUF_INIT;
    auto_buf struct buf stat = BUF_INIT;
    auto_buf struct buf line = BUF_INIT;
    unsigned long long user = 0, system = 0;
    char path[64], state = '?';

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    if (fd_read_file(path, 1 << 16, &status) < 0)
        return;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (fd_read_file(path, 1 << 16, &stat) < 0)
        return;
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    (void)fd_read_file(path, 1 << 16, &line);
    line.length = MIN(line.length, (size_t)MAX_LINE);
    buf_add(&status, "", 1);
    buf_add(&stat, "", 1);
    if (buf_failed(&status) || buf_failed(&stat))
        return;
    const char *rest = strrchr(stat.data, ')');
    if (!rest || sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &state,
                     &user, &system) != 3)
        return;
    const char *resident = text_after(&status, "\nVmRSS:");
    const char *name = text_after(&status, "Name:\t");
    found->inner = (pid_t)last_number(text_after(&status, "\nNSpid:\t"));
    found->run = run_of(session, found->inner, found->run);
    buf_printf(to, "%s{\"pid\": %d, \"parent\": %d, \"host_pid\": %d, \"exec\": ", *between,
        (int)found->inner, (int)found->parent, (int)pid);
    if (found->run)
        operation_text(found->run->operation.id, found->run->operation.length, to);
    else
        buf_add_text(to, "null");
    buf_printf(to,
        ", \"state\": \"%c\", \"cpu_ms\": %llu, \"memory_bytes\": %llu, \"command\": ", state,
        (user + system) * 1000 / (unsigned long long)sysconf(_SC_CLK_TCK),
        resident ? strtoull(resident, NULL, 10) * 1024 : 0ull);
    for (size_t i = 0; i + 1 < line.length; i++)
        if (!line.data[i])
            line.data[i] = ' ';
    if (line.length)
        json_add_string(to, line.data, line.data[line.length - 1] ? line.length : line.length - 1);
    else if (name)
        json_add_string(to, name, strcspn(name, "\n"));
    else
        json_add_string(to, "?", 1);
    buf_add_text(to, "}");
    *between = ", ";
}

void session_text_processes(struct session *session, struct buf *to) {
    auto_free struct found *found = calloc(MAX_LISTED, sizeof *found);
    auto_free pid_t *children = calloc(MAX_LISTED, sizeof *children);
    struct found init = { .inner = 1 };
    const char *between = "";
    size_t n = 0;

    if (!found || !children) {
        to->failed = true;
        return;
    }
    buf_add_text(to, "{\"processes\": [");
    if (session->box)
        init.pid = session->box->pid;
    for (size_t i = 0; init.pid > 0 && i <= n; i++) {
        struct found *parent = i ? &found[i - 1] : &init;

        if (i)
            add_process(session, parent, to, &between);
        ssize_t more = proc_children(parent->pid, children, MAX_LISTED - n);
        to->failed |= more < 0;
        for (ssize_t k = 0; k < more; k++)
            found[n++] =
                (struct found){ .pid = children[k], .parent = parent->inner, .run = parent->run };
    }
    buf_add_text(to, "]}");
}
