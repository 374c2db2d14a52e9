/* SPDX-License-Identifier: Apache-2.0 */
/* Dumping one process: the kernel's state of it and of its threads, except for memory and
 * descriptors. */
#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "dump/internal.h"

#define SIGNAL_SET 8 /* bytes of the kernel's */
#define MAX_PENDING 1024
#define MEMBARRIER_REGISTRATIONS 512u /* MEMBARRIER_CMD_GET_REGISTRATIONS, Linux 6.3 */

/* The thread that makes calls for a process: its first thread, or that of its copy-on-write
 * fork. */
struct voice {
    pid_t pid;
    struct trace *trace;
    const struct trace_tools *tools;
};

static struct voice voice_of(struct dump *c, const struct dump_process *s) {
    return (struct voice){ s->pid, &tree_main(c, s)->trace, &s->tools };
}

/* Makes a call there. 0 or -errno, including errors of the call. */
static int request_call(const struct voice *voice, long number, const uint64_t *arguments, size_t n,
    void *ret_data, size_t length) {
    int64_t result;
    int r = trace_call(voice->trace, voice->tools, number, arguments, n, ret_data, length, &result);

    if (r < 0)
        return r;
    return result < 0 ? (int)result : 0;
}

/* Field `n` of /proc/PID/stat, counted from 1 as in proc(5), past the name. */
static uint64_t stat_field(const char *stat, unsigned n) {
    const char *at = strrchr(stat, ')');

    for (unsigned field = 2; at && field < n; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

static int read_link(const struct dump_process *s, const char *name, char *to, size_t size) {
    ssize_t n = readlinkat(s->proc, name, to, size - 1);

    if (n < 0)
        return -errno;
    to[n] = '\0';
    return 0;
}

static int look_at_layout(struct dump *c, struct dump_process *s, struct image_process *process) {
    struct image_layout *layout = &process->layout;
    auto_buf struct buf stat = BUF_INIT;
    auto_buf struct buf auxv = BUF_INIT;
    int r = dump_read(c, s, "stat", &stat);

    if (r == 0)
        r = dump_read(c, s, "auxv", &auxv);
    if (r < 0)
        return dump_fail(c, "its layout", r);
    *layout = (struct image_layout){
        .start_code = stat_field(stat.data, 26),
        .end_code = stat_field(stat.data, 27),
        .start_data = stat_field(stat.data, 45),
        .end_data = stat_field(stat.data, 46),
        .start_brk = stat_field(stat.data, 47),
        .start_stack = stat_field(stat.data, 28),
        .arg_start = stat_field(stat.data, 48),
        .arg_end = stat_field(stat.data, 49),
        .env_start = stat_field(stat.data, 50),
        .env_end = stat_field(stat.data, 51),
    };
    process->goodbye = (uint16_t)(1 + (stat_field(stat.data, 38) & 0xff));
    const uint64_t terminal = stat_field(stat.data, 7);
    process->terminal = terminals_number(terminal);
    if (terminal && !process->terminal)
        return dump_refuse(c, ENOTSUP, "its terminal was opened outside of the sandbox");
    process->auxv = dump_blob(c, auxv.data, auxv.length);
    process->auxv_length = auxv.length;
    return 0;
}

static int look_at_places(struct dump *c, struct dump_process *s, struct image_process *process) {
    char target[4096]; /* a link in /proc is at most a page long */
    struct stat st, own;
    int r = read_link(s, "exe", target, sizeof target);

    if (r < 0)
        return dump_fail(c, "its program", r);
    process->executable = dump_text(c, target);
    r = read_link(s, "cwd", target, sizeof target);
    if (r == 0)
        r = memory_find_path(s, target, &st);
    if (r < 0)
        return dump_refuse(c, ENOTSUP, "its working directory %.200s no longer exists", target);
    if (!access_is_given(c, s, &st, ACCESS_ENTER) || !access_reaches(c, s, target))
        return dump_refuse(
            c, ENOTSUP, "it may no longer enter its working directory %.200s", target);
    process->directory = dump_text(c, target);
    r = read_link(s, "root", target, sizeof target);
    if (r < 0)
        return dump_fail(c, "its root", r);
    if (!strcmp(target, "/"))
        return 0;
    /* Only with many users can it have done so, and the root of a copy do it again. */
    if (!c->options->many_users || memory_find_path(s, target, &st) < 0 ||
        fstatat(s->proc, "root", &own, 0) < 0 || own.st_dev != st.st_dev || own.st_ino != st.st_ino)
        return dump_refuse(
            c, ENOTSUP, "it has changed its root directory (chroot), to one that has moved");
    process->root = dump_text(c, target);
    return 0;
}

static void look_at_status(struct dump_process *s, struct image_process *process) {
    const char *status = s->status.data;

    s->anonymous = strtoull(dump_field(status, "\nRssAnon:\t"), NULL, 10) * 1024;
    process->umask = (uint32_t)strtoul(dump_field(status, "\nUmask:\t"), NULL, 8);
    s->handled = strtoull(dump_field(status, "\nSigIgn:\t"), NULL, 16) |
                 strtoull(dump_field(status, "\nSigCgt:\t"), NULL, 16);
}

static int ask_timer(struct dump *c, struct dump_process *s, struct image_timer *timer) {
    const struct voice voice = voice_of(c, s);
    uint64_t arguments[] = { timer->id, s->tools.scratch };
    int r = request_call(&voice, SYS_timer_gettime, arguments, ARRAY_SIZE(arguments), timer->time,
        sizeof timer->time);

    return r < 0 ? dump_fail(c, "its timers", r) : 0;
}

/* A paragraph for each timer: "ID: 0\nsignal: 14/0000000000000000\nnotify: signal/pid.7\nClockID:
 * 0\n". Pids are in the reader's namespace. */
static int look_at_timers(struct dump *c, struct dump_process *s, struct image_process *process) {
    size_t before = dump_count(&c->timers, struct image_timer);
    auto_buf struct buf text = BUF_INIT;

    if (dump_read(c, s, "timers", &text) < 0)
        return 0; /* CONFIG_CHECKPOINT_RESTORE is missing; the dump fails for other reasons then */
    for (const char *at = text.data; at && *at;) {
        struct image_timer timer = { 0 };
        unsigned long long value;
        char how[16], whom[8];
        int pid, n = 0;

        if (sscanf(at, "ID: %u signal: %u/%llx notify: %15[^/]/%7[^.].%d ClockID: %u %n", &timer.id,
                &timer.signal, &value, how, whom, &pid, &timer.clock, &n) != 7 ||
            !n)
            return dump_refuse(c, ENOTSUP, "its timers cannot be read from /proc");
        timer.value = value;
        timer.notify = !strcmp(how, "none")   ? SIGEV_NONE
                       : !strcmp(whom, "tid") ? 4 /* SIGEV_THREAD_ID */
                                              : SIGEV_SIGNAL;
        for (size_t i = 0; timer.notify == 4 && i < c->n_tasks; i++)
            if (c->tasks[i].trace.tid == pid)
                timer.tid = (uint32_t)i + 1; /* its inner number is read with its thread */
        int r = ask_timer(c, s, &timer);
        if (r < 0)
            return r;
        buf_add(&c->timers, &timer, sizeof timer);
        at += n;
    }
    process->posix_timers = dump_range(&c->timers, before, sizeof(struct image_timer));
    return 0;
}

static int look_at_limits(
    struct dump *c, const struct voice *voice, struct image_process *process) {
    for (int i = 0; i < IMAGE_RLIMITS; i++)
        if (syscall(SYS_prlimit64, voice->pid, i, NULL, process->limits[i]) < 0)
            return dump_fail(c, "its limits", -errno);
    return 0;
}

static int look_at_signals(
    struct dump *c, const struct voice *voice, struct image_process *process, uint64_t handled) {
    size_t before = dump_count(&c->actions, struct image_action);

    for (uint64_t number = 1; number <= IMAGE_SIGNALS; number++) {
        struct image_action action = { .number = number };
        uint64_t arguments[] = { number, 0, voice->tools->scratch, SIGNAL_SET };

        if (!(handled >> (number - 1) & 1) && number != SIGCHLD)
            continue;
        int r = request_call(voice, SYS_rt_sigaction, arguments, ARRAY_SIZE(arguments),
            &action.handler, sizeof action - sizeof action.number);
        if (r < 0)
            return dump_fail(c, "its signal handlers", r);
        if (action.handler || action.flags) /* SA_NOCLDWAIT works without a handler, too */
            buf_add(&c->actions, &action, sizeof action);
    }
    process->actions = dump_range(&c->actions, before, sizeof(struct image_action));
    return 0;
}

/* The commands that the process may use with membarrier(2). An older kernel does not tell. */
static int look_at_barriers(
    struct dump *c, const struct voice *voice, struct image_process *process) {
    const uint64_t arguments[] = { MEMBARRIER_REGISTRATIONS, 0, 0 };
    int64_t result;
    int r = trace_call(voice->trace, voice->tools, SYS_membarrier, arguments, ARRAY_SIZE(arguments),
        NULL, 0, &result);

    process->barriers = r == 0 && result > 0 ? (uint32_t)result : 0;
    return r < 0 ? dump_fail(c, "its habits", r) : 0;
}

static int look_at_timer(
    struct dump *c, const struct voice *voice, uint64_t which, struct image_process *process) {
    uint64_t arguments[] = { which, voice->tools->scratch }, *timer = process->timers[which];
    int r = request_call(voice, SYS_getitimer, arguments, ARRAY_SIZE(arguments), timer,
        sizeof process->timers[which]);

    if (r < 0)
        return dump_fail(c, "its timers", r);
    /* The timer has expired, and continues when its pending signal is taken. A restored timer would
     * not know that, so its next expiry is set. */
    if ((timer[0] || timer[1]) && !timer[2] && !timer[3]) {
        timer[2] = timer[0];
        timer[3] = timer[1];
    }
    return 0;
}

static int look_at_habits(struct dump *c, struct dump_process *s, struct image_process *process) {
    const struct voice voice = voice_of(c, s);
    const struct {
        uint64_t option;
        uint32_t *to;
    } asked[] = { { PR_GET_CHILD_SUBREAPER, &process->is_subreaper },
        { PR_GET_PDEATHSIG, &process->death_signal } };

    for (size_t i = 0; i < ARRAY_SIZE(asked); i++) {
        uint64_t arguments[] = { asked[i].option, s->tools.scratch };
        int32_t value = 0;
        int r =
            request_call(&voice, SYS_prctl, arguments, ARRAY_SIZE(arguments), &value, sizeof value);

        if (r < 0)
            return dump_fail(c, "its habits", r);
        *asked[i].to = (uint32_t)value;
    }
    int r = credentials_dump_closed(c, s, voice.trace, process);
    for (uint64_t which = ITIMER_REAL; which <= ITIMER_PROF && r == 0; which++)
        r = look_at_timer(c, &voice, which, process);
    return r;
}

/* An ordinary user may enter the namespace after taking the rights of the user namespace that owns
 * it, which is the user's own. From then on all ids are seen in that namespace, so this must be the
 * last step. */
static bool can_enter_namespace(int namespace, bool may_change_ids) {
    if (setns(namespace, CLONE_NEWIPC) == 0)
        return true;
    if (!may_change_ids)
        return false;
    auto_close int owner = ioctl(namespace, NS_GET_USERNS);
    return owner >= 0 && setns(owner, CLONE_NEWUSER) == 0 && setns(namespace, CLONE_NEWIPC) == 0;
}

enum shared_kind { SHARED_MEMORY, SEMAPHORES, MESSAGE_QUEUES };

/* How many objects there are of a kind. A worker outside of the namespace asks in the process.
 * -ENOSYS: a filter denies these calls, so there are none of any kind. */
static int count_objects(
    const struct voice *voice, bool is_inside, enum shared_kind kind, int32_t *ret_n) {
    static const struct {
        long call;
        size_t n;
        uint64_t arguments[4]; /* the last is the output address */
        size_t at;             /* where the output has the number of objects */
    } calls[] = {
        { SYS_shmctl, 3, { 0, SHM_INFO }, offsetof(struct shm_info, used_ids) },
        { SYS_semctl, 4, { 0, 0, SEM_INFO }, offsetof(struct seminfo, semusz) },
        { SYS_msgctl, 3, { 0, MSG_INFO }, offsetof(struct msginfo, msgpool) },
    };
    const long call = calls[kind].call;
    const size_t n = calls[kind].n;
    uint64_t arguments[4];
    union {
        struct shm_info memory;
        struct seminfo semaphores;
        struct msginfo messages;
        unsigned char bytes[1];
    } info = { 0 };
    int r = 0;

    memcpy(arguments, calls[kind].arguments, sizeof arguments);
    arguments[n - 1] = is_inside ? (uint64_t)(uintptr_t)&info : voice->tools->scratch;
    if (!is_inside)
        r = request_call(voice, call, arguments, n, &info, sizeof info);
    else if (syscall(call, arguments[0], arguments[1], arguments[2], arguments[3]) < 0)
        r = -errno;
    memcpy(ret_n, info.bytes + calls[kind].at, sizeof *ret_n);
    return r;
}

/* Once for all processes: System V objects belong to a namespace, not to a process. Shared memory
 * is dumped from inside. Semaphores cannot be, because the kernel shows nobody what it would undo
 * at the end of a process (SEM_UNDO). */
static int dump_objects(
    struct dump *c, const struct dump_process *s, int namespace, bool is_inside) {
    static const char *const names[] = { "shared memory", "semaphores", "message queues" };
    const struct voice voice = voice_of(c, s);
    bool has_memory = false;

    for (int kind = SHARED_MEMORY; kind <= MESSAGE_QUEUES; kind++) {
        int32_t n = 0;
        int r = count_objects(&voice, is_inside, (enum shared_kind)kind, &n);

        if (r == -ENOSYS)
            break;
        if (r < 0)
            return dump_fail(c, "its System V IPC objects", r);
        if (n && kind != SHARED_MEMORY)
            return dump_refuse(c, ENOTSUP, "it and others have %s of System V", names[kind]);
        has_memory |= n != 0;
    }
    if (!has_memory)
        return 0;
    if (!is_inside) {
        async_read_finish();
        if (!can_enter_namespace(namespace, true))
            return dump_refuse(c, ENOTSUP,
                "it and others have %s of System V, which could not be read: %s",
                names[SHARED_MEMORY], strerror(errno));
    }
    int r = credentials_begin_again(c); /* it may be in another user namespace by now */
    return r < 0 ? r : segments_dump(c);
}

/* `is_last`: nothing that depends on ids follows. */
static int look_at_shared_objects(struct dump *c, struct dump_process *s, bool is_last) {
    auto_close int namespace = openat(s->proc, "ns/ipc", O_RDONLY | O_CLOEXEC);
    struct stat its;

    if (namespace < 0 || fstat(namespace, &its) < 0)
        return dump_fail(c, "/proc", -errno);
    const bool is_ours = c->own_ipc == its.st_ino,
               is_inside = !is_ours && can_enter_namespace(namespace, is_last);
    c->is_looked_at = is_ours || is_inside || is_last;
    return is_ours || !c->is_looked_at ? 0 : dump_objects(c, s, namespace, is_inside);
}

static int number_of(const struct image_pending *pending) {
    int32_t number;

    memcpy(&number, pending->info, sizeof number);
    return number;
}

/* A signal that cannot be blocked would stop or kill the restored process too early. */
static bool holds_up(const struct image_pending *pending, int n) {
    for (int i = 0; i < n; i++)
        if (number_of(&pending[i]) == SIGSTOP || number_of(&pending[i]) == SIGKILL)
            return true;
    return false;
}

static int look_at_pending(
    struct dump *c, const struct trace *trace, bool is_shared, struct image_range *ret_range) {
    size_t before = dump_count(&c->pending, struct image_pending);
    static struct image_pending found[MAX_PENDING];
    int n = trace_pending(trace, is_shared, found, MAX_PENDING);

    if (n < 0)
        return dump_fail(c, "its pending signals", n);
    if (n == MAX_PENDING)
        return dump_refuse(c, E2BIG, "it has %d or more pending signals", n);
    if (holds_up(found, n))
        return dump_refuse(c, EAGAIN, "a signal is about to stop or kill it");
    buf_add(&c->pending, found, (size_t)n * sizeof *found);
    *ret_range = dump_range(&c->pending, before, sizeof *found);
    return 0;
}

static bool waits_for(struct dump *c, struct image_range pending, int number) {
    for (uint32_t i = 0; i < pending.n; i++)
        if (number_of(dump_entry(&c->pending, pending.first + i, struct image_pending)) == number)
            return true;
    return false;
}

/* ---- threads ---- */

static int look_at_registers(struct dump *c, struct dump_process *s, const struct trace *trace,
    struct image_thread *thread) {
    static unsigned char xstate[16384];
    size_t length;
    long list, list_length;

    thread->registers = trace->elsewhere;
    thread->interruption = trace->interruption;
    quiesce_find_call(c, trace, thread);
    thread->signal_mask = trace->signal_mask;
    int r = trace_xstate(trace, xstate, sizeof xstate, &length, &thread->xstate_features);
    if (r == 0 && length > IMAGE_MAX_XSTATE)
        r = -ENOTSUP;
    if (r < 0)
        return dump_fail(c, "its vector registers", r);
    thread->xstate = dump_blob(c, xstate, length);
    thread->xstate_length = length;
    if (syscall(SYS_get_robust_list, trace->tid, &list, &list_length) < 0)
        return dump_fail(c, "its robust futexes", -errno);
    thread->robust_list = (uint64_t)list;
    thread->robust_length = (uint64_t)list_length;
    r = trace_rseq(trace, &thread->rseq, &thread->rseq_length, &thread->rseq_signature);
    if (r < 0)
        return dump_fail(c, "its restartable sequences", r);
    r = trace_in_sequence(trace, s->tools.memory);
    return r < 0 ? dump_fail(c, "its restartable sequences", r)
           : r   ? dump_refuse(c, EAGAIN, "it is in a restartable sequence")
                 : 0;
}

/* The signal stack. A fork inherits that of the thread that made it. */
static int look_at_stack(const struct voice *voice, struct image_thread *thread) {
    uint64_t arguments[] = { 0, voice->tools->scratch };

    return request_call(voice, SYS_sigaltstack, arguments, ARRAY_SIZE(arguments),
        thread->alternate_stack, sizeof thread->alternate_stack);
}

/* The kernel keeps them for each thread. */
static int look_at_rights(
    struct dump *c, struct dump_process *s, struct task *task, struct image_thread *thread) {
    auto_buf struct buf own = BUF_INIT;
    char path[48];

    if (task->trace.tid == s->pid)
        return credentials_dump(c, s, &task->trace, s->status.data, thread);
    snprintf(path, sizeof path, "task/%d/status", (int)task->trace.tid);
    int r = dump_read(c, s, path, &own);
    return r < 0 ? dump_fail(c, "its threads", r)
                 : credentials_dump(c, s, &task->trace, own.data, thread);
}

static int look_at_thread(struct dump *c, struct dump_process *s, struct task *task) {
    struct image_thread thread = { .tid = task->inner_tid };

    memcpy(thread.name, task->name, sizeof task->name);
    int r = look_at_registers(c, s, &task->trace, &thread);
    if (r == 0 && c->options->many_users)
        r = look_at_rights(c, s, task, &thread);
    if (r < 0)
        return r;
    const struct voice voice = { s->pid, &task->trace, &s->tools };
    uint64_t clear[] = { 40 /* PR_GET_TID_ADDRESS */, s->tools.scratch };
    r = task->trace.tid == s->pid && s->cow_fork.pid > 0 ? 0 : look_at_stack(&voice, &thread);
    if (r == 0)
        r = request_call(&voice, SYS_prctl, clear, ARRAY_SIZE(clear), &thread.clear_tid,
            sizeof thread.clear_tid);
    if (r < 0)
        return dump_fail(c, "its threads", r);
    for (size_t i = 0; i < dump_count(&c->timers, struct image_timer); i++) {
        struct image_timer *timer = dump_entry(&c->timers, i, struct image_timer);

        if (timer->notify == 4 && timer->tid == (uint32_t)(task - c->tasks) + 1 && !timer->unused) {
            timer->tid = thread.tid;
            timer->unused = 1;
        }
    }
    r = look_at_pending(c, &task->trace, false, &thread.pending);
    buf_add(&c->threads, &thread, sizeof thread);
    c->n_threads++;
    return r;
}

/* The first thread is that of the process's own pid. */
static int look_at_threads(struct dump *c, struct dump_process *s, struct image_process *process) {
    size_t before = dump_count(&c->threads, struct image_thread);
    struct task *first = tree_main(c, s);
    int r = look_at_thread(c, s, first);

    for (size_t i = 0; i < c->n_tasks && r == 0; i++)
        if (c->tasks[i].process == s && !c->tasks[i].is_gone && &c->tasks[i] != first)
            r = look_at_thread(c, s, &c->tasks[i]);
    process->threads = dump_range(&c->threads, before, sizeof(struct image_thread));
    if (r == 0 && process->threads.n > IMAGE_MAX_OWN_THREADS)
        return dump_refuse(
            c, E2BIG, "it has more than %u threads", (unsigned)IMAGE_MAX_OWN_THREADS);
    return r;
}

/* Newlines and backslashes are escaped with a backslash. */
static void take_name(const char *line, struct task *task) {
    size_t n = 0;

    for (const char *at = line; *at && *at != '\n' && n + 1 < sizeof task->name; at++) {
        bool is_escaped = *at == '\\' && (at[1] == 'n' || at[1] == '\\');

        at += is_escaped;
        task->name[n++] = is_escaped && *at == 'n' ? '\n' : *at;
    }
    task->name[n] = '\0';
}

/* Calls are made in the thread. A filter of its own could fake their results or kill the thread.
 * Nor can restore reproduce such a filter or a syscall dispatcher. */
static int check_thread(struct dump *c, const struct dump_process *s, struct task *task) {
    auto_buf struct buf own = BUF_INIT;
    const char *status = s->status.data, *why = trace_oddity(&task->trace);
    char path[48];
    int r = 0;

    if (why)
        return dump_refuse(c, ENOTSUP, "%s", why);
    if (task->trace.tid != s->pid) {
        snprintf(path, sizeof path, "task/%d/status", (int)task->trace.tid);
        r = dump_read(c, s, path, &own);
        status = own.data;
    }
    if (r < 0)
        return dump_fail(c, "its threads", r);
    if (!c->options->is_command &&
        strtoul(dump_field(status, "\nSeccomp_filters:"), NULL, 10) > c->n_filters)
        return dump_refuse(c, ENOTSUP, "it has a seccomp filter of its own");
    task->inner_tid = dump_innermost(status, "\nNSpid:");
    take_name(dump_field(status, "Name:\t"), task);
    return 0;
}

static int check_threads(struct dump *c, const struct dump_process *s) {
    int r = 0;

    for (size_t i = 0; i < c->n_tasks && r == 0; i++)
        if (c->tasks[i].process == s && !c->tasks[i].is_gone)
            r = check_thread(c, s, &c->tasks[i]);
    return r;
}

static int put_threads_back(struct dump *c, const struct dump_process *s) {
    int r = 0;

    for (size_t i = 0; i < c->n_tasks && r == 0; i++)
        if (c->tasks[i].process == s && !c->tasks[i].is_gone)
            r = trace_put_back(&c->tasks[i].trace);
    return r < 0 ? dump_fail(c, "its registers", r) : 0;
}

static bool waits_of(struct dump *c, struct image_range pending, uint32_t timer) {
    for (uint32_t i = 0; i < pending.n; i++) {
        siginfo_t info;

        memcpy(&info, dump_entry(&c->pending, pending.first + i, struct image_pending)->info,
            sizeof info);
        if (info.si_code == SI_TIMER && (uint32_t)info.si_timerid == timer)
            return true;
    }
    return false;
}

/* Time has passed: a pending signal may be that of a timer that was read before it expired, and
 * would be delivered twice after a restore. */
static int look_at_expired(struct dump *c, struct dump_process *s, struct image_process *process) {
    int r = 0;

    if (waits_for(c, process->pending, SIGALRM)) {
        const struct voice voice = voice_of(c, s);

        r = look_at_timer(c, &voice, ITIMER_REAL, process);
    }
    for (uint32_t i = 0; i < process->posix_timers.n && r == 0; i++) {
        struct image_timer *timer =
            dump_entry(&c->timers, process->posix_timers.first + i, struct image_timer);
        bool waits = waits_of(c, process->pending, timer->id);

        for (uint32_t k = 0; k < process->threads.n && !waits; k++)
            waits = waits_of(c,
                dump_entry(&c->threads, process->threads.first + k, struct image_thread)->pending,
                timer->id);
        if (waits)
            r = ask_timer(c, s, timer);
    }
    return r;
}

/* Attributes that a fork inherits. */
static int look_at_heritage(
    struct dump *c, const struct voice *voice, struct image_process *process, uint64_t handled) {
    const uint64_t zero = 0;
    int64_t brk = 0;
    int r = look_at_limits(c, voice, process);

    if (r == 0)
        r = look_at_signals(c, voice, process, handled);
    if (r < 0)
        return r;
    r = trace_call(voice->trace, voice->tools, SYS_brk, &zero, 1, NULL, 0, &brk);
    process->layout.brk = (uint64_t)brk;
    return r < 0 ? dump_fail(c, "its layout", r) : look_at_barriers(c, voice, process);
}

int process_dump_cow_fork(struct dump *c, struct dump_process *s) {
    const struct trace_tools tools = { s->cow_fork.memory, s->tools.instruction, s->tools.scratch };
    struct image_process *process = dump_entry(&c->processes, s->index, struct image_process);
    struct trace trace;
    const struct voice voice = { s->cow_fork.pid, &trace, &tools };
    int r = trace_of_child(&trace, s->cow_fork.pid);

    c->current = s;
    if (r == 0)
        r = look_at_stack(
            &voice, dump_entry(&c->threads, process->threads.first, struct image_thread));
    return r < 0 ? dump_fail(c, "its threads", r)
                 : look_at_heritage(c, &voice, process, s->handled);
}

/* Reads everything that needs neither calls nor memory of the process while its copy-on-write fork
 * is being made. The two take equally long. */
static int look_beside_cow_fork(
    struct dump *c, struct dump_process *s, struct image_process *process) {
    if (c->base && !dirty_pages_has_few(c, s)) {
        dirty_pages_forget(c);
        cow_fork_plan(c);
    }
    if (c->base)
        memory_begin(s);
    else
        cow_fork_make(c, s); /* it may complete later */
    int r = look_at_places(c, s, process);
    if (r == 0)
        r = look_at_layout(c, s, process);
    if (r == 0 && !c->options->is_command)
        r = files_dump(c, s, process);
    if (r == 0 && !c->options->is_command && !c->is_looked_at)
        r = look_at_shared_objects(c, s, false);
    if (r == 0)
        r = memory_identify(c, s);
    cow_fork_made(c, s);
    return r;
}

int process_dump_shared(struct dump *c, struct dump_process *s) {
    c->current = s;
    if (c->options->is_command || c->is_looked_at)
        return 0;
    int r = look_at_shared_objects(c, s, true);
    return r < 0 ? r : put_threads_back(c, s);
}

/* An ordinary user may trace a process that is not dumpable (ssh-agent, gpg-agent), because the
 * sandbox's user namespace is the user's. But its files in /proc belong to root, so it is made
 * dumpable while all processes are paused. */
static int open_up(struct dump *c, struct dump_process *s, struct task *first) {
    static const char name[] = "[vdso]\n";
    auto_buf struct buf maps = BUF_INIT;
    int r = dump_read(c, s, "maps", &maps);
    const char *line = r < 0 ? NULL : strstr(maps.data, name);

    while (line && line > maps.data && line[-1] != '\n')
        line--;
    const uint64_t vdso = line ? strtoull(line, NULL, 16) : 0;
    if (r == 0)
        r = trace_set_dumpable(&first->trace, vdso, true);
    if (r == 0)
        s->closed_vdso = vdso;
    return r == 0          ? 0
           : r == -ENOTSUP ? dump_refuse(c, ENOTSUP,
                                 "it is not dumpable (PR_SET_DUMPABLE), and has no vDSO, which is "
                                 "needed to change that")
                           : dump_fail(c, "its dumpable flag", r);
}

/* The sandbox's root directory. A process may have another one (chroot), but /proc shows paths from
 * the sandbox's, so that of another process serves, or init's, which only root may open. */
static int open_root(struct dump *c, const struct dump_process *s) {
    char path[32];

    if (!c->options->many_users || !dump_has_other_root(s))
        return openat(s->proc, "root", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < c->n_dump_processes; i++)
        if (!c->dump_processes[i]->is_zombie && !dump_has_other_root(c->dump_processes[i]))
            return openat(c->dump_processes[i]->proc, "root", O_PATH | O_DIRECTORY | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%d/root", (int)c->options->init);
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        return fd;
    return openat(s->proc, "root", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static int open_files_of(struct dump *c, struct dump_process *s, struct task *first) {
    for (unsigned tries = 0;; tries++) {
        close_fd(&s->root);
        close_fd(&s->pagemap);
        close_fd(&s->tools.memory);
        s->root = open_root(c, s);
        s->pagemap = s->root < 0 ? -EBADF : openat(s->proc, "pagemap", O_RDONLY | O_CLOEXEC);
        s->tools.memory = s->pagemap < 0 ? -EBADF : openat(s->proc, "mem", O_RDWR | O_CLOEXEC);
        if (s->tools.memory >= 0)
            return 0;
        if (errno != EACCES || tries)
            return dump_fail(c, "/proc", -errno);
        int r = open_up(c, s, first);
        if (r < 0)
            return r;
    }
}

int process_dump(struct dump *c, struct dump_process *s) {
    struct image_process process = *dump_entry(&c->processes, s->index, struct image_process);
    struct task *first = tree_main(c, s);

    c->current = s;
    if (!first)
        return dump_refuse(c, ENOTSUP, "its main thread has ended");
    if (first->trace.stopped_by) {
        (void)dump_refuse(c, ENOTSUP, "it is stopped by a signal (%d)", first->trace.stopped_by);
        return -EAGAIN; /* its stopper may be about to continue it: init on a time-out, a shell, or
                           a tracer */
    }
    int r = check_threads(c, s);
    if (r == 0)
        r = open_files_of(c, s, first);
    if (r < 0)
        return r;
    s->pages = (struct pages){ s->pid, s->proc, s->pagemap, s->tools.memory };
    look_at_status(s, &process);
    r = memory_find_tools(c, s);
    if (r == 0)
        r = look_beside_cow_fork(c, s, &process);
    if (r == 0)
        r = look_at_habits(c, s, &process);
    if (r == 0)
        r = look_at_timers(c, s, &process);
    if (r == 0)
        r = look_at_threads(c, s, &process);
    if (r == 0)
        r = look_at_pending(c, &first->trace, true, &process.pending);
    if (r == 0)
        r = look_at_expired(c, s, &process);
    if (r == 0 && s->cow_fork.pid <=
                      0) { /* last: the call waits until the mappings are read (async_read.c) */
        const struct voice voice = voice_of(c, s);

        r = look_at_heritage(c, &voice, &process, s->handled);
    }
    if (r == 0)
        r = put_threads_back(c, s);
    if (r == 0)
        r = memory_note(c, s);
    *dump_entry(&c->processes, s->index, struct image_process) = process;
    return r;
}
