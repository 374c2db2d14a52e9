/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual time: the clock of a sandbox moves by what its processes do.
 *
 * It is the sum of two numbers on a page that all processes share: ticks, one for each query, which the queries themselves add (determinism_vdso.c); and what init has jumped. All clocks are that sum and a constant. init jumps
 * when everybody in the sandbox waits (virtual_idle.c): to the earliest of what lies ahead, time-outs (virtual_wait.c) and timers (virtual_timer.c). It ends that one alone, and looks again when all is at rest once more; so what was
 * to happen at one time happens in an order that does not depend on CPUs.
 *
 * The clock stands while somebody computes. So that none waits for ever for what never rests, each wait ends by the real clock, too: those that the kernel does when they would have without us, those that init holds GRACE_NS later; but not while
 * the clock jumps from one thing to the next, if slowly, as on a machine that has too much to do: then each comes in its turn. And so that who computes until time has passed comes to an end, the clock goes at the real rate while a sandbox has not
 * rested for BUSY_NS.
 * Nor does it move while no command runs, however long that is by the real clock, or while somebody waits for input from outside: between what an agent does no time passes.
 *
 * The page is the guests' to write. init reads the ticks from it, and whatever they are is a time; what it has jumped it knows itself. Tables are bounded: what does not fit is the kernel's, and waits in real time.
 */
#include "guest/virtual.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/times.h>
#include <unistd.h>

#include "base/clock.h"
#include "guest/bounded.h"
#include "guest/command.h"
#include "guest/determinism.h"
#include "guest/image.h"
#include "guest/serial.h"
#include "guest/stamps.h"
#include "guest/sysinfo.h"
#include "sys/syscalls.h"

#define PAGE 4096
/* Of the kernel's structs: those of a C library have room at their ends. */
#define RUSAGE_BYTES 144
#define SLOT_NS 1000000ll       /* what is as near to each other as this is at the same time */
#define FIRST_PAUSE_NS 50000ll  /* between looks at who runs: doubled each time, */
#define LAST_PAUSE_NS 2000000ll
#define LAST_PAUSE_OUTSIDE_NS 100000000ll
#define PAUSE_BY_COST 20        /* and never so short that looking takes more than a twentieth */
#define COSTLY_NS 2000000ll     /* a look that takes longer is not worth its while after each question, */
#define COSTLY_TIMES 4          /* but every fifth part of the time */
#define MANY_JUMPS 200000       /* of a sandbox that nobody has asked anything of meanwhile; from there on a pause goes with each */
#define PAUSE_OF_MANY_NS 1000000ll
#define GIVE_LIMIT_US 100000
#define GRACE_NS 1000000000ll
#define SLOWEST 16              /* the clock goes on by itself as long as it is no slower than this part of the real one */
#define BUSY_NS 5000000000ll    /* so often it is looked whether somebody runs; who is found running all the time for as long as that is busy, */
#define BUSY_STEP_NS 50000000ll /* when found by looks that are so far apart; then the clock is moved with each */

struct page {
    uint64_t ticks;             /* added to by queries */
    uint64_t jumped;            /* written by init */
};

static struct page *page;
static int page_fd = -1, uptime_fd = -1;
static int64_t uptime_told = -1;        /* hundredths of a second */
static int64_t jumped, start_ns;
static uint64_t last_sequence, seed;
static bool is_seeded;
static int64_t pause_ns, look_ns;       /* the next look at who runs: how long after, and when */
static int64_t looked_ns, cost_ns;      /* the last one: when it was over, and how long it took */
static int64_t due_ns;                  /* the next that is due by the real clock */
static uint64_t n_jumps;
static int64_t jumped_ns;       /* when it last jumped, by the real clock */
static int64_t busy_look_ns;    /* when to look next whether it is busy */
static bool has_stood;          /* still, and has not gone on yet */
static bool awaits_outside;     /* all waited when that was last looked for, somebody of them for the outside */
static int64_t busy_from_ns, busy_found_ns;     /* since when it has not rested, 0: it has; and when that was last seen */
static int64_t busy_lost_ns;    /* what was lost before that began */

/* Sealed: whoever gets its descriptor could else cut it off under init. */
int virtual_make_page(void) {
    page_fd = (int)sys_call2(__NR_memfd_create, "rollbox-clock", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (page_fd < 0)
        return page_fd;
    if (ftruncate(page_fd, PAGE) < 0 || fcntl(page_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return -errno;
    void *mapped = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
    if (mapped == MAP_FAILED)
        return -errno;
    page = mapped;
    return bounded_begin();
}

/* ---- /proc/uptime --------------------------------------------------------------------------------------------------- */

/* As the kernel has it: hundredths of a second, behind it the time that CPUs were idle, of which there is none. Only ever longer, but for a clock that begins anew, which has that in a file of its own. */
static int tell_uptime(void) {
    int64_t hundredths = (PLAN_VIRTUAL_UPTIME_S * VIRTUAL_NS + virtual_now()) / (VIRTUAL_NS / 100), rest = hundredths % 100;
    char text[40], *at = text;

    if (uptime_fd < 0 || hundredths == uptime_told)
        return 0;
    at = guest_put_number(at, (uint64_t)hundredths / 100);
    *at++ = '.';
    *at++ = (char)('0' + rest / 10);
    *at++ = (char)('0' + rest % 10);
    memcpy(at, " 0.00\n", 6);
    long n = sys_call4(__NR_pwrite64, uptime_fd, text, (size_t)(at + 6 - text), 0);
    if (n < 0)
        return (int)n;
    uptime_told = hundredths;
    return 0;
}

int virtual_take_uptime(int take_fd) {
    uptime_fd = take_fd;
    int r = tell_uptime();

    if (r < 0) {
        close(uptime_fd);
        uptime_fd = -1;
    }
    return r;
}

/* ---- the clock ------------------------------------------------------------------------------------------------------ */

static int64_t ticks_of(uint64_t ticks) {
    return ticks < (uint64_t)VIRTUAL_NEVER ? (int64_t)ticks : VIRTUAL_NEVER;
}

int64_t virtual_now(void) {
    return ticks_of(__atomic_load_n(&page->ticks, __ATOMIC_RELAXED)) + jumped;
}

int64_t virtual_after(int64_t ns) {
    int64_t now = virtual_now();

    return now < VIRTUAL_NEVER - ns ? now + ns : VIRTUAL_NEVER;
}

int64_t virtual_left(int64_t deadline) {
    int64_t now = virtual_now();

    return deadline > now ? deadline - now : 0;
}

void virtual_reach(int64_t deadline) {
    int64_t left = virtual_left(deadline);

    if (!left || deadline >= VIRTUAL_NEVER)
        return;
    jumped += left;
    __atomic_store_n(&page->jumped, (uint64_t)jumped, __ATOMIC_RELAXED);
    (void)tell_uptime();
    timer_pass();
}

bool virtual_base(clockid_t clock, int64_t *ret_ns) {
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
    case CLOCK_REALTIME_ALARM:
    case CLOCK_TAI:
        *ret_ns = start_ns;
        return true;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_BOOTTIME:
    case CLOCK_BOOTTIME_ALARM:
        *ret_ns = PLAN_VIRTUAL_UPTIME_S * VIRTUAL_NS;
        return true;
    default:
        return false;
    }
}

bool virtual_read_time(pid_t pid, uint64_t address, bool micro, int64_t *ret_ns) {
    int64_t time[2], unit = micro ? 1000 : 1;

    if (determinism_read(pid, address, time, sizeof time) != (long)sizeof time || time[0] < 0 || time[1] < 0 || time[1] >= VIRTUAL_NS / unit)
        return false;
    *ret_ns = time[0] >= VIRTUAL_NEVER * 3 / VIRTUAL_NS ? VIRTUAL_NEVER * 3 : time[0] * VIRTUAL_NS + time[1] * unit;
    return true;
}

long virtual_write_time(pid_t pid, uint64_t address, bool micro, int64_t ns) {
    int64_t time[2] = { ns / VIRTUAL_NS, ns % VIRTUAL_NS / (micro ? 1000 : 1) };
    long r = determinism_write(pid, address, time, sizeof time);

    return r < 0 ? r : 0;
}

struct virtual_event virtual_event(pid_t thread, int64_t deadline) {
    return (struct virtual_event){ .deadline = deadline, .stream = is_seeded ? determinism_stream_of(seed, thread) : 0, .sequence = ++last_sequence, .thread = thread };
}

bool virtual_is_before(const struct virtual_event *a, const struct virtual_event *b) {
    if (a->stream != b->stream)
        return a->stream < b->stream;
    return a->thread != b->thread ? a->thread < b->thread : a->sequence < b->sequence;
}

/* ---- answers -------------------------------------------------------------------------------------------------------- */

/* A query by a call is one like another. */
static int64_t query(void) {
    return ticks_of(__atomic_fetch_add(&page->ticks, VIRTUAL_TICK_NS, __ATOMIC_RELAXED)) + jumped;
}

int64_t virtual_time_of_day(void) {
    return start_ns + virtual_now();
}

int64_t virtual_query_time_of_day(void) {
    return start_ns + query();
}

/* The time that is spent computing: that of the queries, without the jumps. */
static int64_t query_cpu(void) {
    return query() - jumped;
}

long virtual_give(int listener, const struct seccomp_notif_addfd *give) {
    return bounded_call(__NR_ioctl, (uint64_t)listener, SECCOMP_IOCTL_NOTIF_ADDFD, (uint64_t)(uintptr_t)give, 0, GIVE_LIMIT_US);
}

static void give_page(int listener, const struct seccomp_notif *question) {
    struct seccomp_notif_addfd give = { .id = question->id, .flags = SECCOMP_ADDFD_FLAG_SEND, .srcfd = (uint32_t)page_fd, .newfd_flags = O_CLOEXEC };

    if (virtual_give(listener, &give) < 0)
        determinism_answer(listener, question->id, 0, -EMFILE);
}

static void answer_clock(int listener, const struct seccomp_notif *question) {
    const uint64_t *arguments = (const uint64_t *)question->data.args;
    clockid_t clock = question->data.nr == __NR_clock_gettime ? (clockid_t)(int)arguments[0] : CLOCK_REALTIME;
    uint64_t vdso;
    int64_t base;

    if (clock == VIRTUAL_ASK_PAGE || clock == VIRTUAL_TELL_PAGE) {
        bool ours = determinism_vdso_of((pid_t)question->pid, &vdso) && vdso_contains(vdso, question->data.instruction_pointer);

        if (ours && clock == VIRTUAL_ASK_PAGE) {
            give_page(listener, question);
            return;
        }
        determinism_answer(listener, question->id, 0, ours ? vdso_tell_page((pid_t)question->pid, vdso, arguments[1]) : -EINVAL);
        return;
    }
    if (virtual_base(clock, &base))
        determinism_answer_time(listener, question, base + query());
    else if (clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID)
        determinism_answer_time(listener, question, query_cpu());
    else
        determinism_let_pass(listener, question->id);
}

/* Of an alarm's, which the machine need not have; others are the kernel's. */
static void answer_resolution(int listener, const struct seccomp_notif *question) {
    static const int64_t resolution[2] = { 0, 1 };
    clockid_t clock = (clockid_t)(int)question->data.args[0];
    uint64_t to = question->data.args[1];

    if (clock == CLOCK_REALTIME_ALARM || clock == CLOCK_BOOTTIME_ALARM)
        determinism_answer_written(listener, question->id, to ? determinism_write((pid_t)question->pid, to, resolution, sizeof resolution) : 0, 0);
    else
        determinism_let_pass(listener, question->id);
}

static void answer_times(int listener, const struct seccomp_notif *question) {
    struct tms times = { .tms_utime = query_cpu() / (VIRTUAL_NS / 100) };
    uint64_t to = question->data.args[0];
    long r = to ? determinism_write((pid_t)question->pid, to, &times, sizeof times) : 0;

    determinism_answer_written(listener, question->id, r, (long)((PLAN_VIRTUAL_UPTIME_S * VIRTUAL_NS + virtual_now()) / (VIRTUAL_NS / 100)));
}

/* What else is in it no two runs have in common. */
static void answer_rusage(int listener, const struct seccomp_notif *question) {
    int64_t cpu = query_cpu();
    int who = (int)question->data.args[0];
    struct rusage usage = { .ru_utime = { cpu / VIRTUAL_NS, cpu % VIRTUAL_NS / 1000 } };

    if (who != RUSAGE_SELF && who != 1 /* RUSAGE_THREAD */) {
        if (who != RUSAGE_CHILDREN) {
            determinism_let_pass(listener, question->id);
            return;
        }
        usage.ru_utime = (struct timeval){ 0 };
    }
    determinism_answer_written(listener, question->id, determinism_write((pid_t)question->pid, question->data.args[1], &usage, RUSAGE_BYTES), 0);
}

static void answer_sysinfo(int listener, const struct seccomp_notif *question) {
    struct sysinfo info;

    if (!sysinfo_fill(&info)) {
        determinism_let_pass(listener, question->id);
        return;
    }
    info.uptime = PLAN_VIRTUAL_UPTIME_S + virtual_now() / VIRTUAL_NS;
    info.freeram = info.totalram / 2;
    sysinfo_answer_with(listener, question, &info);
}

void virtual_disturb(void) {
    pause_ns = FIRST_PAUSE_NS;
    if (serial_is_moving())
        look_ns = clock_now_ns() + FIRST_PAUSE_NS;
    else
        look_ns = cost_ns > COSTLY_NS ? looked_ns + cost_ns * COSTLY_TIMES : 0;
}

static enum idle look(bool delivers) {
    int64_t begun = clock_now_ns();
    enum idle idle = idle_look(delivers);

    looked_ns = clock_now_ns();
    cost_ns = looked_ns - begun - kernel_spent_ns();    /* that is seldom, and no reason to look less often */
    return idle;
}

bool virtual_answer(int listener, const struct seccomp_notif *asked) {
    struct seccomp_notif of = *asked, *question = &of;

    virtual_disturb();
    (void)tell_uptime();        /* who counts the time by asking for it need not jump */
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

/* ---- the loop ------------------------------------------------------------------------------------------------------- */

static int64_t earliest(void) {
    int64_t waits = wait_earliest(), timers = timer_earliest();

    return waits < timers ? waits : timers;
}

/* Of what is nearly at the same time as the earliest of all. */
static bool first_of_all(bool *ret_is_timer) {
    struct virtual_event wait, timer;
    int64_t first = earliest(), until = first < VIRTUAL_NEVER - SLOT_NS ? first + SLOT_NS : VIRTUAL_NEVER - 1;
    bool waits = wait_first(until, &wait), timers = timer_first(until, &timer);

    *ret_is_timer = timers && (!waits || virtual_is_before(&timer, &wait));
    return waits || timers;
}

/* False: none of them is to be ended now. */
static bool end_one(void) {
    bool is_timer;

    stamps_settle();
    while (first_of_all(&is_timer))
        if (is_timer ? timer_fire_first() : wait_end_first()) {
            virtual_disturb();
            jumped_ns = clock_now_ns();
            return true;
        }
    return false;
}

bool virtual_end_overdue(void) {
    timer_pass();
    if ((!wait_count() && !timer_any()) || earliest() >= virtual_now() - SLOT_NS)
        return false;
    return end_one();
}

bool virtual_awaits_outside(void) {
    return awaits_outside && command_count();
}

int64_t virtual_grace_ns(void) {
    return serial_is_on() ? SERIAL_PATIENCE_NS : GRACE_NS;
}

int64_t virtual_put_off(int64_t now_ns, int64_t over_ns, int64_t length_ns, int64_t deadline, int64_t lost_before_ns) {
    int64_t took = now_ns - over_ns + length_ns, passed = length_ns - (deadline - virtual_now());
    int64_t fairly = over_ns + virtual_grace_ns() + idle_lost_of_ns(took, lost_before_ns), next = jumped_ns + virtual_grace_ns();

    if (virtual_awaits_outside())
        return 0;
    return fairly > now_ns ? fairly : next > now_ns && passed > took / SLOWEST ? next : 0;
}

int64_t virtual_next_ns(void) {
    if (!page || tree_is_frozen() || still_is())
        return INT64_MAX;
    int64_t next = command_count() ? busy_look_ns : INT64_MAX;
    if (!wait_count() && !timer_any())
        return next;
    if (wait_cutting_until())
        return wait_cutting_until();
    if (due_ns < next)
        next = due_ns;
    return command_count() && !serial_count() && look_ns < next ? look_ns : next;
}

static int64_t busy_ns(void) {
    return serial_is_on() ? SERIAL_PATIENCE_NS : BUSY_NS;
}

static void has_rested(int64_t now) {
    busy_from_ns = 0;
    busy_look_ns = now + busy_ns();
}

/* Whether they have anything to wait for or not. */
static void look_for_rest(int64_t now) {
    if (now < busy_look_ns || !command_count())
        return;
    if (look(false) != IDLE_NOT) {
        has_rested(now);
        return;
    }
    if (!busy_from_ns) {
        busy_from_ns = now;
        busy_lost_ns = idle_lost_ns();
    } else if (now - busy_from_ns - (idle_lost_ns() - busy_lost_ns) >= busy_ns())
        virtual_reach(virtual_after(now - busy_found_ns));
    busy_found_ns = now;
    busy_look_ns = now + BUSY_STEP_NS;
}

bool virtual_stands(void) {
    return tree_is_frozen() || !command_count();
}

void virtual_stand(void) {
    has_stood = page;
    idle_stand();
}

/* That was a rest. */
static void go_on(int64_t now) {
    has_stood = false;
    wait_stood(now, INT64_MAX);
    timer_stood(now, INT64_MAX);
    busy_from_ns = 0;
    busy_look_ns = now + BUSY_STEP_NS;  /* not before most programs are over */
}

/* No rest: where one capture follows the other, who computes until time has passed still comes to an end. */
void virtual_stood(int64_t ns) {
    int64_t now = clock_now_ns();

    idle_stand();
    wait_stood(now, ns);
    timer_stood(now, ns);
    jumped_ns += ns;
    busy_from_ns += busy_from_ns ? ns : 0;
    busy_found_ns += ns;
    virtual_disturb();
}

/* Until the next look, after one that found no rest. */
static void rest(int64_t at_most_ns) {
    int64_t cost = cost_ns * PAUSE_BY_COST;

    look_ns = looked_ns + (cost > pause_ns ? cost : pause_ns);
    pause_ns = pause_ns * 2 < at_most_ns ? pause_ns * 2 : at_most_ns;
}

void virtual_step(bool quiet) {
    int64_t now = clock_now_ns(), first;

    if (tree_is_frozen())
        return;
    if (has_stood && !virtual_stands())
        go_on(now);
    look_for_rest(now);
    if (!wait_count() && !timer_any())
        return;
    int64_t waits = wait_look(now), timers = timer_look(now);
    due_ns = waits < timers ? waits : timers;
    if (wait_cutting_until() || !command_count() || now < look_ns || (first = earliest()) == VIRTUAL_NEVER) {
        if (now >= look_ns)
            look_ns = now + LAST_PAUSE_OUTSIDE_NS;
        return;
    }
    /* Who asks for the time often enough need not rest for it to pass. */
    if (first + SLOT_NS < virtual_now() && !serial_is_on() && end_one())
        return;
    if (!quiet || serial_count())
        return;
    enum idle idle = look(true);
    awaits_outside = idle == IDLE_OUTSIDE;
    if (idle == IDLE_OUTSIDE) {
        int64_t next = wait_end_over(now);

        has_rested(now);
        rest(LAST_PAUSE_OUTSIDE_NS);
        look_ns = next < look_ns ? next : look_ns;
        return;
    }
    if (idle == IDLE_NOT) {
        rest(LAST_PAUSE_NS);
        return;
    }
    has_rested(now);
    if (serial_is_on())
        wait_pass_ready();
    if (serial_count() || wait_end_changed()) {
        virtual_disturb();
        return;
    }
    wait_take_back();           /* all wait, and can be seen */
    if (!end_one()) {
        rest(LAST_PAUSE_NS);
        return;
    }
    if (++n_jumps > MANY_JUMPS)
        look_ns = clock_now_ns() + PAUSE_OF_MANY_NS;
}

void virtual_begin(const struct plan *plan) {
    seed = plan->seed;
    is_seeded = plan->flags & PLAN_SEED;
    virtual_stand();
    kernel_begin(plan);
    start_ns = plan->clock_seconds * VIRTUAL_NS + plan->clock_nanoseconds;
}

void virtual_started(int listener, const int *streams) {
    n_jumps = 0;
    if (page) {
        idle_add_outside(listener, streams);
        virtual_disturb();
    }
}

void virtual_forget(int listener) {
    wait_forget(listener);
    idle_forget_outside(listener);
}

void virtual_executed(pid_t pid) {
    timer_executed(pid);
}

/* ---- snapshots of what runs (still.c) ------------------------------------------------------------------------------- */

_Static_assert(IMAGE_NEVER == VIRTUAL_NEVER, "the end of the clock is the same in images");

int virtual_page(void) {
    return page_fd < 0 ? -EBADF : fcntl(page_fd, F_DUPFD_CLOEXEC, 3);
}

void virtual_tell(struct image_determinism *to) {
    struct stat st;

    to->ticks = (uint64_t)ticks_of(__atomic_load_n(&page->ticks, __ATOMIC_RELAXED));
    to->jumped = (uint64_t)jumped;
    if (fstat(page_fd, &st) == 0) {
        to->page_device = st.st_dev;
        to->page_inode = st.st_ino;
    }
}

void virtual_resume(const struct image_determinism *from) {
    jumped = (int64_t)from->jumped;
    __atomic_store_n(&page->ticks, from->ticks, __ATOMIC_RELAXED);
    __atomic_store_n(&page->jumped, from->jumped, __ATOMIC_RELAXED);
    (void)tell_uptime();
}
