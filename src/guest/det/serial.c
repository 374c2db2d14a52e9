/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serial: the threads of a sandbox take turns.
 *
 * At this level nearly every system call is sent to init (policy/determinism.c), and the calling
 * thread waits. So the sandbox comes to rest again and again: each of its threads waits in the
 * kernel, is held by init, or has made a call. Only then does one of the calling threads get its
 * answer. The choice follows from their ids and from the previous turn: the same thread again,
 * until it waits for something or has made some dozens of calls; then the next by id. Until the
 * sandbox rests again, only that thread runs, and those that its call has woken, each up to its
 * next call. The CPU decides the order between these, and the sandbox has only one.
 *
 * Rest is detected in /proc (vtime_idle.c), which takes longer than a call. It is not checked if a
 * call cannot have woken or created a thread: if the same thread makes the next call, it is the
 * only one that has moved.
 *
 * Futexes and waits for descriptors are held (vtime_wait.c), and their ends are turns like others.
 * No thread runs beside another that shares its memory, and none is released by a time-out of the
 * kernel.
 *
 * If a thread computes for longer than SERIAL_PATIENCE_NS while others wait for their turn, they
 * run beside it, one at a time. So a thread that is polled for in a loop, stopped, traced or
 * starved does not block the others for ever. From then on runs may differ.
 */
#include "guest/det/serial.h"

#include <errno.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "guest/det/det.h"
#include "guest/det/vtime.h"
#include "guest/state.h"
#include "image/process_image.h"
#include "sys/syscalls.h"

#define MAX_ASKED 2048
/* One for each process, by the low bits of its id: a collision does no harm. */
#define MARKS 65536
/* Number of calls in a turn: from SHORTEST on, different each time. With a constant number, a loop
 * whose length divides it would be left at the same place each time, perhaps with a lock that the
 * others need. */
#define SHORTEST_TURN 40
#define TURN_STEP 61
#define TURN_RANGE 127
#define FIRST_PAUSE_NS 20000 /* between checks: doubled each time */
#define LAST_PAUSE_NS 2000000
#define PAUSE_BY_COST 2
/* While a thread makes no calls: the time that another one has until its next call, and between
 * checks of whether the first still computes. */
#define BUSY_STEP_NS 50000000ll
#define MAX_CPUS 1024
#define THREAD_FLAG 0x00010000

_Static_assert(IMAGE_LOWEST == PLAN_PROGRAMS_FROM, "where programs begin");

enum action { QUESTION, END, PASS };

struct asked {
    struct seccomp_notif question; /* END and PASS use its id and pid only */
    int listener;
    int result; /* of an END */
    enum action action;
};

/* The effect that a call may have on other threads. */
enum effect {
    NONE,
    WAKES,   /* wakes threads that wait for anything but processes */
    SIGNALS, /* also threads that sleep */
    FORKS,
};

static serial_serve *serve_question;
static struct asked asked[MAX_ASKED];
static size_t n_asked;
static uint64_t has_threads[MARKS / 64];
static pid_t owner;               /* the thread whose turn it is, or was last */
static unsigned n_calls, n_turns; /* of this turn; of all turns */
static bool is_moving;            /* since the last known rest */
static bool must_look;            /* threads other than the owner may move */
static bool in_turn;
static bool has_woken, has_signalled; /* since init last looked for ended waits */
static bool is_busy;                  /* a thread has made no call for too long */
static unsigned waiting;              /* at the last rest: enum idle_waits */
static int64_t since_ns;              /* start of the time without rest */
static int64_t since_lost_ns;         /* lost time before that */
static int64_t look_ns, pause_ns, busy_look_ns;

/* ---- the threads that have asked ---- */

static void mark_threads(pid_t process) {
    has_threads[process % MARKS / 64] |= 1ull << process % 64;
}

static bool is_asked_by(pid_t thread) {
    for (size_t i = 0; i < n_asked; i++)
        if ((pid_t)asked[i].question.pid == thread)
            return true;
    return false;
}

bool serial_is_asking(pid_t thread) {
    bool is_asking = false;

    for (size_t i = 0; i < n_asked && !is_asking; i++)
        is_asking =
            (pid_t)asked[i].question.pid == thread &&
            ioctl(asked[i].listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &asked[i].question.id) == 0;
    return is_asking;
}

/* The first thread of a process has its id. */
static bool threads_of(pid_t thread) {
    return has_threads[thread % MARKS / 64] >> thread % 64 & 1 ||
           sys_call3(__NR_tgkill, thread, thread, 0) < 0;
}

static struct asked *add_asked(int listener) {
    struct asked *a = &asked[n_asked++];

    a->listener = listener;
    look_ns = 0;
    return a;
}

static struct asked take_asked(size_t i) {
    struct asked a = asked[i];

    asked[i] = asked[--n_asked];
    return a;
}

static void moves(void) {
    if (!is_moving) {
        since_ns = clock_now_ns();
        since_lost_ns = idle_lost_ns();
    }
    is_moving = true;
    must_look |= !in_turn;
    has_woken |= !in_turn;
}

void serial_ask(int listener, const struct seccomp_notif *question) {
    if (n_asked == MAX_ASKED) {
        answer_let_pass(listener, question->id);
        return;
    }
    struct asked *a = add_asked(listener);
    a->question = *question;
    a->action = QUESTION;
    if ((pid_t)question->pid != owner)
        moves();
}

static void ask_end(int listener, uint64_t id, pid_t thread, int result, bool passes) {
    if (n_asked == MAX_ASKED) {
        if (passes)
            answer_let_pass(listener, id);
        else
            answer_call(listener, id, result, 0);
        return;
    }
    struct asked *a = add_asked(listener);
    a->question = (struct seccomp_notif){ .id = id, .pid = (uint32_t)thread };
    a->result = result;
    a->action = passes ? PASS : END;
}

void serial_forget(int listener) {
    for (size_t i = n_asked; i-- > 0;)
        if (asked[i].listener == listener)
            (void)take_asked(i);
}

static bool is_later(pid_t thread, pid_t than) {
    return (thread > owner) == (than > owner) ? thread > than : than > owner;
}

/* The owner again, if allowed; else the next by id, and after the highest the lowest. */
static size_t choose_asked(void) {
    size_t best = 0;

    for (size_t i = 0; i < n_asked; i++) {
        pid_t thread = (pid_t)asked[i].question.pid;

        if (thread == owner && n_calls < SHORTEST_TURN + n_turns * TURN_STEP % TURN_RANGE &&
            !(asked[i].action == QUESTION && asked[i].question.data.nr == __NR_sched_yield))
            return i;
        if (is_later((pid_t)asked[best].question.pid, thread))
            best = i;
    }
    return best;
}

/* ---- what calls do to others ---- */

/* No thread waits for a file, a directory or /dev/null. */
static bool is_plain(pid_t thread, uint64_t fd) {
    struct stat st;

    return idle_stat(thread, fd, &st) && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));
}

static enum effect effect_of(const struct seccomp_notif *question) {
    switch (question->data.nr) {
    case __NR_fork:
    case __NR_vfork:
    case __NR_clone:
    case __NR_execve:
    case __NR_execveat:
        return FORKS;
    case __NR_exit:
    case __NR_exit_group:
    case __NR_kill:
    case __NR_tkill:
    case __NR_tgkill:
    case __NR_rt_sigqueueinfo:
    case __NR_rt_tgsigqueueinfo:
    case __NR_pidfd_send_signal:
    case __NR_ptrace:
        return SIGNALS;
    case __NR_mmap:
    case __NR_munmap:
    case __NR_mremap:
    case __NR_brk:
    case __NR_stat:
    case __NR_fstat:
    case __NR_lstat:
    case __NR_newfstatat:
    case __NR_statx:
    case __NR_access:
    case __NR_faccessat:
    case __NR_faccessat2:
    case __NR_readlink:
    case __NR_readlinkat:
    case __NR_getdents64:
    case __NR_getcwd:
    case __NR_lseek:
    case __NR_pread64:
    case __NR_set_tid_address:
    case __NR_set_robust_list:
    case __NR_rseq:
    case __NR_rt_sigprocmask:
    case __NR_prlimit64:
    case __NR_getrandom:
    case __NR_clock_gettime:
    case __NR_gettimeofday:
    case __NR_time:
    case __NR_times:
    case __NR_getrusage:
    case __NR_sysinfo:
    case __NR_getppid:
    case __NR_sched_yield:
    case __NR_sched_getaffinity:
    case __NR_pipe:
    case __NR_pipe2:
    case __NR_dup:
    case __NR_nanosleep:
    case __NR_clock_nanosleep:
    case __NR_poll:
    case __NR_ppoll:
    case __NR_select:
    case __NR_pselect6:
    case __NR_epoll_wait:
    case __NR_epoll_pwait:
    case __NR_epoll_pwait2:
    case __NR_wait4:
    case __NR_futex: /* init itself does its wake-ups */
        return NONE;
    case __NR_read:
    case __NR_write:
    case __NR_readv:
    case __NR_writev:
    case __NR_close:
    case __NR_ioctl:
    case __NR_fcntl:
        /* Closing may release a lock. */
        if ((waiting || wait_count()) && !(waiting & IDLE_WAITS_LOCK) &&
            is_plain((pid_t)question->pid, question->data.args[0]))
            return NONE;
        return WAKES;
    default:
        return WAKES;
    }
}

/* ---- a turn ---- */

static void turn_of(pid_t thread) {
    owner = thread;
    n_calls = 0;
    must_look = false;
    pause_ns = 0;
    look_ns = clock_now_ns() + FIRST_PAUSE_NS;
}

/* Waiting threads are held by init, so init wakes them. Operations that do more than wake are
 * turned into waking too many, which futexes allow. */
static void do_futex(const struct plan *plan, int listener, const struct seccomp_notif *question) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    pid_t thread = (pid_t)question->pid;
    bool shared = !(a[1] & FUTEX_PRIVATE_FLAG);
    size_t n;

    switch (a[1] & 0x7f) {
    case FUTEX_WAKE:
    case FUTEX_WAKE_BITSET:
        n = wait_wake(thread, a[0], shared, (uint32_t)a[2]);
        if (n)
            answer_call(listener, question->id, (long)n, 0);
        else
            answer_let_pass(listener, question->id);
        return;
    case FUTEX_WAKE_OP:
        wait_wake(thread, a[4], shared, UINT32_MAX);
        /* fall through */
    case FUTEX_REQUEUE:
    case FUTEX_CMP_REQUEUE:
        wait_wake(thread, a[0], shared, UINT32_MAX);
        answer_let_pass(listener, question->id);
        return;
    default:
        serve_question(plan, listener, question);
    }
}

static void answer_affinity(int listener, const struct seccomp_notif *question) {
    static const uint64_t one = 1;

    if (question->data.args[1] < sizeof one || question->data.args[1] % sizeof one)
        answer_let_pass(listener, question->id);
    else
        answer_written(listener, question->id,
            process_write_memory((pid_t)question->pid, question->data.args[2], &one, sizeof one),
            sizeof one);
}

static void reply_to_asked(const struct plan *plan, const struct asked *a) {
    if (a->action == END)
        answer_call(a->listener, a->question.id, a->result, 0);
    else if (a->action == PASS)
        answer_let_pass(a->listener, a->question.id);
    else if (a->question.data.nr == __NR_futex)
        do_futex(plan, a->listener, &a->question);
    else if (a->question.data.nr == __NR_clone && a->question.data.args[0] & THREAD_FLAG) {
        mark_threads(process_of_thread((pid_t)a->question.pid));
        answer_let_pass(a->listener, a->question.id);
    } else if (a->question.data.nr == __NR_sched_getaffinity)
        answer_affinity(a->listener, &a->question);
    else
        serve_question(plan, a->listener, &a->question);
}

static void give_turn(const struct plan *plan, size_t i) {
    struct asked a = take_asked(i);
    uint64_t id = a.question.id;

    if (ioctl(a.listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) < 0)
        return; /* killed meanwhile */
    n_turns += (pid_t)a.question.pid != owner;
    n_calls = (pid_t)a.question.pid != owner ? 0 : n_calls + 1;
    owner = (pid_t)a.question.pid;
    enum effect effect = a.action == QUESTION ? effect_of(&a.question) : NONE;
    has_woken |= effect != NONE;
    has_signalled |= effect == SIGNALS;
    must_look = effect > WAKES || (effect == WAKES && waiting);
    since_ns = clock_now_ns();
    since_lost_ns = idle_lost_ns();
    pause_ns = 0;
    look_ns = since_ns + FIRST_PAUSE_NS;
    in_turn = true;
    reply_to_asked(plan, &a);
    in_turn = false;
    vtime_disturb();
}

/* ---- rest ---- */

/* A wait that ended by what was done since has become a call, or its thread moves. True if no
 * thread moves. */
static bool has_settled(void) {
    is_moving = must_look = false;
    if (has_signalled)
        (void)wait_end_changed();
    has_signalled = false;
    if (is_moving)
        return false;
    if (has_woken)
        wait_pass_ready();
    has_woken = false;
    if (!is_moving)
        (void)vtime_end_overdue();
    return !is_moving;
}

static void look_later(int64_t now, int64_t cost) {
    pause_ns = pause_ns ? pause_ns * 2 : FIRST_PAUSE_NS;
    if (pause_ns > LAST_PAUSE_NS)
        pause_ns = LAST_PAUSE_NS;
    look_ns = now + (pause_ns > cost * PAUSE_BY_COST ? pause_ns : cost * PAUSE_BY_COST);
    if (now - since_ns - idle_lost_of_ns(now - since_ns, since_lost_ns) > SERIAL_PATIENCE_NS &&
        !is_busy) {
        is_busy = true;
        busy_look_ns = now + BUSY_STEP_NS;
    }
}

static bool is_at_rest(int64_t now) {
    if (listeners_is_asked() || idle_look(false) == IDLE_NOT) {
        look_later(clock_now_ns(), clock_now_ns() - now);
        return false;
    }
    is_busy = false;
    has_woken = true;
    has_signalled |= idle_has_ended(owner); /* its parent is notified */
    waiting = idle_waits();
    return has_settled();
}

/* While a thread computes: may the next run, because the last one has made another call, waits, or
 * takes too long? */
static bool may_resume_beside(int64_t now) {
    if (now >= busy_look_ns) {
        busy_look_ns = now + BUSY_STEP_NS;
        if (is_at_rest(now))
            return true;
    }
    if (!is_asked_by(owner) && idle_runs(owner) && now - since_ns < BUSY_STEP_NS) {
        look_ns = now + FIRST_PAUSE_NS * 5;
        return false;
    }
    return has_settled();
}

static bool may_resume(void) {
    if (!is_moving)
        return has_settled();
    bool is_back = is_asked_by(owner);
    if (is_back && !must_look)
        return has_settled();
    int64_t now = clock_now_ns();
    if (now < look_ns)
        return false;
    if (is_busy)
        return may_resume_beside(now);
    if (!is_back && idle_runs(owner)) {
        look_later(now, 0);
        return false;
    }
    return is_at_rest(now);
}

/* A thread has made a call, or a wait that init holds may have ended once all threads rest. */
static bool is_wanted(void) {
    return n_asked || (wait_count() && (has_signalled || has_woken || is_moving));
}

void serial_step(const struct plan *plan) {
    if (tree_is_frozen())
        return;
    while (is_wanted() && may_resume())
        if (n_asked)
            give_turn(plan, choose_asked());
}

int64_t serial_next_ns(void) {
    if (!is_wanted() || tree_is_frozen())
        return INT64_MAX;
    return is_moving ? look_ns : 0;
}

void serial_release(const struct plan *plan) {
    while (n_asked)
        give_turn(plan, 0);
}

static bool get_is_moving(void) {
    return is_moving;
}

static size_t count(void) {
    return n_asked;
}

static const struct serial_ops ops = {
    .is_moving = get_is_moving,
    .moves = moves,
    .has_asked = is_asked_by,
    .has_threads = threads_of,
    .count = count,
    .ask_end = ask_end,
    .turn_of = turn_of,
};

void serial_begin(serial_serve *serve) {
    uint64_t mask[MAX_CPUS / 64] = { 0 };
    unsigned cpu = 0;

    serve_question = serve;
    serial_ops = &ops;
    /* The present CPU: sandboxes that start together are on different ones. */
    if (sys_call3(__NR_getcpu, &cpu, NULL, NULL) == 0 && cpu < MAX_CPUS) {
        mask[cpu / 64] = 1ull << cpu % 64;
        (void)sys_call3(__NR_sched_setaffinity, 0, sizeof mask, mask);
    }
    (void)sys_prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
}
