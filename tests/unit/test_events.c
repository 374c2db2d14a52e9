/* SPDX-License-Identifier: Apache-2.0 */
/* The events that are kept for those who resume: a tenant loses none by another's. */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "serve/events.h"

static struct tenant quiet, loud;
static unsigned n_told;

static void begin(struct tenant *tenant) {
    list_init(&tenant->events.kept);
    list_init(&tenant->events.watchers);
}

static void on_told(struct events_watcher *watcher) {
    (void)watcher;
    n_told++;
}

/* How many there are after this number. */
static unsigned count(const struct tenant *tenant, uint64_t number) {
    unsigned n = 0;

    while (events_next(tenant, &number))
        n++;
    return n;
}

TEST(a_tenant_with_many_events_loses_its_own) {
    begin(&quiet);
    begin(&loud);
    events_add(&quiet, "sandbox.created", NULL);
    for (unsigned i = 0; i < EVENTS_KEPT + 10; i++)
        events_add(&loud, "sandbox.note", NULL);
    ASSERT_EQ(count(&quiet, 0), 1u);
    ASSERT_EQ(events_first(&quiet), (uint64_t)1);
    ASSERT_EQ(count(&loud, 0), EVENTS_KEPT);
    ASSERT_EQ(events_first(&loud), (uint64_t)11);
}

TEST(numbers_tell_nothing_of_another_tenant) {
    uint64_t number = 0;

    begin(&quiet);
    begin(&loud);
    events_add(&loud, "sandbox.note", NULL);
    events_add(&quiet, "sandbox.ended", NULL);
    const char *text = events_next(&quiet, &number);
    ASSERT_EQ(number, (uint64_t)1);
    ASSERT_EQ(text && strstr(text, "event: sandbox.ended\nid: 1\n") == text, 1);
}

TEST(watchers_hear_of_their_tenant_alone) {
    struct events_watcher watcher = { .told = on_told };

    begin(&quiet);
    begin(&loud);
    events_watch(&quiet, &watcher);
    events_add(&loud, "sandbox.note", NULL);
    ASSERT_EQ(n_told, 0u);
    events_add(&quiet, "sandbox.note", NULL);
    ASSERT_EQ(n_told, 1u);
    list_remove(&watcher.node);
}
