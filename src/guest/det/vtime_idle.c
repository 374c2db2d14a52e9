/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does every thread in the sandbox wait?
 *
 * /proc shows one thread after the other, and a thread that waited when it was inspected may have
 * been woken when the last one is. So all are inspected twice, with the number of times that each
 * was scheduled on a CPU. If a thread is off its CPU the first time, waits the second time, and was
 * not scheduled in between, then it waited from the first inspection to the second. All these spans
 * contain the moment between the two rounds.
 *
 * A thread that is about to wait already shows as waiting while it still runs. So the first
 * inspection reads its system call, which the kernel tells only of a thread that is off its CPU.
 *
 * Threads whose calls init holds are known to wait. The parent of a vfork shows an uninterruptible
 * wait (D), and its child is inspected itself; all other threads in that state will continue by
 * themselves. A thread that has just made an intercepted call seems to wait as well, so there must
 * be no such call at the end.
 *
 * The files of the threads that were inspected last are kept open, which makes an inspection four
 * times as fast.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "guest/det/det.h"
#include "guest/det/serial.h"
#include "guest/det/vtime.h"
#include "guest/state.h"
#include "sys/syscalls.h"

#define NEVER_BLOCKED (1ul << (SIGKILL - 1) | 1ul << (SIGSTOP - 1))
#define MAX_SEEN 2048    /* threads; with more, rest is not detected */
#define MAX_OUTSIDE 4096 /* more than the streams of all listeners and of an image */
#define MAX_POLLED 16
#define VFORK_FLAG 0x4000
#define MAX_KEPT 61 /* threads whose files are kept open */
#define KEPT_FILES 3
#define MAX_LOST 20         /* at most all but this fraction of a time counts as lost; */
#define MAX_LOST_OF_TURN 4  /* where it is ten times as long anyway, all but this; */
#define SHORTEST_NS 1000000 /* of a shorter one nothing */
#define MOSTLY 0.9          /* with this share of the time, nothing that matters was lost */

struct seen {
    pid_t thread;
    uint64_t runs;
    int call; /* the call that it waits in, or -errno: none */
    uint64_t arguments[6];
};

/* A thread's files, opened on first use, because some of a dead thread's cannot be opened; 0: not
 * open. */
struct kept {
    pid_t thread;
    int files[KEPT_FILES];
};

enum kept_file { STAT, SCHEDSTAT, SYSCALL };
static const char *const kept_names[KEPT_FILES] = {
    [STAT] = "/stat", [SCHEDSTAT] = "/schedstat", [SYSCALL] = "/syscall"
};

static struct seen seen[MAX_SEEN];
static struct kept kept[MAX_KEPT];
static size_t n_seen;

/* CPU time of a thread in nanoseconds, and how long it waited for a CPU. */
struct share {
    pid_t thread;
    uint64_t ran, waited;
};

static pid_t runner;                /* the thread that the check found running; 0: none */
static struct share runners, ours;  /* as of the last check that waited */
static double part_lost;            /* fraction of the time, by the thread last found running */
static int64_t lost_ns, counted_ns; /* total until then */
static int64_t rest_lost_ns;        /* the part of it before the last rest */

/* Directions from and to the outside. */
enum way { IN = 1, OUT = 2 };

#define NO_LISTENER (-1) /* part of the image; never removed */
#define GONE (-2)

/* A stream of a command. Its listener exists as long as the command or processes that it has left
 * behind. Processes of other commands may have received the stream, so it is remembered beyond that
 * while there is room. A terminal is not: its other end goes with the command, and its number is
 * reused. */
struct outside {
    uint64_t inode;
    uint32_t device; /* in the kernel's encoding */
    unsigned ways;
    int listener;
    bool is_terminal;
};

static struct outside outside[MAX_OUTSIDE]; /* the first n_outside entries; the kernel allocates the
                                               memory on first use */
static size_t n_outside;

struct round {
    size_t n;
    bool again; /* the second round */
};

static void forget_kept(struct kept *k) {
    for (int i = 0; i < KEPT_FILES; i++)
        if (k->files[i])
            close(k->files[i]);
    *k = (struct kept){ 0 };
}

/* Reads a file of a thread: its length, or -errno. A file that is kept open may belong to an ended
 * thread whose id is in use again. */
static ssize_t read_file(pid_t thread, enum kept_file which, char *text, size_t size) {
    struct kept *k = &kept[(size_t)thread % MAX_KEPT];

    for (int tries = 0; tries < 2; tries++) {
        if (k->thread != thread)
            forget_kept(k);
        k->thread = thread;
        if (!k->files[which]) {
            int fd = process_open(thread, kept_names[which], O_RDONLY);
            if (fd < 0)
                return fd;
            k->files[which] = fd;
        }
        long n = sys_call4(__NR_pread64, k->files[which], text, size - 1, 0);
        if (n > 0) {
            text[n] = '\0';
            return n;
        }
        forget_kept(k);
    }
    return -ESRCH;
}

static bool is_missing(ssize_t r) {
    return r == -ENOENT || r == -ESRCH;
}

/* The text after a heading at the beginning of a line. */
static const char *find_heading(const char *text, const char *heading) {
    size_t length = strlen(heading);

    for (; *text; text++)
        if (*text == '\n' && !strncmp(text + 1, heading, length))
            return text + 1 + length;
    return NULL;
}

static const char *after_fields(const char *at, unsigned n) {
    while (n--) {
        at += strcspn(at, " ");
        at += *at == ' ';
    }
    return at;
}

/* How often it was scheduled; 0: the kernel does not count. */
static uint64_t runs_of(pid_t thread) {
    char text[128];

    return read_file(thread, SCHEDSTAT, text, sizeof text) > 0
               ? strtoul(after_fields(text, 2), NULL, 10)
               : 0;
}

/* The letter of its state, and the number of threads of its process. */
static ssize_t state_of(pid_t thread, char *ret_state, uint64_t *ret_threads) {
    char text[1024];
    ssize_t n = read_file(thread, STAT, text, sizeof text);
    const char *at = n > 0 ? strrchr(text, ')')
                           : NULL; /* the name may contain anything, but no bracket follows it */

    if (!at || strlen(at) < 4)
        return n < 0 ? n : -EIO;
    *ret_state = at[2];
    *ret_threads = strtoul(after_fields(at + 2, 17), NULL, 10);
    return 0;
}

static int each_of(int take_directory, bool (*each)(void *data, pid_t id), void *data) {
    if (take_directory < 0)
        return take_directory;
    int r = tree_each_number(take_directory, each, data);
    close(take_directory);
    return r;
}

static int each_thread(pid_t process, bool (*each)(void *data, pid_t thread), void *data) {
    return each_of(process_open(process, "/task", O_RDONLY | O_DIRECTORY), each, data);
}

static int each_process(bool (*each)(void *data, pid_t process), void *data) {
    return each_of(openat(determinism_proc, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), each, data);
}

/* ---- what others have of the machine ---- */

static struct share share_of(pid_t thread) {
    struct share share = { .thread = thread };
    char text[128];

    if (!thread || read_file(thread, SCHEDSTAT, text, sizeof text) <= 0)
        return (struct share){ 0 };
    share.ran = strtoul(text, NULL, 10);
    share.waited = strtoul(after_fields(text, 1), NULL, 10);
    return share;
}

static bool count_state(unsigned *n, char state) {
    return state != 'R' || ++*n < MAX_LOST;
}

static bool count_thread(void *data, pid_t thread) {
    uint64_t threads;
    char state;

    return state_of(thread, &state, &threads) < 0 || count_state(data, state);
}

static bool count_runners_of(void *data, pid_t pid) {
    uint64_t threads = 0;
    char state;

    if (pid == 1 || command_is_agent(pid) || state_of(pid, &state, &threads) < 0)
        return true;
    if (threads <= 1)
        return count_state(data, state);
    (void)each_thread(pid, count_thread, data);
    return *(unsigned *)data < MAX_LOST;
}

/* Counts only as far as it matters. */
static unsigned n_runners(void) {
    unsigned n = 0;

    (void)each_process(count_runners_of, &n);
    return n ? n : 1;
}

/* The fraction of time that is lost: the CPU share of a running thread since it was last seen or
 * born, times the number of running threads, because they also compete with each other, which is
 * the sandbox's own load. */
static void estimate_share(const struct share *before, const struct share *now) {
    bool is_same =
        before->thread == now->thread && now->ran >= before->ran &&
        now->waited >= before->waited; /* its id may belong to another thread meanwhile */
    uint64_t ran = now->ran - (is_same ? before->ran : 0),
             waited = now->waited - (is_same ? before->waited : 0);

    if (!now->thread || !(ran + waited))
        return;
    double had = (double)ran / (double)(ran + waited);
    if (had < MOSTLY)
        had *= n_runners();
    part_lost = had < 1 ? 1 - had : 0;
}

static int64_t lost_limit_of(int64_t span) {
    int64_t part = serial_is_on() ? MAX_LOST_OF_TURN : MAX_LOST;

    return span > 0 ? span / part * (part - 1) : 0;
}

/* Adds the lost part of the time since the last check. */
static void count_lost(void) {
    int64_t now = clock_now_ns(), span = now - counted_ns;

    if (span < SHORTEST_NS)
        return;
    struct share theirs = share_of(runner), mine = share_of(1);
    estimate_share(&runners, &theirs);
    if (counted_ns) {
        int64_t lost = (int64_t)((double)span * part_lost),
                kept_waiting = ours.thread ? (int64_t)(mine.waited - ours.waited) : 0,
                most = lost_limit_of(span);

        lost = lost > kept_waiting ? lost : kept_waiting;
        lost_ns += lost < most ? lost : most;
    }
    counted_ns = now;
    runners = theirs;
    ours = mine;
}

int64_t idle_lost_ns(void) {
    return lost_ns;
}

int64_t idle_lost_of_ns(int64_t span_ns, int64_t before_ns) {
    int64_t lost = lost_ns - (before_ns > rest_lost_ns ? before_ns : rest_lost_ns),
            most = lost_limit_of(span_ns);

    return lost < most ? lost : most;
}

void idle_stand(void) {
    counted_ns = 0;
}

/* ---- the looks ---- */

static bool is_running(pid_t thread) {
    runner = thread;
    return true;
}

static bool waits_for_child(const struct seen *who) {
    return who->call == __NR_vfork || (who->call == __NR_clone && who->arguments[0] & VFORK_FLAG);
}

/* The first inspection: it is off its CPU. False: it runs. */
static bool look_first(struct round *round, pid_t thread) {
    struct seen *now = &seen[round->n];
    char text[256];

    *now = (struct seen){ .thread = thread, .runs = runs_of(thread) };
    ssize_t n = read_file(thread, SYSCALL, text, sizeof text);
    if (n < 0)
        return is_missing(n);
    if ((text[0] == 'r' && is_running(thread)) || !now->runs) /* "running" */
        return false;
    now->call = vtime_parse_call(text, now->arguments);
    round->n++;
    return true;
}

/* The second: it waits, and has not run. */
static bool look_again(struct round *round, pid_t thread, char state) {
    struct seen *then = &seen[round->n];

    if (then->thread != thread || (state == 'S' ? then->call < 0 : !waits_for_child(then)) ||
        runs_of(thread) != then->runs)
        return false;
    round->n++;
    return true;
}

/* Has a dump worker stopped it? It will resume in a moment; tracers inside the sandbox are visible
 * from here, others are not. But a copy-on-write fork (dump/cow_fork.c), which has all signals
 * blocked, never resumes. */
static bool is_about_to_resume(pid_t thread) {
    char text[4096];
    int fd = process_open(thread, "/status", O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *tracer = find_heading(text, "TracerPid:");
    const char *blocked = find_heading(text, "SigBlk:");
    return tracer && blocked && strtoul(tracer, NULL, 10) == 0 &&
           (strtoul(blocked, NULL, 16) | NEVER_BLOCKED) != ~0ul;
}

static bool read_thread(struct round *round, pid_t thread, uint64_t *ret_threads) {
    char state;
    ssize_t r = state_of(thread, &state, ret_threads);

    if (r < 0)
        return is_missing(r);
    if (state == 't' && is_about_to_resume(thread))
        return false;
    if (wait_holds(thread) || strchr("TtZX", state)) /* these do nothing by themselves */
        return true;
    if ((state != 'S' && state != 'D' && is_running(thread)) || round->n == MAX_SEEN)
        return false;
    return round->again ? look_again(round, thread, state) : look_first(round, thread);
}

static bool look_at_thread(void *data, pid_t thread) {
    uint64_t threads;

    return wait_holds(thread) || read_thread(data, thread, &threads);
}

/* The first thread of a process has its id. */
static bool look_at_process(void *data, pid_t pid) {
    struct round *round = data, before = *round;
    uint64_t threads = 0;

    if (pid == 1 || wait_is_held_alone(pid) || command_is_agent(pid))
        return true;
    if (!read_thread(round, pid, &threads))
        return false;
    if (threads <= 1) {
        if (threads && wait_is_held(pid))
            wait_set_alone(pid);
        return true;
    }
    *round = before;
    int r = each_thread(pid, look_at_thread, round);
    return r == 0 || is_missing(r);
}

static bool do_all_wait(struct round *round) {
    return each_process(look_at_process, round) == 0;
}

bool idle_is_on_its_way(pid_t thread) {
    uint64_t threads;
    char state;

    return state_of(thread, &state, &threads) >= 0 && !strchr("TtZX", state);
}

/* ---- the outside ---- */

static bool is_file(const struct outside *o, const struct stat *st) {
    return o->inode == st->st_ino && o->device == (uint32_t)st->st_dev;
}

static void add_file(int listener, struct stat st, enum way way) {
    struct stat null;

    if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
        return;
    if (S_ISCHR(st.st_mode) &&
        (fstatat(AT_FDCWD, "/dev/null", &null, 0) < 0 || null.st_rdev == st.st_rdev))
        return;
    for (size_t i = 0; i < n_outside; i++)
        if (outside[i].listener == listener && is_file(&outside[i], &st)) {
            outside[i].ways |= way;
            return;
        }
    size_t at = n_outside;
    if (n_outside < MAX_OUTSIDE)
        n_outside++;
    else
        for (at = 0; at < MAX_OUTSIDE && outside[at].listener != GONE; at++)
            ;
    if (at < MAX_OUTSIDE)
        outside[at] = (struct outside){ .inode = st.st_ino,
            .device = (uint32_t)st.st_dev,
            .ways = way,
            .listener = listener,
            .is_terminal = S_ISCHR(st.st_mode) };
}

void idle_add_external(int fd) {
    struct stat st;

    if (fstat(fd, &st) < 0)
        return;
    int mode = fcntl(fd, F_GETFL) & O_ACCMODE;
    if (mode != O_WRONLY)
        add_file(NO_LISTENER, st, IN);
    if (mode != O_RDONLY)
        add_file(NO_LISTENER, st, OUT);
}

/* Registers pipes, sockets and terminals whose other end is not in the sandbox. */
void idle_add_outside(int listener, const int *streams) {
    struct stat st;

    for (int i = 0; i < 3; i++)
        if (fstat(streams[i], &st) == 0)
            add_file(listener, st, i ? OUT : IN);
}

void idle_forget_outside(int listener) {
    for (size_t i = n_outside; i-- > 0;)
        if (outside[i].listener == listener && outside[i].is_terminal)
            outside[i] = outside[--n_outside];
        else if (outside[i].listener == listener)
            outside[i].listener = GONE;
}

static bool is_outside(pid_t thread, uint64_t fd, unsigned ways) {
    struct stat st;

    if (fd > 0x7fffffff || !ways || !idle_stat(thread, fd, &st))
        return false;
    for (size_t i = 0; i < n_outside; i++)
        if (outside[i].ways & ways && is_file(&outside[i], &st))
            return true;
    return false;
}

static unsigned ways_of(uint64_t events) {
    unsigned ways = events & POLLIN ? IN : 0;

    return events & POLLOUT ? ways | OUT : ways;
}

/* The kernel lists what an epoll descriptor watches: "tfd: 5 events: 19 ...". */
static bool watches_outside(pid_t thread, uint64_t epoll) {
    char name[48] = "/fdinfo/", text[4096], *after;

    *guest_put_number(name + 8, epoll) = '\0';
    int fd = process_open(thread, name, O_RDONLY);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    for (const char *at = text; (at = find_heading(at, "tfd:"));) {
        uint64_t watched = strtoul(at, &after, 10);

        after += strcspn(after, ":\n");
        if (*after == ':' && is_outside(thread, watched, ways_of(strtoul(after + 1, NULL, 16))))
            return true;
    }
    return false;
}

static bool polls_outside(const struct seen *who) {
    struct pollfd polled[MAX_POLLED];
    const uint64_t *a = who->arguments;

    if (a[1] > MAX_POLLED || process_read_memory(who->thread, a[0], polled,
                                 a[1] * sizeof polled[0]) != (long)(a[1] * sizeof polled[0]))
        return false;
    for (size_t i = 0; i < a[1]; i++)
        if (is_outside(who->thread, (uint64_t)polled[i].fd, ways_of((uint64_t)polled[i].events)))
            return true;
    return false;
}

static bool selects_outside(const struct seen *who, uint64_t address, enum way way) {
    uint64_t set;

    if (!address || process_read_memory(who->thread, address, &set, sizeof set) != (long)sizeof set)
        return false;
    for (uint64_t fd = 0; fd < 64 && fd < who->arguments[0]; fd++)
        if (set >> fd & 1 && is_outside(who->thread, fd, way))
            return true;
    return false;
}

/* Does it wait for input from outside, or for output to be taken there? */
static bool waits_outside(const struct seen *who) {
    const uint64_t *a = who->arguments;

    switch (who->call) {
    case __NR_read:
    case __NR_readv:
    case __NR_recvfrom:
    case __NR_recvmsg:
        return is_outside(who->thread, a[0], IN);
    case __NR_write:
    case __NR_writev:
    case __NR_sendto:
    case __NR_sendmsg:
    case __NR_sendfile:
    case __NR_vmsplice:
        return is_outside(who->thread, a[0], OUT);
    case __NR_splice:
        return is_outside(who->thread, a[0], IN) || is_outside(who->thread, a[2], OUT);
    case __NR_tee:
        return is_outside(who->thread, a[0], IN) || is_outside(who->thread, a[1], OUT);
    case __NR_epoll_wait:
    case __NR_epoll_pwait:
    case __NR_epoll_pwait2:
        return a[0] <= INT32_MAX && watches_outside(who->thread, a[0]);
    case __NR_poll:
    case __NR_ppoll:
        return polls_outside(who);
    case __NR_select:
    case __NR_pselect6:
        return selects_outside(who, a[1], IN) || selects_outside(who, a[2], OUT);
    default:
        return false;
    }
}

/* A process that shows as dead may still be about to wake its parent, under a lock of the kernel's
 * that this call takes, too. True: a child of ours is dead, and with it perhaps the last command,
 * of which we have not heard yet. */
static bool await_ends(void) {
    siginfo_t info = { 0 };

    return sys_call5(__NR_waitid, P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL, NULL) ==
               0 &&
           info.si_pid;
}

/* A delivery of the kernel between the rounds wakes a thread, which has run by the second. */
static bool do_all_rest(bool delivers) {
    struct round first = { 0 }, second = { .again = true };

    runner = 0;
    if (!do_all_wait(&first) || await_ends() || !kernel_has_settled(delivers) ||
        !do_all_wait(&second) || first.n != second.n || listeners_is_asked())
        return false;
    n_seen = first.n;
    return true;
}

enum idle idle_look(bool delivers) {
    bool rests = do_all_rest(delivers);

    count_lost();
    if (!rests)
        return IDLE_NOT;
    rest_lost_ns = lost_ns;
    for (size_t i = 0; n_outside && i < n_seen; i++)
        if (waits_outside(&seen[i]))
            return IDLE_OUTSIDE;
    return IDLE;
}

bool idle_runs(pid_t thread) {
    char text[256];

    return read_file(thread, SYSCALL, text, sizeof text) > 0 && text[0] == 'r';
}

unsigned idle_waits(void) {
    unsigned waits = 0;

    for (size_t i = 0; i < n_seen; i++)
        switch (seen[i].call) {
        case __NR_wait4:
        case __NR_waitid:
        case __NR_pause:
        case __NR_rt_sigsuspend:
            break;
        case __NR_flock:
        case __NR_fcntl:
            waits |= IDLE_WAITS_CALL | IDLE_WAITS_LOCK;
            break;
        default:
            waits |= waits_for_child(&seen[i]) ? 0 : IDLE_WAITS_CALL;
        }
    return waits;
}

bool idle_is_outside(pid_t thread, int call, const uint64_t *arguments) {
    struct seen who = { .thread = thread, .call = call };

    memcpy(who.arguments, arguments, sizeof who.arguments);
    return n_outside && waits_outside(&who);
}

bool idle_has_ended(pid_t process) {
    uint64_t threads;
    char state;
    ssize_t r = state_of(process, &state, &threads);

    return r < 0 ? is_missing(r) : (state == 'Z' || state == 'X') && threads <= 1;
}
