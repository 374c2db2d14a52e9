/* SPDX-License-Identifier: Apache-2.0 */
/* src/guest as sessions use it: a real rollbox-init with real sandboxes, and the test in the
 * engine's place. What runs inside is this very program, by the name of a role. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/wire.h"
#include "guest/guest.h"
#include "policy/plan.h"
#include "sys/features.h"
#include "test.h"

static char self[4096]; /* the path of this program */

/* ---- inside ---- */

static void say(const char *line) {
    if (write(1, line, strlen(line)) != (ssize_t)strlen(line))
        _exit(99);
}

_Noreturn static void wait_for_ever(void) {
    for (;;)
        pause();
}

/* Forks without end: each has two children, each of them in a session of its own, and ends. */
_Noreturn static void role_bomb(void) {
    unsigned generation = 0;

    signal(SIGCHLD, SIG_IGN);
    say("x\n");
    for (unsigned children = 0; !generation || children < 2; children++)
        if (fork() == 0) {
            setsid();
            children = (unsigned)-1;
            if (++generation == 20)
                say("bomb\n");
        }
    _exit(0);
}

static volatile sig_atomic_t was_continued;

static void on_continue(int number) {
    (void)number;
    was_continued = 1;
}

/* Ends well at the end of its input, if it was never stopped meanwhile. */
_Noreturn static void role_forks(void) {
    struct pollfd input = { 0, POLLIN, 0 };

    signal(SIGCONT, on_continue);
    say("x\n");
    while (poll(&input, 1, 0) != 1) {
        pid_t pid = fork();

        if (pid == 0)
            _exit(0);
        waitpid(pid, NULL, 0);
    }
    _exit(was_continued);
}

_Noreturn static void role_continue(void) {
    say("x\n");
    for (;;)
        kill(-1, SIGCONT);
}

/* Stops the next new process, before it can have executed anything. */
_Noreturn static void role_stopper(void) {
    pid_t me = getpid();

    say("x\n");
    for (;;)
        for (pid_t pid = me + 1; pid < me + 20; pid++)
            kill(pid, SIGSTOP);
}

/* As many processes as there may be. */
_Noreturn static void role_fill(void) {
    pid_t pid;

    while ((pid = fork()) > 0)
        ;
    if (pid < 0)
        say("x\n");
    wait_for_ever();
}

/* As many terminals as there may be; their number. */
_Noreturn static void role_terminals(void) {
    int n = 0;

    while (open("/dev/ptmx", O_RDWR | O_NOCTTY) >= 0)
        n++;
    _exit(n < 255 ? n : 255);
}

_Noreturn static void role_stop_all(void) {
    kill(-1, SIGSTOP);
    _exit(0);
}

/* It speaks once who has started it is gone, and there are just the two of us. */
static void leave_a_daemon(void) {
    if (fork())
        return;
    setsid();
    pid_t between = getpid();
    if (fork())
        _exit(0);
    while (getppid() == between)
        sched_yield();
    say("daemon\n");
    wait_for_ever();
}

_Noreturn static void role_daemon(void) {
    leave_a_daemon();
    wait_for_ever();
}

/* The same, and ends when told. */
_Noreturn static void role_leave_daemon(void) {
    char c;

    leave_a_daemon();
    (void)!read(0, &c, 1);
    _exit(3);
}

_Noreturn static void role_vfork(void) {
    say("x\n");
    if (vfork() == 0)
        syscall(SYS_pause);
    _exit(0);
}

_Noreturn static void *thread(void *unused) {
    (void)unused;
    say("x\n");
    for (;;)
        ;
}

/* As vfork, but with memory of its own for the child, which takes some. */
_Noreturn static void role_vfork_apart(void) {
    if (syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0) {
        char *memory = malloc(1 << 20);

        memset(memory, 1, 1 << 20);
        say("x\n");
        wait_for_ever();
    }
    _exit(0);
}

_Noreturn static void role_vfork_chain(void) {
    if (vfork() == 0 && vfork() == 0) {
        say("x\n");
        syscall(SYS_pause);
    }
    _exit(0);
}

/* One thread that computes, in a process that looks like a zombie. */
_Noreturn static void role_headless(void) {
    pthread_t id;

    pthread_create(&id, NULL, thread, NULL);
    for (;;)
        syscall(SYS_exit, 0);
}

/* Every line an attempt that must fail. */
_Noreturn static void role_escape(void) {
    struct iovec here = { &here, sizeof here };
    int e = 0;

    e |= ptrace(PTRACE_ATTACH, 1, NULL, NULL) == 0 ? 1 : 0;
    e |= ptrace(PTRACE_SEIZE, 1, NULL, NULL) == 0 ? 2 : 0;
    e |= process_vm_readv(1, &here, 1, &here, 1, 0) >= 0 ? 4 : 0;
    e |= syscall(SYS_pidfd_open, 1, 0) >= 0 ? 8 : 0;
    e |= open("/proc/1/mem", O_RDONLY) >= 0 || open("/proc/1/environ", O_RDONLY) >= 0 ||
                 open("/proc/1/fd/3", O_RDONLY) >= 0
             ? 16
             : 0;
    e |= prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0 ? 32 : 0;
    e |= syscall(SYS_prlimit64, 1, RLIMIT_NPROC, NULL, NULL) == 0 ? 64 : 0;
    pid_t pid = (pid_t)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        _exit(0);
    e |= pid > 0 ? 128 : 0;
    for (int number = 1; number < 65; number++)
        kill(1, number);
    _exit(e);
}

/* What ends with 7 if init lets go of what it never asked to trace. */
_Noreturn static void role_traced(void) {
    signal(SIGUSR1, SIG_IGN);
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGUSR1);
    _exit(7);
}

/* Of another command: signals it and reads its memory. */
_Noreturn static void role_peer(char *const *words) {
    static char secret[16] = "known to both";
    char copy[16] = "";
    struct iovec to = { copy, sizeof copy }, from = { secret, sizeof secret };
    pid_t pid = (pid_t)strtol(words[0], NULL, 10);
    bool ok = kill(pid, 0) == 0 && ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0;

    (void)to, (void)from;
    ok = ok && ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0 &&
         waitpid(pid, NULL, __WALL) == pid && ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0;
    _exit(ok ? 0 : 1);
}

_Noreturn static void role_terminal(void) {
    struct winsize size = { 0 };
    struct termios modes;

    if (!isatty(0) || !isatty(1) || !isatty(2) || ioctl(0, TIOCGWINSZ, &size) < 0 ||
        tcgetattr(0, &modes) < 0)
        _exit(1);
    if (size.ws_row != 24 || size.ws_col != 80)
        _exit(2);
    if (!(modes.c_iflag & IUTF8) || !(modes.c_iflag & ICRNL) || !(modes.c_lflag & ICANON) ||
        !(modes.c_lflag & ECHO) || !(modes.c_lflag & ISIG) || !(modes.c_oflag & ONLCR))
        _exit(3);
    if (tcgetpgrp(0) != getpid() || getsid(0) != getpid() || open("/dev/tty", O_RDWR) < 0)
        _exit(4);
    say("ready\n");
    wait_for_ever();
}

/* Which descriptors are open, up to 99, as a text. */
_Noreturn static void role_descriptors(void) {
    char text[512] = "";

    for (int fd = 0; fd < 100; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%d ", fd);
    strcat(text, "\n");
    say(text);
    _exit(0);
}

_Noreturn static void role_compute(void) {
    struct rusage usage;

    do
        getrusage(RUSAGE_SELF, &usage);
    while (
        usage.ru_utime.tv_sec * 1000000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec < 50000);
    _exit(0);
}

__attribute__((constructor)) static void play(int argc, char **argv) {
    const char *role = argc > 1 && !strncmp(argv[1], "role-", 5) ? argv[1] + 5 : NULL;

    if (!role)
        return;
    static const struct {
        const char *name;
        void (*run)(void);
    } roles[] = {
        { "bomb", role_bomb },
        { "forks", role_forks },
        { "continue", role_continue },
        { "stopper", role_stopper },
        { "daemon", role_daemon },
        { "leave-daemon", role_leave_daemon },
        { "vfork", role_vfork },
        { "vfork-apart", role_vfork_apart },
        { "vfork-chain", role_vfork_chain },
        { "headless", role_headless },
        { "escape", role_escape },
        { "traced", role_traced },
        { "terminal", role_terminal },
        { "descriptors", role_descriptors },
        { "compute", role_compute },
        { "stop-all", role_stop_all },
        { "fill", role_fill },
        { "terminals", role_terminals },
        { "wait", wait_for_ever },
    };
    if (!strcmp(role, "peer"))
        role_peer(argv + 2);
    for (size_t i = 0; i < ARRAY_SIZE(roles); i++)
        if (!strcmp(role, roles[i].name))
            roles[i].run();
    _exit(98);
}

/* ---- in the engine's place ---- */

struct session {
    int launcher, init;
    uint64_t serial;
};

/* What of the host a plan must know, as far as these sandboxes can tell. */
static struct plan *make_plan(const struct features *features, const char *directory) {
    static const char *links[16];
    static char targets[8][64];
    static struct plan_host_path paths[256];
    static char reals[256][4096];
    static const char *const names[] = { "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32" };
    struct plan_host host = {
        .is_root = features->is_root,
        .landlock_abi = features->landlock ? features->landlock_abi : 0,
        .seccomp = features->seccomp,
        .timens = features->timens,
        .cgroupns = features->cgroupns,
        .memory_cgroup = true,
        .processes_cgroup = true,
        .cpus = features->cpus,
        .open_files_max = 512,
        .processes_max = RLIM_INFINITY,
        .root_links = links,
        .cpuinfo = "",
        .stat = "",
        .meminfo = "",
        .loadavg = "",
        .vmstat = "",
    };
    struct policy_problems problems = { 0 };
    struct rollbox_error error = { 0 };
    auto_free char *text = NULL;
    struct policy *policy;
    struct plan *plan;
    size_t n = 0, n_reals = 0;

    memset(paths, 0, sizeof paths);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        ssize_t length = readlink(names[i], targets[i], sizeof targets[i] - 1);

        if (length <= 0)
            continue;
        links[n++] = names[i];
        links[n++] = targets[i];
    }
    ASSERT_TRUE(asprintf(&text, "{\"fs_readable\": [\"/usr\", \"/etc\", \"%s\"]}", directory) > 0);
    ASSERT_OK(policy_parse(text, strlen(text), &policy, &problems));
    struct policy_paths *lists[] = { &policy->fs_readable, &policy->fs_writable, &policy->fs_shared,
        &policy->fs_denied };
    struct plan_host_path **found[] = { &host.readable, &host.writable, &host.shared,
        &host.denied };
    for (size_t list = 0; list < ARRAY_SIZE(lists); list++) {
        *found[list] = paths + n_reals;
        for (size_t i = 0; i < lists[list]->n; i++) {
            struct plan_host_path *path = &(*found[list])[i];
            struct stat st;

            path->real = realpath(lists[list]->items[i].path, reals[n_reals++]);
            ASSERT_LT(n_reals, ARRAY_SIZE(reals));
            path->error = path->real && stat(path->real, &st) == 0 ? 0 : ENOENT;
            path->type = path->error           ? PLAN_PATH_MISSING
                         : S_ISDIR(st.st_mode) ? PLAN_PATH_DIRECTORY
                                               : PLAN_PATH_OTHER;
        }
    }
    const char *sysctls[64] = { NULL };
    bool masked[64] = { false };
    host.sysctls = sysctls;
    host.proc_exists = masked;
    if (plan_compile(policy, &host, &plan, &error) < 0)
        FAIL("no plan: %s", error.message);
    policy_free(policy);
    return plan;
}

static void launch(struct session *session, bool is_root) {
    char *argv[] = { "rollbox-init", is_root ? "1610612736" : "0", "late",
        NULL }; /* the engine's first base of ids */
    auto_free char *path = NULL;
    const char *build = getenv("ROLLBOX_BUILD"), *init = getenv("ROLLBOX_INIT");
    int pair[2];

    ASSERT_TRUE(asprintf(&path, "%s/rollbox-init", build ? build : "build") > 0);
    ASSERT_CALL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
    session->launcher = (int)ASSERT_CALL(fcntl(pair[0], F_DUPFD_CLOEXEC, 10));
    close(pair[0]);
    int theirs = (int)ASSERT_CALL(fcntl(pair[1], F_DUPFD_CLOEXEC, 10));
    close(pair[1]);
    if (ASSERT_CALL(fork()) == 0) {
        for (int fd = 0; fd < 3; fd++)
            dup2(open("/dev/null", O_RDWR), fd);
        dup2(theirs, GUEST_LAUNCHER_SOCKET);
        close_range(GUEST_LAUNCHER_SOCKET + 1, ~0u, 0);
        execv(init ? init : path, argv);
        _exit(127);
    }
    close(theirs);
}

static void tell(int socket, struct buf *message, const int *fds, size_t n_fds) {
    ASSERT_OK(wire_send(socket, message, fds, n_fds));
    buf_done(message);
}

/* The next record, which must be of this kind; its descriptors to ret_fds, or closed. */
static struct guest_record hear(int socket, uint32_t kind, int *ret_fds, size_t *ret_n) {
    struct guest_record record;
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n = 0;

    ASSERT_EQ(fd_receive(socket, &record, sizeof record, fds, &n), sizeof record);
    if (record.kind != kind)
        FAIL("a record of kind %u, not %u: stage %u, operation %u, errno %d, serial %llu, value "
             "0x%llx",
            record.kind, kind, record.stage, record.operation, record.error,
            (unsigned long long)record.serial, (unsigned long long)record.value);
    for (size_t i = 0; i < n; i++)
        if (ret_fds)
            ret_fds[i] = fds[i];
        else
            close(fds[i]);
    if (ret_n)
        *ret_n = n;
    return record;
}

/* A sandbox; a session unless told otherwise. */
static void open_box(struct session *session, bool is_session) {
    struct buf message = BUF_INIT;
    char directory[4096];
    struct features features;
    int pair[2];

    features_quick(&features);
    if (!features.userns)
        SKIP("userns", "no user namespaces for this user");
    ASSERT_GT(readlink("/proc/self/exe", self, sizeof self - 1), 0);
    strcpy(directory, self);
    *strrchr(directory, '/') = '\0';
    *session = (struct session){ 0 };
    struct plan *plan = make_plan(&features, directory);
    launch(session, features.is_root);
    int file = (int)ASSERT_CALL(fd_memory_file("plan", plan, plan->length));
    wire_begin(&message, GUEST_PLAN, 0);
    free(plan);
    tell(session->launcher, &message, &file, 1);
    close(file);
    hear(session->launcher, GUEST_TEMPLATE_READY, NULL, NULL);
    ASSERT_CALL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
    session->init = pair[0];
    wire_begin(&message, GUEST_CREATE, 1);
    tell(session->launcher, &message, &pair[1], 1);
    close(pair[1]);
    hear(session->launcher, GUEST_CREATED, NULL, NULL);
    hear(session->init, GUEST_BOX_READY, NULL, NULL);
    wire_begin(&message, GUEST_SESSION, 0);
    if (is_session)
        tell(session->init, &message, NULL, 0);
    else
        buf_done(&message);
}

/* Asks for a command: role, up to one word for it. Its serial. */
static uint64_t ask(struct session *session, const char *role, const char *word, bool terminal,
    const int *fds, size_t n_fds) {
    struct buf message = BUF_INIT;
    char name[64];

    snprintf(name, sizeof name, "role-%s", role);
    wire_begin(&message, GUEST_EXEC, ++session->serial);
    wire_add_text(&message, GUEST_ARG, *role == '/' ? role : self);
    if (*role != '/')
        wire_add_text(&message, GUEST_ARG, name);
    if (word)
        wire_add_text(&message, GUEST_ARG, word);
    wire_add_text(&message, GUEST_CWD, "/tmp");
    if (terminal)
        wire_add_u64(&message, GUEST_TERMINAL, 24 << 16 | 80);
    tell(session->init, &message, fds, n_fds);
    return session->serial;
}

struct command {
    uint64_t serial;
    pid_t pid; /* inside */
    FILE *output;
    int input;
};

static struct command start(struct session *session, const char *role, const char *word) {
    struct command command = { 0 };
    int in[2], out[2];

    ASSERT_CALL(pipe2(in, O_CLOEXEC));
    ASSERT_CALL(pipe2(out, O_CLOEXEC));
    command.serial = ask(session, role, word, false, (int[]){ in[0], out[1], out[1] }, 3);
    struct guest_record record = hear(session->init, GUEST_STARTED, NULL, NULL);
    ASSERT_EQ(record.serial, command.serial);
    close(in[0]);
    close(out[1]);
    command.pid = (pid_t)record.value;
    command.input = in[1];
    command.output = fdopen(out[0], "r");
    return command;
}

static void expect_line(struct command *command, const char *wanted) {
    char line[1024];

    ASSERT_NOT_NULL(fgets(line, sizeof line, command->output));
    ASSERT_STR_EQ(line, wanted);
}

/* Everything that has its output has ended. */
static void expect_end_of_output(struct command *command) {
    char line[256];

    while (fgets(line, sizeof line, command->output))
        ;
    ASSERT_TRUE(feof(command->output));
}

static struct guest_record expect_exit(
    struct session *session, const struct command *command, int status) {
    struct guest_record record = hear(session->init, GUEST_EXITED, NULL, NULL);

    ASSERT_EQ(record.serial, command->serial);
    ASSERT_EQ(record.value, status);
    return record;
}

static void send_signal(
    struct session *session, uint64_t target, int number, enum guest_scope scope) {
    struct buf message = BUF_INIT;

    wire_begin(&message, GUEST_SIGNAL, 1000);
    wire_add_u64(&message, GUEST_TARGET, target);
    wire_add_u64(&message, GUEST_NUMBER, (uint64_t)number);
    wire_add_u64(&message, GUEST_SCOPE, scope);
    tell(session->init, &message, NULL, 0);
}

static uint64_t signal_command(
    struct session *session, uint64_t target, int number, enum guest_scope scope, int error) {
    send_signal(session, target, number, scope);
    struct guest_record record = hear(session->init, GUEST_SIGNALLED, NULL, NULL);
    ASSERT_EQ(record.serial, 1000);
    ASSERT_EQ(record.error, error);
    return record.value;
}

static void request(struct session *session, uint32_t type) {
    struct buf message = BUF_INIT;

    wire_begin(&message, type, 2000);
    tell(session->init, &message, NULL, 0);
}

static uint64_t freeze(struct session *session) {
    request(session, GUEST_FREEZE);
    struct guest_record record = hear(session->init, GUEST_FROZEN, NULL, NULL);
    ASSERT_EQ(record.serial, 2000);
    ASSERT_EQ(record.error, 0);
    return record.value;
}

/* How many processes there are. */
static uint64_t count(struct session *session) {
    uint64_t n = freeze(session);

    request(session, GUEST_THAW);
    return n;
}

/* ---- commands ---- */

TEST(commands_run_side_by_side) {
    struct session session;

    open_box(&session, true);
    struct command first = start(&session, "/bin/cat", NULL),
                   second = start(&session, "/bin/cat", NULL);
    ASSERT_EQ(write(second.input, "two\n", 4), 4);
    ASSERT_EQ(write(first.input, "one\n", 4), 4);
    expect_line(&first, "one\n");
    expect_line(&second, "two\n");
    close(second.input);
    expect_exit(&session, &second, 0);
    close(first.input);
    expect_exit(&session, &first, 0);
    ASSERT_EQ(count(&session), 0);
}

TEST(run_without_a_session_is_one_command) {
    struct session session;
    int null = (int)ASSERT_CALL(open("/dev/null", O_RDWR | O_CLOEXEC));

    open_box(&session, false);
    struct command first = start(&session, "/bin/cat", NULL);
    uint64_t second = ask(&session, "/bin/cat", NULL, false, (int[]){ null, null, null }, 3);
    struct guest_record record = hear(session.init, GUEST_EXEC_FAILED, NULL, NULL);
    ASSERT_EQ(record.serial, second);
    ASSERT_EQ(record.error, EBUSY);
    close(first.input);
    expect_exit(&session, &first, 0);
}

TEST(many_commands_at_once) {
    struct session session;
    int null = (int)ASSERT_CALL(open("/dev/null", O_RDWR | O_CLOEXEC));

    open_box(&session, true);
    for (int i = 0; i < 40; i++) {
        ask(&session, "/bin/sleep", "1000", false, (int[]){ null, null, null }, 3);
        hear(session.init, GUEST_STARTED, NULL, NULL);
    }
    ASSERT_EQ(count(&session), 40);
}

TEST(each_end_has_its_own_usage) {
    struct session session;

    open_box(&session, true);
    struct command busy = start(&session, "compute", NULL);
    struct guest_record record = expect_exit(&session, &busy, 0);
    ASSERT_GE(record.cpu_ns, 50000000);
    ASSERT_GT(record.max_rss_bytes, 100000);
    struct command idle = start(&session, "/bin/true", NULL);
    ASSERT_LT(expect_exit(&session, &idle, 0).cpu_ns, record.cpu_ns);
}

TEST(descriptors_beyond_the_streams) {
    struct session session;
    int null = (int)ASSERT_CALL(open("/dev/null", O_RDWR | O_CLOEXEC)), out[2];
    struct command command = { 0 };

    open_box(&session, true);
    ASSERT_CALL(pipe2(out, O_CLOEXEC));
    command.output = fdopen(out[0], "r");
    command.serial =
        ask(&session, "descriptors", NULL, false, (int[]){ null, out[1], null, null, out[1] }, 5);
    close(out[1]);
    hear(session.init, GUEST_STARTED, NULL, NULL);
    expect_line(&command, "0 1 2 3 4 \n");
    expect_exit(&session, &command, 0);
    struct command plain = start(&session, "descriptors", NULL);
    expect_line(&plain, "0 1 2 \n");
}

TEST(commands_reach_each_other) {
    struct session session;
    char pid[16];

    open_box(&session, true);
    struct command one = start(&session, "wait", NULL);
    snprintf(pid, sizeof pid, "%d", one.pid);
    struct command other = start(&session, "peer", pid);
    expect_exit(&session, &other, 0);
    signal_command(&session, one.serial, SIGTERM, GUEST_SCOPE_MAIN, 0);
    expect_exit(&session, &one, SIGTERM);
}

TEST(init_is_unreachable) {
    struct session session;

    open_box(&session, true);
    struct command escape = start(&session, "escape", NULL);
    expect_exit(&session, &escape, 0);
    struct command after = start(&session, "/bin/true", NULL);
    expect_exit(&session, &after, 0);
}

TEST(init_traces_nobody) {
    struct session session;

    open_box(&session, true);
    struct command traced = start(&session, "traced", NULL);
    expect_exit(&session, &traced, 7 << 8);
}

/* It stops every new process at once; then none starts, but init still serves requests. */
TEST(start_that_is_held_up_is_undone) {
    struct session session;
    int null = (int)ASSERT_CALL(open("/dev/null", O_RDWR | O_CLOEXEC));

    open_box(&session, true);
    struct command stopper = start(&session, "stopper", NULL);
    expect_line(&stopper, "x\n");
    for (int i = 0; i < 5; i++) {
        struct guest_record record;
        int fds[4];
        size_t n;

        ask(&session, "/bin/true", NULL, false, (int[]){ null, null, null }, 3);
        ASSERT_EQ(fd_receive(session.init, &record, sizeof record, fds, &n), sizeof record);
        ASSERT_TRUE(record.kind == GUEST_STARTED || record.kind == GUEST_EXEC_FAILED ||
                    record.kind == GUEST_EXITED);
    }
    send_signal(&session, stopper.serial, SIGKILL, GUEST_SCOPE_MAIN);
    expect_end_of_output(&stopper);
}

/* ---- trees ---- */

TEST(tree_is_killed_with_its_daemons_and_no_other) {
    struct session session;

    open_box(&session, true);
    struct command one = start(&session, "daemon", NULL), other = start(&session, "daemon", NULL);
    expect_line(&one, "daemon\n");
    expect_line(&other, "daemon\n");
    ASSERT_GE(signal_command(&session, one.serial, SIGKILL, GUEST_SCOPE_TREE, 0), 2);
    expect_exit(&session, &one, SIGKILL);
    expect_end_of_output(&one);
    ASSERT_EQ(count(&session), 2); /* the other's two: that between them has ended */
    signal_command(&session, one.serial, SIGKILL, GUEST_SCOPE_TREE, ESRCH);
}

TEST(children_without_their_parent) {
    struct session session;

    open_box(&session, true);
    struct command command = start(&session, "daemon", NULL);
    expect_line(&command, "daemon\n");
    ASSERT_GE(signal_command(&session, command.serial, SIGKILL, GUEST_SCOPE_CHILDREN, 0), 1);
    ASSERT_EQ(count(&session), 1);
    ASSERT_EQ(signal_command(&session, command.serial, SIGTERM, GUEST_SCOPE_MAIN, 0), 1);
    expect_exit(&session, &command, SIGTERM);
}

TEST(background_processes_outlive_their_command) {
    struct session session;

    open_box(&session, true);
    struct command command = start(&session, "leave-daemon", NULL);
    expect_line(&command, "daemon\n");
    close(command.input);
    expect_exit(&session, &command, 3 << 8);
    ASSERT_EQ(count(&session), 1);
}

TEST_TIMEOUT(bomb_is_killed_whole, 60) {
    struct session session;

    open_box(&session, true);
    struct command bystander = start(&session, "/bin/cat", NULL);
    for (int i = 0; i < 5; i++) {
        struct command bomb = start(&session, "bomb", NULL);

        expect_line(&bomb, "x\n");
        expect_line(&bomb, "bomb\n");
        signal_command(&session, bomb.serial, SIGKILL, GUEST_SCOPE_TREE, 0);
        expect_exit(&session, &bomb, SIGKILL);
        expect_end_of_output(&bomb);
        ASSERT_EQ(count(&session), 1);
    }
    close(bystander.input);
    expect_exit(&session, &bystander, 0);
}

/* One that starts process after process is not taken for a tree that grows, and not stopped. */
TEST(busy_bystander_does_not_matter) {
    struct session session;

    open_box(&session, true);
    struct command busy = start(&session, "forks", NULL);
    expect_line(&busy, "x\n");
    for (int i = 0; i < 20; i++) {
        struct command one = start(&session, "daemon", NULL);

        expect_line(&one, "daemon\n");
        ASSERT_GE(signal_command(&session, one.serial, SIGKILL, GUEST_SCOPE_TREE, 0), 2);
        expect_exit(&session, &one, SIGKILL);
        expect_end_of_output(&one);
    }
    close(busy.input);
    expect_exit(&session, &busy, 0);
}

/* Another command undoes every SIGSTOP. */
TEST_TIMEOUT(bomb_is_killed_while_other_processes_continue_it, 60) {
    struct session session;

    open_box(&session, true);
    struct command helper = start(&session, "continue", NULL), bomb = start(&session, "bomb", NULL);
    expect_line(&helper, "x\n");
    expect_line(&bomb, "x\n");
    expect_line(&bomb, "bomb\n");
    signal_command(&session, bomb.serial, SIGKILL, GUEST_SCOPE_TREE, 0);
    expect_exit(&session, &bomb, SIGKILL);
    expect_end_of_output(&bomb);
    ASSERT_EQ(count(&session), 1);
    /* It may have been stopped for a moment, but not for longer: only what runs is ended by this.
     */
    signal_command(&session, helper.serial, SIGTERM, GUEST_SCOPE_MAIN, 0);
    expect_exit(&session, &helper, SIGTERM);
}

TEST(signal_reaches_the_group) {
    struct session session;

    open_box(&session, true);
    struct command command = start(&session, "daemon", NULL);
    expect_line(&command, "daemon\n");
    signal_command(&session, command.serial, SIGINT, GUEST_SCOPE_GROUP, 0);
    expect_exit(&session, &command, SIGINT);
    ASSERT_EQ(count(&session), 1); /* the daemon's session is another */
}

TEST(bad_signals_are_refused) {
    struct session session;

    open_box(&session, true);
    struct command command = start(&session, "wait", NULL);
    signal_command(&session, command.serial, 65, GUEST_SCOPE_MAIN, EINVAL);
    signal_command(&session, command.serial, SIGTERM, 5, EINVAL);
    signal_command(&session, command.serial, SIGTERM, 0, EINVAL);
    signal_command(&session, 77, SIGTERM, GUEST_SCOPE_MAIN, ESRCH);
    ASSERT_EQ(signal_command(&session, command.serial, 0, GUEST_SCOPE_TREE, 0), 1);
}

/* ---- freezing ---- */

TEST(frozen_sandbox_starts_nothing) {
    struct session session;
    int null = (int)ASSERT_CALL(open("/dev/null", O_RDWR | O_CLOEXEC));

    open_box(&session, true);
    ASSERT_EQ(freeze(&session), 0);
    ask(&session, "/bin/true", NULL, false, (int[]){ null, null, null }, 3);
    ASSERT_EQ(hear(session.init, GUEST_EXEC_FAILED, NULL, NULL).error, EBUSY);
    ASSERT_EQ(freeze(&session), 0);
    request(&session, GUEST_THAW);
    struct command command = start(&session, "/bin/true", NULL);
    expect_exit(&session, &command, 0);
}

TEST(frozen_command_resumes_when_thawed) {
    struct session session;

    open_box(&session, true);
    struct command command = start(&session, "/bin/cat", NULL);
    ASSERT_EQ(freeze(&session), 1);
    ASSERT_EQ(write(command.input, "later\n", 6), 6);
    ASSERT_EQ(freeze(&session), 1);
    request(&session, GUEST_THAW);
    expect_line(&command, "later\n");
}

TEST(stopped_processes_stay_stopped) {
    struct session session;

    open_box(&session, true);
    struct command stopped = start(&session, "/bin/cat", NULL),
                   running = start(&session, "/bin/cat", NULL);
    signal_command(&session, stopped.serial, SIGSTOP, GUEST_SCOPE_TREE, 0);
    ASSERT_EQ(count(&session), 2);
    close(stopped.input); /* would end it */
    close(running.input);
    expect_exit(&session, &running, 0);
    signal_command(&session, stopped.serial, SIGCONT, GUEST_SCOPE_MAIN, 0);
    expect_exit(&session, &stopped, 0);
}

TEST(frozen_command_can_be_killed) {
    struct session session;

    open_box(&session, true);
    struct command command = start(&session, "daemon", NULL),
                   other = start(&session, "/bin/cat", NULL);
    expect_line(&command, "daemon\n");
    freeze(&session);
    signal_command(&session, command.serial, SIGCONT, GUEST_SCOPE_MAIN, EBUSY);
    signal_command(&session, command.serial, SIGKILL, GUEST_SCOPE_TREE, 0);
    expect_exit(&session, &command, SIGKILL);
    expect_end_of_output(&command);
    ASSERT_EQ(freeze(&session), 1);
    request(&session, GUEST_THAW);
    close(other.input);
    expect_exit(&session, &other, 0);
}

TEST_TIMEOUT(fork_bombs_and_odd_processes_are_frozen, 60) {
    static const char *const roles[] = { "bomb", "continue", "vfork", "vfork-chain", "vfork-apart",
        "headless" };
    struct session session;

    for (size_t i = 0; i < ARRAY_SIZE(roles); i++) {
        open_box(&session, true);
        struct command command = start(&session, roles[i], NULL);
        expect_line(&command, "x\n");
        ASSERT_GE(freeze(&session), 1);
        uint64_t n = freeze(&session);
        ASSERT_EQ(freeze(&session), n);
        request(&session, GUEST_THAW);
        signal_command(&session, command.serial, SIGKILL, GUEST_SCOPE_TREE, 0);
        expect_exit(&session, &command, SIGKILL);
        close(session.init);
    }
}

TEST(full_sandbox_takes_commands) {
    struct session session;

    open_box(&session, true);
    struct command fill = start(&session, "fill", NULL);
    expect_line(&fill, "x\n");
    struct command command = start(&session, "/bin/true", NULL);
    expect_exit(&session, &command, 0);
    signal_command(&session, fill.serial, SIGKILL, GUEST_SCOPE_TREE, 0);
    expect_exit(&session, &fill, SIGKILL);
}

/* ---- terminals ---- */

TEST(command_has_a_terminal_of_its_own) {
    struct session session;
    struct command command = { 0 };
    int master;
    size_t n;

    open_box(&session, true);
    command.serial = ask(&session, "terminal", NULL, true, NULL, 0);
    hear(session.init, GUEST_STARTED, &master, &n);
    ASSERT_EQ(n, 1);
    command.output = fdopen(master, "r+");
    expect_line(&command, "ready\r\n");
    struct winsize size = { 10, 20, 0, 0 };
    ASSERT_CALL(ioctl(master, TIOCSWINSZ, &size));
    ASSERT_EQ(write(master, "\3", 1), 1); /* ^C */
    expect_exit(&session, &command, SIGINT);
}

TEST(terminal_foreground_is_kept) {
    struct session session;
    struct command command = { 0 };
    int master;
    size_t n;

    open_box(&session, true);
    command.serial = ask(&session, "terminal", NULL, true, NULL, 0);
    hear(session.init, GUEST_STARTED, &master, &n);
    command.output = fdopen(master, "r+");
    expect_line(&command, "ready\r\n");
    signal_command(&session, command.serial, SIGHUP, GUEST_SCOPE_GROUP, 0);
    expect_exit(&session, &command, SIGHUP);
}

/* A shell with job control does not take a freeze for the user's ^Z: it would put its command
 * aside, and not leave at the first "exit". */
TEST(shell_does_not_see_a_freeze) {
    struct session session;
    struct command command = { 0 };
    char text[65536] = "";
    size_t length = 0;
    int master;

    open_box(&session, true);
    if (access("/bin/bash", X_OK) < 0)
        SKIP("bash", "there is no /bin/bash");
    command.serial = ask(&session, "/bin/bash", "--norc", true, NULL, 0);
    hear(session.init, GUEST_STARTED, &master, NULL);
    ASSERT_GT(write(master, "echo a''b; cat\n", 15), 0);
    while (!strstr(text, "ab\r\n")) {
        ssize_t n = ASSERT_CALL(read(master, text + length, sizeof text - 1 - length));
        length += (size_t)n;
    }
    for (int i = 0; i < 30; i++)
        ASSERT_GE(count(&session), 1);
    ASSERT_GT(write(master, "c''d\n", 5), 0);
    ASSERT_EQ(write(master, "\4exit 5\n", 8), 8);
    expect_exit(&session, &command, 5 << 8);
}

/* The kernel has some thousand for the whole host. */
TEST(terminals_are_few) {
    struct session session;

    open_box(&session, true);
    struct command command = start(&session, "terminals", NULL);
    struct guest_record record = hear(session.init, GUEST_EXITED, NULL, NULL);
    ASSERT_EQ(record.serial, command.serial);
    ASSERT_EQ(record.value >> 8, 64);
}

/* ---- agents ---- */

/* The error of asking for one more. */
static int serve_files(struct session *session, int *ret_socket) {
    struct buf message = BUF_INIT;
    int pair[2];

    ASSERT_CALL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
    wire_begin(&message, GUEST_FILES, 3000);
    tell(session->init, &message, &pair[1], 1);
    close(pair[1]);
    struct guest_record record = hear(session->init, GUEST_FILES_SERVED, NULL, NULL);
    ASSERT_EQ(record.serial, 3000);
    *ret_socket = pair[0];
    return record.error;
}

/* Each ends with its socket, and init reports the end. */
static void end_agents(struct session *session, const int *sockets) {
    for (int i = 0; i < 64; i++)
        close(sockets[i]);
    for (int i = 0; i < 64; i++)
        (void)hear(session->init, GUEST_FILES_ENDED, NULL, NULL);
}

TEST(agents_are_few_and_not_counted) {
    struct session session;
    int sockets[65];

    open_box(&session, true);
    for (int i = 0; i < 65; i++)
        ASSERT_EQ(serve_files(&session, &sockets[i]), i < 64 ? 0 : EAGAIN);
    ASSERT_EQ(count(&session), 0);
    struct command command = start(&session, "/bin/true", NULL);
    expect_exit(&session, &command, 0);
    end_agents(&session, sockets);
    close(sockets[64]);
    ASSERT_EQ(serve_files(&session, &sockets[0]), 0);
}

TEST(agents_are_not_stopped_by_guests) {
    struct session session;
    int sockets[64];

    open_box(&session, true);
    for (int i = 0; i < 64; i++)
        ASSERT_EQ(serve_files(&session, &sockets[i]), 0);
    struct command command = start(&session, "stop-all", NULL);
    expect_exit(&session, &command, 0);
    end_agents(&session, sockets);
    ASSERT_EQ(serve_files(&session, &sockets[0]), 0);
}

TEST(no_agent_is_made_while_frozen) {
    struct session session;
    int socket;

    open_box(&session, true);
    ASSERT_EQ(serve_files(&session, &socket), 0);
    ASSERT_EQ(freeze(&session), 0);
    ASSERT_EQ(serve_files(&session, &socket), EBUSY);
}
