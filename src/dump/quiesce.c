/* SPDX-License-Identifier: Apache-2.0 */
/* The dump worker's side of its protocol with the init of a sandbox with random_seed or time_start
 * (guest/quiesce.h). Such an init answers system calls and keeps virtual clocks, so the worker asks
 * it to hold still, for the state of its waits and timers, and to resume. */
#include "guest/quiesce.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "dump/internal.h"
#include "dump/syscall_restart.h"
#include "sys/syscalls.h"

#define MAX_VDSO 65536u
#define LEAD_NS 10000 /* grows with each try */
#define LEAD_LIMIT_NS 100000000

static bool is_wanted(const struct dump *c) {
    return c->options->still > 0;
}

static int receive_bytes(struct dump *c, void *to, size_t length) {
    ssize_t n;

    while ((n = recv(c->options->still, to, length, 0)) < 0 && errno == EINTR)
        ;
    if (n == (ssize_t)length)
        return 0;
    return n < 0 ? -errno : -EPIPE;
}

/* The answer, 0 or more, or -errno. */
static int send_message(struct dump *c, const struct quiesce_message *message) {
    int32_t word;
    ssize_t n = send(c->options->still, message, sizeof *message, MSG_NOSIGNAL);
    int r = n < 0 ? -errno : receive_bytes(c, &word, sizeof word);

    r = r < 0 ? r : word;
    if (r < 0) {
        c->current = NULL;
        return c->error->code
                   ? r
                   : dump_refuse(c, -r, "the sandbox's init does not answer: %s", strerror(-r));
    }
    return r;
}

static int say_plain(struct dump *c, enum quiesce_command order) {
    struct quiesce_message message = { .order = order };

    return is_wanted(c) ? send_message(c, &message) : 0;
}

int quiesce_hold(struct dump *c) {
    c->holds = is_wanted(c);
    return say_plain(c, QUIESCE_HOLD);
}

static uint64_t signals_among(struct dump *c, struct image_range pending) {
    uint64_t signals = 0;

    for (uint32_t i = 0; i < pending.n; i++) {
        int32_t number;

        memcpy(&number, dump_entry(&c->pending, pending.first + i, struct image_pending)->info,
            sizeof number);
        signals |= 1ull << (number - 1);
    }
    return signals;
}

/* A thread handles a pending signal before it continues, and the handler ends its system call, in
 * this sandbox and after a restore (guest/restore/process.c, ending_signals). */
static bool is_ended(struct dump *c, const struct image_process *p, uint32_t index) {
    const struct image_thread *thread =
        dump_entry(&c->threads, p->threads.first + index, struct image_thread);
    uint64_t shared = signals_among(c, p->pending), handlers = 0;

    if (index)
        shared &= dump_entry(&c->threads, p->threads.first, struct image_thread)->signal_mask;
    for (uint32_t i = 0; i < p->actions.n && thread->interruption != IMAGE_GOES_ON; i++) {
        const struct image_action *action =
            dump_entry(&c->actions, p->actions.first + i, struct image_action);

        if (action->handler > (uintptr_t)SIG_IGN &&
            (thread->interruption == IMAGE_ENDS || !(action->flags & SA_RESTART)))
            handlers |= 1ull << (action->number - 1);
    }
    return (signals_among(c, thread->pending) | shared) & ~thread->signal_mask & handlers;
}

static bool is_of_ended(struct dump *c, uint32_t tid) {
    for (size_t i = 0; i < dump_count(&c->processes, struct image_process); i++) {
        const struct image_process *p = dump_entry(&c->processes, i, struct image_process);

        for (uint32_t k = 0; k < p->threads.n; k++)
            if (dump_entry(&c->threads, p->threads.first + k, struct image_thread)->tid == tid)
                return is_ended(c, p, k);
    }
    return false;
}

/* The thread's number inside the sandbox. A dumped thread has it already; others are looked up. */
static uint32_t inner_of(struct dump *c, struct task *task) {
    auto_buf struct buf status = BUF_INIT;
    char path[48];

    if (!task->inner_tid && task->process) {
        snprintf(path, sizeof path, "task/%d/status", (int)task->trace.tid);
        if (dump_read(c, task->process, path, &status) == 0)
            task->inner_tid = dump_innermost(status.data, "\nNSpid:");
    }
    return task->inner_tid;
}

static struct task *task_of(struct dump *c, uint32_t tid) {
    for (size_t i = 0; i < c->n_tasks; i++)
        if (!c->tasks[i].is_gone && inner_of(c, &c->tasks[i]) == tid)
            return &c->tasks[i];
    return NULL;
}

static bool has_arguments(const struct image_registers *r, const struct image_wait *wait) {
    const uint64_t arguments[] = { r->rdi, r->rsi, r->rdx, r->r10, r->r8, r->r9 };

    return !memcmp(arguments, wait->arguments, sizeof arguments);
}

/* The thread continues the remainder of a wait. It was interrupted there, or is about to resume. */
static bool is_restarted(const struct trace *trace, const struct image_wait *wait) {
    return syscall_restart_is(trace->registers.rax) && has_arguments(&trace->registers, wait);
}

/* The thread was in that wait, or is about to begin it again. If another thread has yet to make its
 * call, or to ask for it (-ERESTARTSYS), its previous wait has ended. Init learns that only from
 * the new request. */
static bool was_in(const struct trace *trace, const struct image_wait *wait, bool is_again) {
    const bool makes_it =
        is_again ? trace->registers.rax == wait->number
                 : trace->call == (long)wait->number && trace->interruption == IMAGE_ENDS;

    return is_restarted(trace, wait) || (makes_it && has_arguments(&trace->registers, wait));
}

/* Waits that have ended are removed from init's state and from the image. */
static int end_waits(struct dump *c) {
    struct quiesce_message ended = { .order = QUIESCE_FORGET };
    size_t kept = 0;
    int r = 0;

    for (size_t i = 0; i < dump_count(&c->waits, struct image_wait) && r == 0; i++) {
        const struct image_wait wait = *dump_entry(&c->waits, i, struct image_wait);
        const struct task *task = task_of(c, wait.thread);

        if (!task || (task->trace.stands && (!was_in(&task->trace, &wait, i < c->n_again) ||
                                                is_of_ended(c, wait.thread))))
            ended.threads[ended.n++] = (int32_t)wait.thread;
        else if (task->trace.stands && !task->process->is_apart)
            *dump_entry(&c->waits, kept++, struct image_wait) = wait;
        if (ended.n == QUIESCE_MAX_THREADS) {
            r = send_message(c, &ended);
            ended.n = 0;
        }
    }
    c->waits.length = kept * sizeof(struct image_wait);
    return r == 0 && ended.n ? send_message(c, &ended) : MIN(r, 0);
}

int quiesce_release(struct dump *c) {
    const struct quiesce_message message = { .order = QUIESCE_RELEASE };

    if (!c->holds)
        return 0;
    c->holds = false;
    int r = end_waits(c);
    if (r == 0)
        r = send_message(c, &message);
    c->leads = r > 0;
    return MIN(r, 0);
}

static bool has_wait(struct dump *c, struct task *task) {
    for (size_t i = 0; i < dump_count(&c->waits, struct image_wait); i++)
        if (dump_entry(&c->waits, i, struct image_wait)->thread == inner_of(c, task))
            return true;
    return false;
}

void quiesce_lead(struct dump *c) {
    const struct quiesce_message message = { .order = QUIESCE_LEFT };

    (void)quiesce_release(c); /* if the dump failed before that */
    if (!c->leads)
        return;
    c->leads = false;
    for (size_t i = 0; i < c->n_tasks; i++)
        if (c->tasks[i].trace.stands && has_wait(c, &c->tasks[i]))
            trace_release(&c->tasks[i].trace);
    for (long waited_ns = 0, ns = LEAD_NS;
         waited_ns < LEAD_LIMIT_NS && send_message(c, &message) > 0; waited_ns += ns, ns += LEAD_NS)
        nanosleep(&(struct timespec){ .tv_nsec = ns }, NULL);
}

void quiesce_end(struct dump *c) {
    if (is_wanted(c))
        (void)shutdown(c->options->still, SHUT_RDWR);
}

int quiesce_give_back(struct dump *c) {
    struct quiesce_message message = { .order = QUIESCE_GIVE_BACK };
    int r = 0;

    for (size_t i = 0; is_wanted(c) && i < c->n_tasks && r == 0; i++) {
        struct task *task = &c->tasks[i];

        if (!task->is_gone && task->trace.is_seized && !task->trace.stands && inner_of(c, task))
            message.threads[message.n++] = (int32_t)task->inner_tid;
        if (message.n == QUIESCE_MAX_THREADS) {
            r = send_message(c, &message);
            message.n = 0;
        }
    }
    return r == 0 && message.n ? send_message(c, &message) : r;
}

static int receive_entries(struct dump *c, struct buf *to, uint32_t n, size_t size) {
    int r = 0;

    for (uint32_t i = 0; i < n && r == 0; i += QUIESCE_AT_ONCE) {
        size_t length = MIN(n - i, QUIESCE_AT_ONCE) * size;
        void *place = buf_reserve(to, length);

        r = place ? receive_bytes(c, place, length) : -ENOMEM;
        to->length += r == 0 ? length : 0;
    }
    return r;
}

static int request_quiesce(struct dump *c, enum quiesce_command order) {
    struct quiesce_state state;
    int r = say_plain(c, order);

    c->waits.length = c->alarms.length = 0;
    if (r < 0 || !is_wanted(c))
        return r;
    r = receive_bytes(c, &state, sizeof state);
    if (r == 0)
        r = receive_entries(c, &c->waits, state.n_waits, sizeof(struct image_wait));
    if (r == 0)
        r = receive_entries(c, &c->alarms, state.n_alarms, sizeof(struct image_alarm));
    c->image.determinism = state.determinism;
    c->n_again = state.n_again;
    return r < 0 ? dump_fail(c, "the state of the sandbox's init", r) : 0;
}

int quiesce_pass(struct dump *c) {
    return request_quiesce(c, QUIESCE_PASS);
}

int quiesce_reply(struct dump *c) {
    return request_quiesce(c, QUIESCE_REPLY);
}

void quiesce_late(struct dump *c, const struct task *task) {
    const struct quiesce_message go = { .order = QUIESCE_RELEASE };

    if (is_wanted(c) && task->trace.stands && task->trace.call >= 0 &&
        task->trace.interruption == IMAGE_ENDS && quiesce_reply(c) == 0 && end_waits(c) == 0)
        (void)send_message(c, &go);
}

/* ---- what comes of it ---- */

void quiesce_find_call(struct dump *c, const struct trace *trace, struct image_thread *thread) {
    for (size_t i = 0; i < dump_count(&c->waits, struct image_wait); i++) {
        const struct image_wait *wait = dump_entry(&c->waits, i, struct image_wait);

        if (wait->thread != thread->tid || !is_restarted(trace, wait))
            continue;
        thread->registers = trace->registers;
        thread->registers.rax = wait->number;
        thread->interruption = IMAGE_ENDS;
    }
}

static bool find_owner(const struct dump *c, struct image_alarm *alarm) {
    for (size_t i = 0;
         alarm->kind == IMAGE_ALARM_DESCRIPTOR && i < dump_count(&c->files, struct image_file);
         i++) {
        struct image_file *file = dump_entry(&c->files, i, struct image_file);

        if (file->kind != IMAGE_FILE_TIMER || file->length != alarm->number + 1)
            continue;
        file->ticks = alarm->is_ready ? alarm->missed + 1ull : 0;
        alarm->file = (uint32_t)i + 1;
        return true;
    }
    for (size_t i = 0; alarm->kind != IMAGE_ALARM_DESCRIPTOR && i < c->n_dump_processes; i++)
        if (!c->dump_processes[i]->is_apart && !c->dump_processes[i]->is_zombie &&
            c->dump_processes[i]->inner_pid == alarm->pid)
            return true;
    return false;
}

void quiesce_finish(struct dump *c) {
    size_t n = dump_count(&c->alarms, struct image_alarm), kept = 0;

    for (size_t i = 0; i < n; i++) {
        struct image_alarm alarm = *dump_entry(&c->alarms, i, struct image_alarm);

        if (find_owner(c, &alarm))
            *dump_entry(&c->alarms, kept++, struct image_alarm) = alarm;
    }
    c->alarms.length = kept * sizeof(struct image_alarm);
}

bool quiesce_is_page(const struct dump *c, uint64_t inode, const char *name) {
    return c->image.determinism.flags & IMAGE_VIRTUAL && inode == c->image.determinism.page_inode &&
           !strncmp(name, "/memfd:rollbox-clock", 20);
}

bool quiesce_is_marked(const struct dump *c, const uint64_t *interval, uint64_t value_s) {
    return c->image.determinism.flags & IMAGE_VIRTUAL && interval[0] && !interval[1] &&
           interval[0] <= IMAGE_MAX_ALARMS && value_s > QUIESCE_MARK_S / 2;
}

int quiesce_look_at_vdso(struct dump *c, const struct dump_process *s,
    const struct image_area *area, struct image_process *process) {
    static unsigned char theirs[MAX_VDSO];
    const void *ours =
        (const void *)getauxval(AT_SYSINFO_EHDR); /* all processes have the same vDSO */
    size_t length = (size_t)(area->end - area->start);

    if (!is_wanted(c) || !ours || length > sizeof theirs ||
        trace_read(s->tools.memory, area->start, theirs, length) != (ssize_t)length)
        return is_wanted(c) ? dump_fail(c, "its vDSO", -EIO) : 0;
    process->is_fresh = !memcmp(theirs, ours, length);
    return 0;
}
