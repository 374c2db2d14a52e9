/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual time: the actions of its processes advance the sandbox's clock.
 *
 * The clock is the sum of two numbers. The ticks are on a page that all processes share; each query
 * adds one, without a system call (det/vdso_patch.c). The other number is how far init has jumped.
 * All clocks are that sum plus a constant. When every process of the sandbox waits (vtime_idle.c),
 * init jumps to the earliest future event, a time-out (vtime_wait.c) or a timer (vtime_timer.c). It
 * ends that one event, and checks for rest again before the next. So events of the same time happen
 * in an order that does not depend on CPUs.
 *
 * The clock stands while a process computes. Three rules keep this from lasting for ever:
 *
 * - Each wait also ends by the real clock: a wait that the kernel executes at its real time-out, a
 *   wait that init holds GRACE_NS later. This does not apply while the clock jumps from event to
 *   event, however slowly, as on an overloaded machine; then each event comes in its turn.
 * - While a sandbox has not rested for BUSY_NS, the clock moves at the real rate, so that a loop
 *   that computes until a time has passed comes to an end.
 * - The clock does not move while no command runs, or while a process waits for input from outside:
 *   between an agent's actions no time passes.
 *
 * Guests can write the page. Init reads the ticks from it, and any value is a valid time; the jumps
 * are stored in init. Tables are bounded: a wait or timer that does not fit is left to the kernel
 * and its real time.
 */
#include "guest/det/vtime.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/times.h>
#include <unistd.h>

#include "base/clock.h"
#include "guest/det/det.h"
#include "guest/det/file_times.h"
#include "guest/det/serial.h"
#include "guest/det/sysinfo.h"
#include "guest/state.h"
#include "sys/syscalls.h"

/* Sizes of the kernel's structs: those of a C library may be longer. */
#define RUSAGE_BYTES 144
#define SLOT_NS 1000000ll /* events this close together are simultaneous */
#define LAST_PAUSE_NS 2000000ll
#define LAST_PAUSE_OUTSIDE_NS 100000000ll
#define PAUSE_BY_COST 20 /* looking takes at most a twentieth of the time */
/* Pause of a sandbox in which nothing happens; from here on it doubles. */
#define MANY_JUMPS 200000
#define PAUSE_OF_MANY_NS 1000000ll
/* Interval of the checks whether a thread runs; a thread that is found running at each check during
 * this time is busy, */
#define BUSY_NS 5000000000ll
#define BUSY_STEP_NS                                                                               \
    50000000ll /* if the checks were this far apart; then the clock is moved at each check */

static int64_t due_ns; /* the next wait that ends by the real clock */
static uint64_t n_jumps;
static int64_t busy_look_ns; /* time of the next check whether the sandbox is busy */
static bool has_stood;       /* stopped for a dump, and not resumed yet */
static int64_t busy_from_ns,
    busy_found_ns; /* start of the time without rest, 0: it rests; and when that was last seen */
static int64_t busy_lost_ns; /* lost time before that */

/* ---- answers ---- */

static void give_page(int listener, const struct seccomp_notif *question) {
    struct seccomp_notif_addfd give = { .id = question->id,
        .flags = SECCOMP_ADDFD_FLAG_SEND,
        .srcfd = (uint32_t)vtime_page_fd,
        .newfd_flags = O_CLOEXEC };

    if (vtime_give(listener, &give) < 0)
        answer_call(listener, question->id, 0, -EMFILE);
}

static void answer_clock(int listener, const struct seccomp_notif *question) {
    const uint64_t *arguments = (const uint64_t *)question->data.args;
    clockid_t clock =
        question->data.nr == __NR_clock_gettime ? (clockid_t)(int)arguments[0] : CLOCK_REALTIME;
    uint64_t vdso;
    int64_t base;

    if (clock == VIRTUAL_ASK_PAGE || clock == VIRTUAL_TELL_PAGE) {
        bool ours = process_vdso_of((pid_t)question->pid, &vdso) &&
                    vdso_contains(vdso, question->data.instruction_pointer);

        if (ours && clock == VIRTUAL_ASK_PAGE) {
            give_page(listener, question);
            return;
        }
        answer_call(listener, question->id, 0,
            ours ? vdso_tell_page((pid_t)question->pid, vdso, arguments[1]) : -EINVAL);
        return;
    }
    if (vtime_base(clock, &base))
        answer_time(listener, question, base + vtime_query());
    else if (clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID)
        answer_time(listener, question, vtime_query_cpu());
    else
        answer_let_pass(listener, question->id);
}

/* Alarm clocks, which a machine need not have; other clocks are the kernel's. */
static void answer_resolution(int listener, const struct seccomp_notif *question) {
    static const int64_t resolution[2] = { 0, 1 };
    clockid_t clock = (clockid_t)(int)question->data.args[0];
    uint64_t to = question->data.args[1];

    if (clock == CLOCK_REALTIME_ALARM || clock == CLOCK_BOOTTIME_ALARM)
        answer_written(listener, question->id,
            to ? process_write_memory((pid_t)question->pid, to, resolution, sizeof resolution) : 0,
            0);
    else
        answer_let_pass(listener, question->id);
}

static void answer_times(int listener, const struct seccomp_notif *question) {
    struct tms times = { .tms_utime = vtime_query_cpu() / (VIRTUAL_NS / 100) };
    uint64_t to = question->data.args[0];
    long r = to ? process_write_memory((pid_t)question->pid, to, &times, sizeof times) : 0;

    answer_written(listener, question->id, r,
        (long)((PLAN_VIRTUAL_UPTIME_S * VIRTUAL_NS + vtime_now()) / (VIRTUAL_NS / 100)));
}

/* The other fields differ between any two runs. */
static void answer_rusage(int listener, const struct seccomp_notif *question) {
    int64_t cpu = vtime_query_cpu();
    int who = (int)question->data.args[0];
    struct rusage usage = { .ru_utime = { cpu / VIRTUAL_NS, cpu % VIRTUAL_NS / 1000 } };

    if (who != RUSAGE_SELF && who != 1 /* RUSAGE_THREAD */) {
        if (who != RUSAGE_CHILDREN) {
            answer_let_pass(listener, question->id);
            return;
        }
        usage.ru_utime = (struct timeval){ 0 };
    }
    answer_written(listener, question->id,
        process_write_memory((pid_t)question->pid, question->data.args[1], &usage, RUSAGE_BYTES),
        0);
}

static void answer_sysinfo(int listener, const struct seccomp_notif *question) {
    struct sysinfo info;

    if (!sysinfo_fill(&info)) {
        answer_let_pass(listener, question->id);
        return;
    }
    info.uptime = PLAN_VIRTUAL_UPTIME_S + vtime_now() / VIRTUAL_NS;
    info.freeram = info.totalram / 2;
    sysinfo_answer_with(listener, question, &info);
}

static enum idle check_idle(bool delivers) {
    int64_t begun = clock_now_ns();
    enum idle idle = idle_look(delivers);

    vtime_pace.looked_ns = clock_now_ns();
    vtime_pace.cost_ns = vtime_pace.looked_ns - begun -
                         kernel_spent_ns(); /* this is rare, and no reason to look less often */
    return idle;
}

bool vtime_answer(int listener, const struct seccomp_notif *asked) {
    struct seccomp_notif of = *asked, *question = &of;

    vtime_disturb();
    (void)
        vtime_tell_uptime(); /* programs that measure time by the clock itself do not need a jump */
    wait_asked(question);
    switch (question->data.nr) {
    case __NR_clock_gettime:
    case __NR_gettimeofday:
    case __NR_time:
        answer_clock(listener, question);
        return true;
    case __NR_clock_getres:
        answer_resolution(listener, question);
        return true;
    case __NR_times:
        answer_times(listener, question);
        return true;
    case __NR_getrusage:
        answer_rusage(listener, question);
        return true;
    case __NR_sysinfo:
        answer_sysinfo(listener, question);
        return true;
    default:
        return wait_answer(listener, question) || timer_answer(listener, question);
    }
}

/* ---- the loop ---- */

static int64_t earliest_deadline(void) {
    int64_t waits = wait_earliest(), timers = timer_earliest();

    return waits < timers ? waits : timers;
}

/* The first of the events that are simultaneous with the earliest one. */
static bool first_of_all(bool *ret_is_timer) {
    struct virtual_event wait, timer;
    int64_t first = earliest_deadline(),
            until = first < VIRTUAL_NEVER - SLOT_NS ? first + SLOT_NS : VIRTUAL_NEVER - 1;
    bool waits = wait_first(until, &wait), timers = timer_first(until, &timer);

    *ret_is_timer = timers && (!waits || vtime_is_before(&timer, &wait));
    return waits || timers;
}

/* False: no event may end now. */
static bool end_one(void) {
    bool is_timer;

    file_times_settle();
    while (first_of_all(&is_timer))
        if (is_timer ? timer_fire_first() : wait_end_first()) {
            vtime_disturb();
            vtime_pace.jumped_ns = clock_now_ns();
            return true;
        }
    return false;
}

bool vtime_end_overdue(void) {
    timer_pass();
    if ((!wait_count() && !timer_any()) || earliest_deadline() >= vtime_now() - SLOT_NS)
        return false;
    return end_one();
}

int64_t vtime_next_ns(void) {
    if (!vtime_is_on() || tree_is_frozen() || quiesce_is())
        return INT64_MAX;
    int64_t next = command_count() ? busy_look_ns : INT64_MAX;
    if (!wait_count() && !timer_any())
        return next;
    if (wait_cutting_until())
        return wait_cutting_until();
    if (due_ns < next)
        next = due_ns;
    return command_count() && !serial_count() && vtime_pace.look_ns < next ? vtime_pace.look_ns
                                                                           : next;
}

static int64_t busy_ns(void) {
    return serial_is_on() ? SERIAL_PATIENCE_NS : BUSY_NS;
}

static void has_rested(int64_t now) {
    busy_from_ns = 0;
    busy_look_ns = now + busy_ns();
}

/* Whether or not there is an event to jump to. */
static void look_for_rest(int64_t now) {
    if (now < busy_look_ns || !command_count())
        return;
    if (check_idle(false) != IDLE_NOT) {
        has_rested(now);
        return;
    }
    if (!busy_from_ns) {
        busy_from_ns = now;
        busy_lost_ns = idle_lost_ns();
    } else if (now - busy_from_ns - (idle_lost_ns() - busy_lost_ns) >= busy_ns())
        vtime_reach(vtime_after(now - busy_found_ns));
    busy_found_ns = now;
    busy_look_ns = now + BUSY_STEP_NS;
}

void vtime_stand(void) {
    has_stood = vtime_is_on();
    idle_stand();
}

/* Ends the time that a dump took. */
static void resume(int64_t now) {
    has_stood = false;
    wait_stood(now, INT64_MAX);
    timer_stood(now, INT64_MAX);
    busy_from_ns = 0;
    busy_look_ns = now + BUSY_STEP_NS; /* not before most programs are over */
}

/* This is no rest: if one dump follows another, a loop that computes until a time has passed must
 * still end. */
void vtime_stood(int64_t ns) {
    int64_t now = clock_now_ns();

    idle_stand();
    wait_stood(now, ns);
    timer_stood(now, ns);
    vtime_pace.jumped_ns += ns;
    busy_from_ns += busy_from_ns ? ns : 0;
    busy_found_ns += ns;
    vtime_disturb();
}

/* Sets the time of the next check, after one that found no rest. */
static void rest_until(int64_t at_most_ns) {
    int64_t cost = vtime_pace.cost_ns * PAUSE_BY_COST;

    vtime_pace.look_ns =
        vtime_pace.looked_ns + (cost > vtime_pace.pause_ns ? cost : vtime_pace.pause_ns);
    vtime_pace.pause_ns =
        vtime_pace.pause_ns * 2 < at_most_ns ? vtime_pace.pause_ns * 2 : at_most_ns;
}

void vtime_step(bool quiet) {
    int64_t now = clock_now_ns(), first;

    if (tree_is_frozen())
        return;
    if (has_stood && !vtime_stands())
        resume(now);
    look_for_rest(now);
    if (!wait_count() && !timer_any())
        return;
    int64_t waits = wait_look(now), timers = timer_look(now);
    due_ns = waits < timers ? waits : timers;
    if (wait_cutting_until() || !command_count() || now < vtime_pace.look_ns ||
        (first = earliest_deadline()) == VIRTUAL_NEVER) {
        if (now >= vtime_pace.look_ns)
            vtime_pace.look_ns = now + LAST_PAUSE_OUTSIDE_NS;
        return;
    }
    /* If a process queries the clock often enough, time passes without rest. */
    if (first + SLOT_NS < vtime_now() && !serial_is_on() && end_one())
        return;
    if (!quiet || serial_count())
        return;
    enum idle idle = check_idle(true);
    vtime_pace.awaits_outside = idle == IDLE_OUTSIDE;
    if (idle == IDLE_OUTSIDE) {
        int64_t next = wait_end_over(now);

        has_rested(now);
        rest_until(LAST_PAUSE_OUTSIDE_NS);
        vtime_pace.look_ns = next < vtime_pace.look_ns ? next : vtime_pace.look_ns;
        return;
    }
    if (idle == IDLE_NOT) {
        rest_until(LAST_PAUSE_NS);
        return;
    }
    has_rested(now);
    if (serial_is_on())
        wait_pass_ready();
    if (serial_count() || wait_end_changed()) {
        vtime_disturb();
        return;
    }
    wait_take_back(); /* all wait, and can be seen */
    if (!end_one()) {
        rest_until(LAST_PAUSE_NS);
        return;
    }
    if (++n_jumps > MANY_JUMPS)
        vtime_pace.look_ns = clock_now_ns() + PAUSE_OF_MANY_NS;
}

void vtime_begin(const struct plan *plan) {
    vtime_begin_clock(plan);
    vtime_stand();
    kernel_begin(plan);
}

void vtime_started(int listener, const int *streams) {
    n_jumps = 0;
    if (vtime_is_on()) {
        idle_add_outside(listener, streams);
        vtime_disturb();
    }
}

void vtime_forget(int listener) {
    wait_forget(listener);
    idle_forget_outside(listener);
}

void vtime_executed(pid_t pid) {
    timer_executed(pid);
}
