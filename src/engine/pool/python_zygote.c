/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warm interpreters.
 *
 * Starting Python takes many times as long as making a sandbox, and is the same work each time. So
 * a profile that runs code gets a second profile with the same policy. In a sandbox of that, under
 * all its restrictions, a Python is started that waits for its code. It is dumped there (src/dump),
 * and from then on the launcher restores it in each sandbox (src/guest/restore/restore.c), where it
 * continues as if it had just been started. It then receives the code and its arguments over
 * descriptor 3.
 *
 * This only makes runs faster. Until the interpreter exists, if it cannot be made, and for code
 * that it does not suit, the same command is started cold. A policy whose code is run only once
 * does not pay for it.
 *
 * With random_seed or time_start, no byte of output, addresses included, may depend on whether
 * there is a warm interpreter. So a cold start there uses the same Python with the same program
 * (interpreter.py), which finds its code at once. The image contains the effects of the seed and
 * the clock, in the processes and in init (guest/quiesce.h), and is used only for the policy with
 * these keys: the hash seed is in every dictionary of the interpreter.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/utf8.h"
#include "engine/box/guest_error.h"
#include "engine/box/launcher.h"
#include "engine/box/quiesce.h"
#include "engine/box/box.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/core/spawn.h"
#include "engine/pool/profile.h"
#include "engine/pool/profile_launcher.h"
#include "engine/pool/python_zygote.h"
#include "engine/pool/spares.h"
#include "dump/dump.h"
#include "sys/proc.h"
#include "sys/syscalls.h"

#define MAX_TRIES                                                                                  \
    4 /* each with other addresses: one may lie where the launcher has something of its own */
#define MAX_BYTES (64u << 20) /* of a started interpreter's memory */
#define DUMP_SECONDS 20
#define SETTLE_NS 10000000ll
#define PATIENCE_SECONDS 2 /* of runs that wait for it: several times as long as it takes */
#define AGAIN_SECONDS 60   /* after a failure, which may have been the moment's */
#define HIGHEST_FD 3       /* the streams, and the pipe it waits at */
#define READY "ready\n"
#define REFUSED "no: " /* and why, to the end of the line */
#define DUMPED "captured\n"
#define MAX_INTERPRETERS 16 /* at a time, of one engine */
#define MAX_ANEW 3 /* in a row: then it is not right any more, perhaps Python was upgraded */

enum interpreter_state {
    INTERPRETER_STARTING,
    INTERPRETER_DUMPING,
    INTERPRETER_LOADING,
    INTERPRETER_TRYING,
    INTERPRETER_LOOKING,
    INTERPRETER_READY,
    INTERPRETER_FAILED
};

/* The process that dumps it, or looks at it once it is tried out. */
struct interpreter_dump {
    int pidfd, problem_fd;
    struct loop_source done;
};

struct interpreter {
    struct engine *engine;
    struct profile *base, *profile; /* whose code it runs; the one that has it */
    enum interpreter_state state;
    unsigned tries;
    int64_t failed_ns;
    struct box *box;          /* in which it is started, or tried out */
    struct launcher_job load; /* of its image */
    int output, input_gate;   /* our ends of its output, and of the pipe it waits at */
    struct loop_source answers;
    struct buf said;
    struct interpreter_dump dump;
    int image;
    int touches; /* the lowest number of its touches, once that is known */
    struct loop_timer deadline;
    uint64_t n_restored, n_cold;
    unsigned anew_in_a_row;
    struct loop_timer settle; /* after a failure */
    bool again;
    struct list waiting;        /* struct run.in_queue */
    struct loop_timer patience; /* they do not, when that is over */
    char problem[256];          /* why there is none, or was none in a sandbox */
};

static void begin_interpreter(struct interpreter *interpreter);

/* Its launcher has it. To try it out tells what it touches, and no more: a run for which it cannot
 * be restored is started cold. */
static bool is_there(const struct interpreter *interpreter) {
    return interpreter->state == INTERPRETER_TRYING || interpreter->state == INTERPRETER_LOOKING ||
           interpreter->state == INTERPRETER_READY;
}

static void let_go(struct profile *twin);

/* An interpreter without a use ends, as soon as no run waits for a box of its launcher, which can
 * still start the command cold. From the loop. */
static void on_settle(struct loop_timer *timer) {
    struct interpreter *interpreter = container_of(timer, struct interpreter, settle);
    struct profile *twin = interpreter->profile;

    if (twin->launcher && launcher_is_creating(twin->launcher) &&
        loop_timer_set(interpreter->engine->loop, timer, clock_now_ns() + SETTLE_NS, on_settle) ==
            0)
        return;
    twin->n_running++;
    spares_drop(twin);
    if (twin->launcher)
        launcher_drop(twin->launcher);
    if (interpreter->again && interpreter->tries < MAX_TRIES && interpreter->base->number &&
        !interpreter->engine->stopping)
        begin_interpreter(interpreter);
    let_go(twin);
}

/* Cancels its start or its dump; an existing image stays. */
static void stop_interpreter(struct interpreter *interpreter) {
    struct loop *loop = interpreter->engine->loop;
    struct box *box = interpreter->box;

    loop_timer_clear(loop, &interpreter->deadline);
    loop_remove(loop, &interpreter->answers);
    loop_remove(loop, &interpreter->dump.done);
    if (interpreter->dump.pidfd >= 0)
        sys_pidfd_send_signal(interpreter->dump.pidfd, SIGKILL, NULL,
            0); /* it is reaped as all children are (engine.c) */
    close_fd(&interpreter->dump.pidfd);
    close_fd(&interpreter->dump.problem_fd);
    close_fd(&interpreter->output);
    close_fd(&interpreter->input_gate);
    buf_done(&interpreter->said);
    interpreter->box = NULL;
    if (box) {
        box_set_owner(box, NULL, NULL);
        box_kill(box);
    }
}

__attribute__((format(printf, 3, 4))) static void fail_interpreter(
    struct interpreter *interpreter, bool again, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(interpreter->problem, sizeof interpreter->problem, format, arguments);
    va_end(arguments);
    stop_interpreter(interpreter);
    launcher_job_cancel(&interpreter->load);
    close_fd(&interpreter->image);
    close_fd(&interpreter->touches);
    interpreter->state = INTERPRETER_FAILED;
    interpreter->failed_ns = clock_now_ns();
    interpreter->again = again;
    interpreter_release_queue(interpreter);
    if (loop_timer_set(interpreter->engine->loop, &interpreter->settle, clock_now_ns(), on_settle) <
        0)
        interpreter->again =
            false; /* its launcher ends with the profile, or starts cold in boxes that have none */
}

static int send_touches(const struct interpreter *interpreter) {
    auto_buf struct buf message = BUF_INIT;

    wire_begin(&message, GUEST_TOUCHES, 0);
    return wire_send_patiently(
        interpreter->profile->launcher->socket, &message, &interpreter->touches, 1);
}

static void on_loaded(void *data, const struct launcher_result *result);

static int send_image(struct interpreter *interpreter) {
    struct launcher *launcher = interpreter->profile->launcher;
    auto_buf struct buf message = BUF_INIT;

    launcher_job_cancel(&interpreter->load);
    launcher_begin(launcher, &interpreter->load, GUEST_IMAGE, &message);
    return launcher_send(
        launcher, &interpreter->load, &message, &interpreter->image, 1, on_loaded, interpreter);
}

static void on_deadline(struct loop_timer *timer) {
    fail_interpreter(container_of(timer, struct interpreter, deadline), false,
        "it was not started and captured within %d seconds", DUMP_SECONDS);
}

/* ---- capturing ---- */

/* In a child of the engine that has the image and the results' file. */
_Noreturn static void dump_interpreter(
    pid_t init, pid_t pid, int still, int image, int touches, int problem) {
    struct dump_options options = { .init = init,
        .is_command = true,
        .call = __NR_read,
        .highest_fd = HIGHEST_FD,
        .max_bytes = MAX_BYTES,
        .still = still };
    struct dump *done = NULL;
    struct rollbox_error error = { 0 };
    int r = touches < 0 ? dump_begin(&options, image, &done, &error)
                        : dump_touched(pid, image, touches, &error);

    dump_end(done);
    const char *told = r < 0 ? error.message : DUMPED;
    _exit(fd_write_all(problem, told, strlen(told)) < 0);
}

/* It waits to be captured, or has been tried out: what that has found is in the files. */
static void on_dumped(struct loop_source *source, uint32_t events) {
    struct interpreter *interpreter = container_of(source, struct interpreter, dump.done);
    auto_buf struct buf problem = BUF_INIT;
    bool was_tried = interpreter->state == INTERPRETER_LOOKING;

    (void)events;
    if (lseek(interpreter->dump.problem_fd, 0, SEEK_SET) == 0)
        (void)fd_read_all(interpreter->dump.problem_fd, sizeof interpreter->problem - 1, &problem);
    /* Its last word and nothing else is success: the image of a dump worker that was killed is
     * under a guest's control. Nobody writes to it from here on. */
    bool dumped = problem.length == strlen(DUMPED) &&
                  !memcmp(problem.data, DUMPED, problem.length) &&
                  fcntl(was_tried ? interpreter->touches : interpreter->image, F_ADD_SEALS,
                      F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0;
    if (!dumped && !was_tried) {
        fail_interpreter(interpreter, false, "%.*s", (int)problem.length,
            problem.length ? problem.data : "capturing it failed");
        return;
    }
    stop_interpreter(interpreter);
    if (was_tried) {
        interpreter->state = INTERPRETER_READY;
        if (!dumped || !interpreter->profile->launcher || send_touches(interpreter) < 0)
            close_fd(&interpreter->touches); /* it is a little slower without */
        return;
    }
    interpreter->state = INTERPRETER_LOADING;
    int r = interpreter->profile->launcher ? send_image(interpreter) : -ECHILD;
    if (r == 0)
        r = loop_timer_set(interpreter->engine->loop, &interpreter->deadline,
            clock_now_ns() + DUMP_SECONDS * 1000000000ll, on_deadline);
    if (r < 0)
        fail_interpreter(interpreter, false, "its image cannot be sent: %s", strerror(-r));
}

static void start_dump(struct interpreter *interpreter) {
    pid_t pids[2];
    int still = 0, r = 0;

    if (interpreter->box->state != BOX_READY)
        return; /* the word of the launcher or of init is on its way: on_box_ready */
    if (proc_children(interpreter->box->pid, pids, ARRAY_SIZE(pids)) != 1) {
        fail_interpreter(interpreter, false, "it is not alone in its sandbox");
        return;
    }
    bool was_tried = interpreter->state == INTERPRETER_TRYING;
    int *file = was_tried ? &interpreter->touches : &interpreter->image;
    interpreter->state = was_tried ? INTERPRETER_LOOKING : INTERPRETER_DUMPING;
    pid_t dump_worker = 0;
    close_fd(file);
    *file = memfd_create("rollbox-image", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    interpreter->dump.problem_fd = memfd_create("rollbox-problem", MFD_CLOEXEC);
    if (*file < 0 || interpreter->dump.problem_fd < 0)
        r = -errno;
    if (r == 0 && !was_tried)
        r = MIN(still = quiesce_begin(interpreter->box), 0);
    int fds[] = { interpreter->image, interpreter->touches, interpreter->dump.problem_fd,
        still > 0 ? still : -EBADF };
    if (r == 0 && (r = dump_worker = spawn_fork("rollbox-capture", fds, ARRAY_SIZE(fds))) == 0)
        dump_interpreter(interpreter->box->pid, pids[0], still, interpreter->image,
            interpreter->touches, interpreter->dump.problem_fd);
    if (still > 0)
        close(still);
    if (r > 0)
        r = interpreter->dump.pidfd = sys_pidfd_open(dump_worker, 0);
    if (r >= 0)
        r = loop_add(interpreter->engine->loop, &interpreter->dump.done, interpreter->dump.pidfd,
            EPOLLIN, on_dumped);
    if (r < 0)
        fail_interpreter(interpreter, false, "capturing it: %s", strerror(-r));
}

/* ---- starting ---- */

static bool is_waiting(const struct interpreter *interpreter) {
    size_t length = strlen(READY);

    return interpreter->said.length >= length &&
           !memcmp(interpreter->said.data + interpreter->said.length - length, READY, length);
}

static void on_box_ready(void *owner, struct box *box) {
    struct interpreter *interpreter = owner;

    (void)box;
    if (is_waiting(interpreter))
        start_dump(interpreter);
}

static bool is_refused(const struct interpreter *interpreter) {
    size_t length = strlen(REFUSED);

    return interpreter->said.length > length &&
           interpreter->said.data[interpreter->said.length - 1] == '\n' &&
           memmem(interpreter->said.data, interpreter->said.length, REFUSED, length);
}

/* The zygote's message: it waits for runs, or the reason why it does not. */
static void on_said(struct loop_source *source, uint32_t events) {
    struct interpreter *interpreter = container_of(source, struct interpreter, answers);
    char text[1024];
    ssize_t n = read(interpreter->output, text, sizeof text);

    (void)events;
    if (n > 0)
        buf_add(&interpreter->said, text, (size_t)n);
    if (n > 0 && !buf_failed(&interpreter->said) && interpreter->said.length < sizeof text) {
        if (is_waiting(interpreter)) {
            loop_remove(interpreter->engine->loop, &interpreter->answers);
            start_dump(interpreter);
        }
        if (!is_refused(interpreter))
            return;
    }
    const char *text_end = interpreter->said.data
                               ? interpreter->said.data + interpreter->said.length
                               : NULL,
               *line = interpreter->said.data ? interpreter->said.data : "";
    while (text_end > line && text_end[-1] == '\n')
        text_end--;
    const char *before = text_end > line ? memrchr(line, '\n', (size_t)(text_end - line)) : NULL;
    const char *last = before ? before + 1 : line;
    int length = text_end > last ? (int)(text_end - last) : 0;
    const char *failure = n > 0 ? "it is not kept" : "it ended at its start";
    fail_interpreter(
        interpreter, false, "%s%s%.*s", failure, length ? ": " : "", MIN(length, 200), last);
}

static void add_program(struct buf *message, bool is_fixed) {
    wire_add_text(message, GUEST_ARG, "python3");
    wire_add_text(message, GUEST_ARG, "-c");
    wire_add(message, GUEST_INTERPRETER, "", 0);
    if (!is_fixed)
        wire_add_text(message, GUEST_ARG, "quick");
}

/* Starts it; or, once it is loaded, tries it out: the words of its command are none. */
static int send_start(struct interpreter *interpreter) {
    auto_buf struct buf message = BUF_INIT;
    struct profile *profile = interpreter->profile;
    auto_close int input = fd_memory_file("rollbox-stdin", "",
        0); /* what the input of a run is, or /dev/null, which can be sought in, too */
    int output[2] = { -EBADF, -EBADF }, input_gate[2] = { -EBADF, -EBADF };
    int r = MIN(input, 0);
    if (r == 0 && pipe2(output, O_CLOEXEC) < 0)
        r = -errno;

    interpreter->output = output[0];
    bool is_dry_run = interpreter->state == INTERPRETER_TRYING;
    if (r == 0 && !is_dry_run && pipe2(input_gate, O_CLOEXEC) < 0)
        r = -errno;
    interpreter->input_gate = input_gate[1];
    auto_close int words = is_dry_run ? fd_memory_file("rollbox-code", "", 0) : input_gate[0];
    if (r == 0 && words < 0)
        r = words;
    wire_begin(&message, GUEST_EXEC, 0);
    add_program(&message, interpreter_is_fixed(profile));
    wire_add_text(&message, GUEST_CWD, "/");
    (void)profile_add_environment(&message, profile, -1, NULL, 0);
    if (r == 0)
        r = fcntl(output[0], F_SETFL, O_NONBLOCK) < 0
                ? -errno
                : loop_add(interpreter->engine->loop, &interpreter->answers, output[0], EPOLLIN,
                      on_said);
    if (r == 0)
        r = buf_failed(&message) ? -ENOMEM : 0;
    if (r == 0 && is_dry_run)
        ((struct wire_header *)(void *)message.data)->flags = GUEST_EXEC_RESTORED;
    if (r == 0)
        r = wire_send_patiently(interpreter->box->socket, &message,
            (const int[]){ input, output[1], output[1], words, output[1] }, is_dry_run ? 4 : 5);
    close_fd(&output[1]);
    return r;
}

static const char *restore_words(const struct guest_record *record) {
    return record->error ? strerror(record->error) : "it was killed";
}

static void on_report(
    void *owner, struct box *box, const struct guest_record *record, int *fds, size_t n_fds) {
    struct interpreter *interpreter = owner;
    struct rollbox_error error;

    (void)box;
    (void)fds;
    (void)n_fds;
    if (record->kind == GUEST_STARTED && interpreter->state == INTERPRETER_TRYING &&
        !record->operation) {
        fail_interpreter(interpreter, false, "step %u of restoring it in a sandbox: %s",
            record->stage, restore_words(record));
        return;
    }
    if (record->kind == GUEST_EXEC_FAILED) {
        guest_error_to_text(interpreter->profile, record, "python3", "/", &error);
        fail_interpreter(interpreter, false, "%s", error.message);
    }
}

static void on_box_dead(void *owner, struct box *box) {
    struct interpreter *interpreter = owner;

    (void)box;
    interpreter->box = NULL;
    fail_interpreter(interpreter, false, "the sandbox it was started in is gone");
}

static void on_box_failed(void *owner, struct box *box, const struct guest_record *record) {
    (void)record;
    on_box_dead(owner, box);
}

static const struct box_owner_ops box_ops = {
    .ready = on_box_ready, .report = on_report, .failed = on_box_failed, .dead = on_box_dead
};

/* In a sandbox of its own: to be captured, or to be tried out. */
static void start_in_box(struct interpreter *interpreter, enum interpreter_state state) {
    struct rollbox_error error;
    struct box *box;

    if (interpreter->engine->stopping)
        return;
    interpreter->state = state;
    int r = profile_new_box(
        interpreter->profile, &(struct box_config){ 0 }, &box_ops, interpreter, &box, &error);
    if (r < 0) {
        fail_interpreter(interpreter, false, "%s", error.message);
        return;
    }
    interpreter->box = box;
    r = loop_timer_set(interpreter->engine->loop, &interpreter->deadline,
        clock_now_ns() + DUMP_SECONDS * 1000000000ll, on_deadline);
    if (r == 0)
        r = send_start(interpreter);
    if (r < 0)
        fail_interpreter(interpreter, false, "it cannot be started: %s", strerror(-r));
}

static void on_impatient(struct loop_timer *timer) {
    interpreter_release_queue(container_of(timer, struct interpreter, patience));
}

static void begin_interpreter(struct interpreter *interpreter) {
    interpreter->tries++;
    (void)loop_timer_set(interpreter->engine->loop, &interpreter->patience,
        clock_now_ns() + PATIENCE_SECONDS * 1000000000ll, on_impatient); /* else nobody waits */
    start_in_box(interpreter, INTERPRETER_STARTING);
}

/* ---- using it ---- */

/* Into a new launcher. */
static int load_image(struct profile *profile) {
    struct interpreter *interpreter = profile->serves;

    if (interpreter->image < 0 || !is_there(interpreter))
        return 0;
    int r = send_image(interpreter);
    return r == 0 && interpreter->state == INTERPRETER_READY && interpreter->touches >= 0
               ? send_touches(interpreter)
               : r;
}

static void on_loaded(void *data, const struct launcher_result *result) {
    struct interpreter *interpreter = data;
    const int error_number = (int)result->record->error;

    if (result->record->kind != GUEST_IMAGE_LOADED) {
        if (interpreter->state == INTERPRETER_LOADING)
            fail_interpreter(interpreter, true, "its launcher has ended");
        return;
    }
    loop_timer_clear(interpreter->engine->loop, &interpreter->deadline);
    if (error_number) {
        fail_interpreter(interpreter, error_number == EEXIST, "its image cannot be loaded: %s",
            strerror(error_number));
    } else if (interpreter->state == INTERPRETER_LOADING) {
        start_in_box(interpreter, INTERPRETER_TRYING);
        interpreter_release_queue(interpreter);
    }
}

/* True for variables that do not make Python read files of the sandbox at its start. The zygote has
 * started before the files of a run exist. */
static bool is_harmless(const char *entry) {
    static const char *const names[] = { "PYTHONDONTWRITEBYTECODE=", "PYTHONHASHSEED=",
        "PYTHONIOENCODING=", "PYTHONNOUSERSITE=", "PYTHONOPTIMIZE=", "PYTHONUNBUFFERED=",
        "PYTHONUTF8=" };

    if (strncmp(entry, "PYTHON", 6))
        return true;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (!strncmp(entry, names[i], strlen(names[i])))
            return true;
    return false;
}

static bool is_eligible(const struct profile *profile) {
    const char *end = profile->values.environment.data + profile->values.environment.length;

    for (const char *entry = profile->values.environment.data; entry < end;
         entry += strlen(entry) + 1)
        if (!is_harmless(entry))
            return false;
    return !profile->policy->volumes.n &&
           !(profile->plan->flags & (PLAN_PROCESS | PLAN_SERIAL | PLAN_MANY_USERS));
}

bool interpreter_is_fixed(const struct profile *profile) {
    return profile->plan->flags & (PLAN_SEED | PLAN_CLOCK) && is_eligible(profile);
}

static void interpreter_free(struct interpreter *interpreter) {
    struct profile *base = interpreter->base;

    stop_interpreter(interpreter);
    launcher_job_cancel(&interpreter->load);
    loop_timer_clear(interpreter->engine->loop, &interpreter->settle);
    loop_timer_clear(interpreter->engine->loop, &interpreter->patience);
    interpreter->state = INTERPRETER_FAILED;
    interpreter_release_queue(interpreter);
    interpreter->profile->serves = NULL;
    interpreter->profile->load_image = NULL;
    profile_free(interpreter->profile);
    close_fd(&interpreter->image);
    close_fd(&interpreter->touches);
    free(interpreter);
    base->code.interpreter = NULL;
    base->code.twin = NULL;
}

/* Room for one more: the one that is idle for the longest time goes. */
static bool make_room(struct engine *engine) {
    struct profile *oldest = NULL;
    unsigned n = 0;

    list_for_each(node, &engine->profiles.all) {
        struct profile *profile = container_of(node, struct profile, node);

        if (!profile->code.interpreter)
            continue;
        n++;
        if (!profile->code.twin->n_running && (!oldest || profile->used_ns < oldest->used_ns))
            oldest = profile;
    }
    if (n < MAX_INTERPRETERS)
        return true;
    if (!oldest)
        return false;
    interpreter_free(oldest->code.interpreter);
    oldest->code.n_runs = 0;
    return true;
}

static void interpreter_new(struct profile *base) {
    struct interpreter *interpreter = calloc(1, sizeof *interpreter);
    struct rollbox_error error;

    if (!interpreter)
        return;
    interpreter->engine = base->engine;
    interpreter->base = base;
    list_init(&interpreter->waiting);
    list_init(&interpreter->load.node);
    interpreter->output = interpreter->input_gate = interpreter->dump.pidfd = interpreter->image =
        interpreter->touches = interpreter->dump.problem_fd = -EBADF;
    interpreter->profile = profile_twin(base, &error);
    if (!interpreter->profile) {
        free(interpreter);
        return;
    }
    interpreter->profile->serves = interpreter;
    interpreter->profile->base = base;
    interpreter->profile->load_image = load_image;
    base->code.interpreter = interpreter;
    base->code.twin = interpreter->profile;
    base->code.free_interpreter = interpreter_free;
    begin_interpreter(interpreter);
}

/* A run of code has come: the second has one made. */
static void expect_interpreter(struct profile *base) {
    if (!base->code.interpreter && (base->serves || !is_eligible(base)))
        return;
    if (!base->code.interpreter && ++base->code.n_runs > 1 && box_has_room(base->engine) &&
        !base->engine->stopping && make_room(base->engine))
        interpreter_new(base);
    if (base->code.interpreter && base->code.interpreter->state == INTERPRETER_FAILED &&
        !base->code.interpreter->settle.position &&
        clock_now_ns() > base->code.interpreter->failed_ns + AGAIN_SECONDS * 1000000000ll) {
        base->code.interpreter->tries = 0;
        begin_interpreter(base->code.interpreter);
    }
}

struct profile *interpreter_profile(struct profile *base) {
    return base->code.interpreter && is_there(base->code.interpreter)
               ? base->code.interpreter->profile
               : base;
}

/* It takes a processor to make one; runs beside it that start a Python each would take that, and
 * the longer all would be without. Once its Python has been started, what is left is shorter than
 * to start another. */
static bool has_queue(const struct interpreter *interpreter) {
    cpu_set_t cpus;
    bool is_made = !is_there(interpreter) && interpreter->state != INTERPRETER_FAILED;

    if (!is_made || !interpreter->patience.position)
        return false;
    if (interpreter->state != INTERPRETER_STARTING)
        return true;
    if (!interpreter->base->code.n_cold || sched_getaffinity(0, sizeof cpus, &cpus) < 0)
        return false;
    return (int)interpreter->base->code.n_cold + 1 >= CPU_COUNT(&cpus);
}

bool interpreter_queue(struct profile *profile, struct list *in_queue) {
    expect_interpreter(profile);
    struct interpreter *interpreter = profile->code.interpreter;

    if (!interpreter || !has_queue(interpreter))
        return false;
    list_add_tail(&interpreter->waiting, in_queue);
    return true;
}

void interpreter_release_queue(struct interpreter *interpreter) {
    while (interpreter && !list_empty(&interpreter->waiting) && !has_queue(interpreter)) {
        struct list *in_queue = interpreter->waiting.next;

        list_remove(in_queue);
        interpreter->engine->hooks.code_released(interpreter->engine, in_queue);
    }
}

struct profile *interpreter_base_of(struct profile *twin) {
    if (!twin->engine->stopping && twin->serves->base->number && is_there(twin->serves))
        (void)profile_keep_spares(twin);
    return twin->serves->base;
}

/* Of what was held: the base, if it is retired, may have been waiting for this. */
static void let_go(struct profile *twin) {
    twin->n_running--;
    profile_leave(twin->serves->base);
}

/* The words of the command after `python3`, with a NUL between. */
int interpreter_code(const struct buf *request) {
    auto_buf struct buf words = BUF_INIT;
    struct wire_field field;
    size_t position = 0, n = 0;

    while (wire_next(request->data + sizeof(struct wire_header),
               request->length - sizeof(struct wire_header), &position, &field) > 0)
        if (field.tag == GUEST_ARG && n++ >= 1) {
            if (n > 2)
                buf_add(&words, "", 1);
            buf_add(&words, field.data, field.length - 1);
        }
    return buf_failed(&words) ? -ENOMEM : fd_memory_file("rollbox-code", words.data, words.length);
}

int interpreter_request(const struct buf *request, struct buf *to) {
    struct wire_field field;
    size_t position = 0;

    wire_begin(to, GUEST_EXEC, 0);
    add_program(to, true);
    while (wire_next(request->data + sizeof(struct wire_header),
               request->length - sizeof(struct wire_header), &position, &field) > 0)
        if (field.tag != GUEST_ARG)
            wire_add(to, field.tag, field.data, field.length);
    return buf_failed(to) ? -ENOMEM : 0;
}

void interpreter_started(struct profile *profile, const struct guest_record *record) {
    struct interpreter *interpreter = profile->serves;

    if (record->operation) {
        interpreter->n_restored++;
        interpreter->anew_in_a_row = 0;
        return;
    }
    interpreter->n_cold++;
    snprintf(interpreter->problem, sizeof interpreter->problem,
        "step %u of restoring it in a sandbox: %s", record->stage, restore_words(record));
    if (is_there(interpreter) && ++interpreter->anew_in_a_row == MAX_ANEW) {
        interpreter->tries = 0;
        interpreter->anew_in_a_row = 0;
        fail_interpreter(interpreter, true, "step %u of restoring it in a sandbox: %s",
            record->stage, restore_words(record));
    }
}

void interpreter_status(const struct engine *engine, struct buf *to) {
    unsigned ready = 0;
    uint64_t restored = 0, anew = 0;
    const char *problem = "";

    list_for_each(node, &engine->profiles.all) {
        const struct interpreter *interpreter =
            container_of(node, struct profile, node)->code.interpreter;

        if (!interpreter)
            continue;
        ready += interpreter->state == INTERPRETER_READY;
        restored += interpreter->n_restored;
        anew += interpreter->n_cold;
        if (interpreter->problem[0])
            problem = interpreter->problem;
    }
    buf_printf(to,
        "\"interpreters\": {\"ready\": %u, \"restored\": %llu, \"anew\": %llu, \"problem\": ",
        ready, (unsigned long long)restored, (unsigned long long)anew);
    json_add_string(to, problem, strlen(problem));
    buf_add_text(to, "}");
}
