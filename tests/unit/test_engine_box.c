/* SPDX-License-Identifier: Apache-2.0 */
/* A box between a fake launcher and a fake owner: the events that the owner gets, their order, and
 * that the box is freed once. The launcher is the other end of a socket; init is a process that
 * sleeps. */
#include "test.h"

#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/wire.h"
#include "engine/box/box.h"
#include "engine/box/launcher.h"
#include "engine/box/profile.h"
#include "engine/command/command.h"
#include "engine/core/context.h"
#include "engine/pool/spares.h"
#include "policy/plan.h"
#include "sys/syscalls.h"

static struct engine engine;
static struct profile profile;
static struct plan plan;
static struct policy policy;
static int launcher_end; /* of the fake launcher */
static int init_end;     /* of the fake init */
static uint64_t serial;  /* of the last CREATE */
static pid_t init;
static struct box *box;
static char heard[256]; /* the events, in order */

static void hear(const char *who, const char *event) {
    size_t n = strlen(heard);

    snprintf(heard + n, sizeof heard - n, "%s%s%s", n ? " " : "", who, event);
}

static void on_ready(void *owner, struct box *of) {
    ASSERT_TRUE(of->state == BOX_READY);
    hear(owner, "ready");
}

static void on_report(
    void *owner, struct box *of, const struct guest_record *record, int *fds, size_t n_fds) {
    (void)of;
    (void)fds;
    ASSERT_EQ(n_fds, 0);
    ASSERT_EQ(record->kind, GUEST_EXITED);
    hear(owner, "report");
}

static void on_limit(void *owner, struct box *of, enum box_limit limit) {
    (void)of;
    hear(owner, limit == BOX_LIMIT_DISK ? "disk" : "memory");
}

static void on_failed(void *owner, struct box *of, const struct guest_record *record) {
    (void)of;
    hear(owner, record->error == ECHILD ? "lost" : "failed");
}

static void on_dead(void *owner, struct box *of) {
    (void)of;
    hear(owner, "dead");
}

static const struct box_owner_ops ops = {
    .ready = on_ready, .report = on_report, .limit = on_limit, .failed = on_failed, .dead = on_dead
};

/* An owner that ends the box in each callback. */
static void kill_failed(void *owner, struct box *of, const struct guest_record *record) {
    on_failed(owner, of, record);
    box_kill(of);
    box_orphan(of);
}

static void kill_dead(void *owner, struct box *of) {
    on_dead(owner, of);
    box_kill(of);
}

static const struct box_owner_ops killing_ops = {
    .ready = on_ready, .report = on_report, .failed = kill_failed, .dead = kill_dead
};

static void on_launcher_lost(void *owner, struct launcher *launcher) {
    ASSERT_TRUE(owner == &profile && launcher == profile.launcher);
    profile.launcher = NULL;
    hear("", "launcher-lost");
}

static const struct launcher_owner_ops launcher_ops = { .lost = on_launcher_lost };

static void nothing(struct engine *of) {
    (void)of;
}

static void on_tidy(struct loop_timer *timer) {
    (void)timer;
}

/* The loop ends when the box is freed, as that of an engine which stops. */
static void begin(void) {
    engine.hooks = (struct engine_hooks){ .room_freed = nothing, .make_room = nothing };
    engine.boxes.tidy.callback = on_tidy;
    engine.files.most = engine.files.limit = 1024;
    engine.stopping = true;
    list_init(&engine.boxes.all);
    list_init(&engine.runs.all);
    ASSERT_OK(loop_new(&engine.loop));
    ASSERT_OK(cgroup_root_open(&engine.features, CGROUP_LIMITS, &engine.cgroups));
    profile.engine = &engine;
    profile.plan = &plan;
    profile.policy = &policy;
    profile.user_namespace.fd = -EBADF;
    list_init(&profile.spares);
    list_init(&profile.slots);
    ASSERT_OK(launcher_new(&engine, 1, &profile.launcher, &launcher_end));
    ASSERT_OK(launcher_own(profile.launcher, &launcher_ops, &profile));
}

/* A box of this owner, up to the launcher's message. */
static void request(const struct box_owner_ops *of, const char *owner) {
    static struct wire_message message;

    ASSERT_OK(
        box_new(&profile, &(struct box_config){ 0 }, of, (void *)(uintptr_t)owner, &box, NULL));
    ASSERT_EQ(wire_receive(launcher_end, &message), 1);
    ASSERT_EQ(message.header.type, GUEST_CREATE);
    ASSERT_EQ(message.n_fds, 1);
    serial = message.header.serial;
    init_end = TAKE_FD(message.fds[0]);
    wire_message_done(&message);
}

static void send_record(int socket, const struct guest_record *record, const int *fds, size_t n) {
    ASSERT_OK(fd_send(socket, record, sizeof *record, fds, n));
}

static void answer_created(void) {
    auto_close int pidfd = -EBADF;

    init = (pid_t)ASSERT_CALL(fork());
    if (init == 0) {
        pause();
        _exit(0);
    }
    pidfd = ASSERT_CALL(sys_pidfd_open(init, 0));
    send_record(launcher_end,
        &(struct guest_record){ .kind = GUEST_CREATED, .serial = serial, .value = (uint64_t)init },
        &pidfd, 1);
}

static void report_set_up(void) {
    send_record(init_end, &(struct guest_record){ .kind = GUEST_BOX_READY }, NULL, 0);
}

static void report_exited(void) {
    send_record(init_end, &(struct guest_record){ .kind = GUEST_EXITED }, NULL, 0);
}

/* Until the box is freed. */
static void run(void) {
    ASSERT_OK(loop_run(engine.loop));
    ASSERT_EQ(engine.boxes.n, 0);
    ASSERT_EQ(engine.files.used, 0);
    ASSERT_TRUE(list_empty(&engine.boxes.all));
}

static struct loop_timer later;

static void kill_init(struct loop_timer *timer) {
    (void)timer;
    ASSERT_OK(kill(init, SIGKILL));
}

/* Sources that are ready come first. */
static void kill_init_later(void) {
    ASSERT_OK(loop_timer_set(engine.loop, &later, 0, kill_init));
}

TEST(owner_gets_ready_report_and_dead) {
    begin();
    request(&ops, "run:");
    answer_created();
    report_set_up();
    report_exited();
    kill_init_later();
    run();
    ASSERT_STR_EQ(heard, "run:ready run:report run:dead");
}

TEST(ready_needs_the_launcher_and_init) {
    begin();
    request(&ops, "run:");
    answer_created();
    kill_init_later();
    run();
    ASSERT_STR_EQ(heard, "run:dead");
}

TEST(last_reports_come_before_death) {
    begin();
    request(&ops, "run:");
    answer_created();
    report_set_up();
    report_exited();
    report_exited();
    ASSERT_OK(kill(init, SIGKILL));
    run();
    ASSERT_STR_EQ(heard, "run:ready run:report run:report run:dead");
}

TEST(refused_box_has_failed_and_is_not_dead) {
    begin();
    request(&ops, "run:");
    send_record(launcher_end,
        &(struct guest_record){ .kind = GUEST_CREATE_FAILED, .serial = serial, .error = ENOMEM },
        NULL, 0);
    ASSERT_STR_EQ(heard, "");
    run();
    ASSERT_STR_EQ(heard, "run:failed");
}

TEST(failed_setup_is_reported_once) {
    begin();
    request(&ops, "run:");
    answer_created();
    send_record(init_end, &(struct guest_record){ .kind = GUEST_FAILED, .error = EPERM }, NULL, 0);
    run();
    ASSERT_STR_EQ(heard, "run:failed");
}

TEST(owner_may_kill_a_box_as_it_fails) {
    begin();
    request(&killing_ops, "run:");
    send_record(launcher_end,
        &(struct guest_record){ .kind = GUEST_CREATE_FAILED, .serial = serial, .error = ENOMEM },
        NULL, 0);
    run();
    ASSERT_STR_EQ(heard, "run:failed");
}

TEST(owner_may_kill_a_box_as_it_dies) {
    begin();
    request(&killing_ops, "run:");
    answer_created();
    kill_init_later();
    run();
    ASSERT_STR_EQ(heard, "run:dead");
}

TEST(lost_launcher_fails_its_boxes_from_the_loop) {
    begin();
    request(&ops, "run:");
    launcher_drop(profile.launcher);
    ASSERT_STR_EQ(heard, "launcher-lost");
    run();
    ASSERT_STR_EQ(heard, "launcher-lost run:lost");
}

TEST(dead_launcher_is_noticed) {
    begin();
    request(&ops, "run:");
    close_fd(&launcher_end);
    run();
    ASSERT_STR_EQ(heard, "launcher-lost run:lost");
}

TEST(box_killed_on_its_way_waits_for_the_launcher) {
    begin();
    request(&ops, "run:");
    box_set_owner(box, NULL, NULL);
    box_kill(box);
    ASSERT_EQ(engine.boxes.n, 1);
    answer_created();
    run();
    ASSERT_STR_EQ(heard, "");
}

TEST(limits_are_for_owners_that_run_commands) {
    begin();
    request(&ops, "run:");
    ASSERT_TRUE(box_is_in_use(box));
    box_meet_limit(box, BOX_LIMIT_DISK);
    box_set_owner(box, &killing_ops, (void *)(uintptr_t) "spare:");
    ASSERT_TRUE(!box_is_in_use(box));
    box_meet_limit(box, BOX_LIMIT_MEMORY);
    ASSERT_STR_EQ(heard, "run:disk");
}

TEST(spare_that_is_taken_reports_to_its_new_owner) {
    begin();
    request(NULL, NULL);
    spares_add(box);
    ASSERT_EQ(profile.n_spares, 1);
    ASSERT_TRUE(spares_take(&profile, true) == NULL); /* it is not layered */
    ASSERT_TRUE(spares_take(&profile, false) == box);
    ASSERT_EQ(profile.n_spares, 0);
    box_set_owner(box, &ops, (void *)(uintptr_t) "session:");
    answer_created();
    report_set_up();
    kill_init_later();
    run();
    ASSERT_STR_EQ(heard, "session:ready session:dead");
}

TEST(dead_spare_is_none) {
    begin();
    request(NULL, NULL);
    spares_add(box);
    answer_created();
    report_set_up();
    kill_init_later();
    run();
    ASSERT_EQ(profile.n_spares, 0);
    ASSERT_TRUE(list_empty(&profile.spares));
}

TEST(dropped_spares_are_gone_at_once) {
    begin();
    request(NULL, NULL);
    spares_add(box);
    spares_drop(&profile);
    ASSERT_EQ(profile.n_spares, 0);
    ASSERT_TRUE(spares_take(&profile, false) == NULL);
    answer_created();
    run();
}
