/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holding still and resuming: determinism in snapshots of running processes.
 *
 * The dump worker stops the processes and makes system calls in them. It uses a socket (quiesce.h)
 * to ask init for its help and its state. Init does nothing else until those calls are made, which
 * takes as long as reading the memory of the processes. In a fork of the sandbox, another init
 * starts with that state before any process resumes: the clock, the ends of waits, the timers, and
 * the number of the next command. Random streams need no transfer, because each process keeps its
 * own in its resource limits.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/det/abs_timers.h"
#include "guest/det/det.h"
#include "guest/det/file_times.h"
#include "guest/det/vtime.h"
#include "guest/quiesce.h"
#include "guest/restore/restore_image.h"
#include "guest/state.h"
#include "sys/syscalls.h"

static int64_t began_ns; /* start of the quiesce, by the real clock */

/* ---- what init knows ---- */

/* "0.00 0.00 0.00 1/50 LAST", in a /proc without covered files. */
static uint32_t last_pid(void) {
    char text[128];
    int fd = openat(determinism_proc, "loadavg", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *at = strrchr(text, ' ');
    return at ? (uint32_t)strtoul(at + 1, NULL, 10) : 0;
}

static int send_word(int r) {
    int32_t word = r;

    return fd_send(state_capturer, &word, sizeof word, NULL, 0);
}

static int send_entries(const void *entries, uint32_t n, size_t size) {
    int r = 0;

    for (uint32_t i = 0; i < n && r >= 0; i += QUIESCE_AT_ONCE) {
        uint32_t left = n - i;

        r = fd_send(state_capturer, (const char *)entries + i * size,
            (left < QUIESCE_AT_ONCE ? left : QUIESCE_AT_ONCE) * size, NULL, 0);
    }
    return r;
}

static int send_state(const struct plan *plan) {
    static struct image_wait waits[IMAGE_MAX_WAITS];
    static struct image_alarm alarms[IMAGE_MAX_ALARMS];
    struct quiesce_state state = { .determinism = { .is_there = 1, .last_pid = last_pid() } };

    dispatch_tell(plan, &state.determinism);
    if (plan->flags & PLAN_VIRTUAL) {
        vtime_tell(&state.determinism);
        state.n_waits = wait_tell(waits, &state.n_again);
        state.n_alarms = timer_tell(alarms);
    }
    int r = send_word(0);
    if (r == 0)
        r = fd_send(state_capturer, &state, sizeof state, NULL, 0);
    if (r == 0)
        r = send_entries(waits, state.n_waits, sizeof waits[0]);
    return r < 0 ? r : send_entries(alarms, state.n_alarms, sizeof alarms[0]);
}

/* ---- the dump worker ---- */

static void end_quiesce(void) {
    timer_unmark();
    close(state_capturer);
    state_capturer = -1;
    vtime_stood(clock_now_ns() - began_ns);
}

/* False: the worker is gone. */
static bool receive_message(struct quiesce_message *message) {
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds = 0;
    ssize_t n = fd_receive(state_capturer, message, sizeof *message, fds, &n_fds);

    return n == sizeof *message && message->n <= QUIESCE_MAX_THREADS;
}

/* Waits for the next message. With `passes`, system calls that arrive are answered, once only the
 * dump worker can have made them. */
static void await_orders(bool passes) {
    static struct pollfd events[1 + DETERMINISM_MAX_LISTENERS];

    for (;;) {
        size_t n = passes ? listeners_fill(events + 1) : 0;

        events[0] = (struct pollfd){ state_capturer, POLLIN, 0 };
        if (sys_call5(__NR_ppoll, events, 1 + n, NULL, NULL, 0) < 0)
            continue;
        if (events[0].revents)
            return;
        for (size_t i = 1; i <= n; i++)
            if (events[i].revents & POLLIN)
                listeners_pass(events[i].fd);
    }
}

void quiesce_serve(const struct plan *plan) {
    struct quiesce_message message;

    for (bool passes = false;; await_orders(passes)) {
        int r = 0;

        if (!receive_message(&message)) {
            end_quiesce();
            return;
        }
        switch ((enum quiesce_command)message.order) {
        case QUIESCE_HOLD:
            vtime_settle();
            abs_timers_settle();
            file_times_settle();
            break;
        case QUIESCE_GIVE_BACK:
            for (uint32_t i = 0; i < message.n; i++)
                dispatch_give_back(message.threads[i]);
            break;
        case QUIESCE_PASS:
            passes = true;
            timer_mark();
            /* fall through */
        case QUIESCE_REPLY:
            r = send_state(plan);
            if (r == 0)
                continue;
            break;
        case QUIESCE_FORGET:
            for (uint32_t i = 0; i < message.n; i++)
                wait_forget_again(message.threads[i]);
            break;
        case QUIESCE_RELEASE:
            timer_unmark();
            (void)send_word((int)wait_count_again());
            return;
        case QUIESCE_LEFT:
            (void)send_word((int)wait_count_left());
            return;
        default:
            r = -EBADMSG;
        }
        if (send_word(r) < 0) {
            end_quiesce();
            return;
        }
    }
}

int quiesce_begin(const struct plan *plan, int take_socket) {
    if (quiesce_is() || !determinism_wanted(plan) || plan->flags & PLAN_SERIAL) {
        close(take_socket);
        return -EBUSY;
    }
    state_capturer = take_socket;
    began_ns = clock_now_ns();
    await_orders(false);
    quiesce_serve(plan);
    return 0;
}

/* ---- resuming ---- */

#if defined(__x86_64__) && !defined(__GLIBC__)

int quiesce_resume(const struct box *box) {
    const struct image_determinism *knew = &restored.header->determinism;
    const uint32_t flags = box->plan->flags & PLAN_VIRTUAL ? IMAGE_VIRTUAL : 0;

    if (!determinism_wanted(box->plan))
        return knew->is_there ? -EBADMSG : 0;
    if (!knew->is_there || knew->flags != flags)
        return -EBADMSG;
    if (flags)
        vtime_resume(knew);
    return dispatch_resume(box->plan, knew,
        restored.header->clocks[2] - restored.header->clocks[0] + determinism_uptime_ahead_ns);
}

/* The address of the clock page; 0: not mapped yet. */
static uint64_t page_of(const struct image_process *process) {
    const struct image_area *areas =
        restored_table(areas, struct image_area) + process->areas.first;
    const struct image_file *files = restored_table(files, struct image_file);

    for (uint32_t i = 0; i < process->areas.n; i++)
        if (areas[i].kind == IMAGE_MEMORY && files[areas[i].path].kind == IMAGE_FILE_CLOCK &&
            !areas[i].offset)
            return areas[i].start;
    return 0;
}

static uint64_t vdso_of(const struct image_process *process) {
    const struct image_area *areas =
        restored_table(areas, struct image_area) + process->areas.first;

    for (uint32_t i = 0; i < process->areas.n; i++)
        if (areas[i].kind == IMAGE_VDSO)
            return areas[i].start;
    return 0;
}

int quiesce_adopt(const struct image_process *process, int take_listener) {
    uint64_t vdso = vdso_of(process), page = page_of(process);
    int r = listeners_adopt(take_listener);

    /* The vDSO there is still the project's own: the process has executed nothing but the
     * restore. */
    return r < 0 || process->is_fresh || !vdso ? r : vdso_patch((pid_t)process->pid, vdso, page, 0);
}

/* Starts the clock as for a first command, and then sets it to its old time. This is the command
 * that was numbered. */
int quiesce_begin_command(const struct plan *plan, int take_listener) {
    const struct image_determinism *knew = &restored.header->determinism;
    const uint32_t flags = plan->flags & PLAN_VIRTUAL ? IMAGE_VIRTUAL : 0;
    int r = !knew->is_there || knew->flags != flags ? -EBADMSG : dispatch_begin_command(plan, knew);

    if (r < 0)
        close(take_listener);
    return r < 0 ? r : quiesce_adopt(restored_process(0), take_listener);
}

void quiesce_continue(const int *files, const int *externals, size_t n_externals) {
    if (!(restored.header->determinism.flags & IMAGE_VIRTUAL))
        return;
    wait_resume(restored_table(waits, struct image_wait), (uint32_t)restored.header->waits.n);
    timer_resume(
        restored_table(alarms, struct image_alarm), (uint32_t)restored.header->alarms.n, files);
    for (size_t i = 0; i < n_externals; i++)
        idle_add_external(externals[i]);
    vtime_disturb();
}

#endif
