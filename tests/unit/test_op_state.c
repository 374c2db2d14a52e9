/* SPDX-License-Identifier: Apache-2.0 */
/* The states of an operation: every pair of waits and every pair of a wait and an event, compared
 * with lists that are written down here a second time. No sandbox and no kernel is needed. */
#include "test.h"

#include <stdio.h>

#include "engine/session/op_state.h"

#define AFTER_SNAPSHOT " size compaction children store-job "

/* The waits that may follow each, besides "done". */
static const char *const next_names[OP_N_WAITS] = {
    [OP_WAIT_QUEUED] = " started ",
    [OP_WAIT_STARTED] = " flatten commands-sent freeze-slot frozen box-lost dump-slot init-ack"
                        " box-ready restore trial layers close " AFTER_SNAPSHOT,
    [OP_WAIT_FLATTEN] = " started ",
    [OP_WAIT_COMMANDS_SENT] = " freeze-slot frozen box-lost dump-slot init-ack " AFTER_SNAPSHOT,
    [OP_WAIT_FREEZE_SLOT] = " freeze-slot frozen box-lost started ",
    [OP_WAIT_FROZEN] = " started walk dump-slot init-ack copy " AFTER_SNAPSHOT,
    [OP_WAIT_WALK] = "",
    [OP_WAIT_DUMP_SLOT] = " dump-slot init-ack ",
    [OP_WAIT_INIT_ACK] = " dump ",
    [OP_WAIT_DUMP] = " dump-slot init-ack freeze-slot frozen box-lost copy image " AFTER_SNAPSHOT,
    [OP_WAIT_COPY] = " image " AFTER_SNAPSHOT,
    [OP_WAIT_IMAGE] = " dump-slot init-ack " AFTER_SNAPSHOT,
    [OP_WAIT_SIZE] = " compaction children store-job ",
    [OP_WAIT_COMPACTION] = " children store-job ",
    [OP_WAIT_BOX_LOST] = " started ",
    [OP_WAIT_BOX_READY] = "",
    [OP_WAIT_RESTORE] = "",
    [OP_WAIT_CHILDREN] = " launcher-room ",
    [OP_WAIT_LAUNCHER_ROOM] = " children ",
    [OP_WAIT_TRIAL] = " store-job ",
    [OP_WAIT_LAYERS] = " store-job ",
    [OP_WAIT_STORE_JOB] = " restore box-death ",
    [OP_WAIT_BOX_DEATH] = "",
    [OP_WAIT_CLOSE] = "",
    [OP_WAIT_DONE] = "",
};

/* The waits in which each event is taken; whether it is ignored elsewhere, or illegal. */
static const struct {
    const char *taken;
    bool is_ignored_elsewhere;
} rules[OP_N_EVENTS] = {
    [OP_EVENT_START] = { " queued ", false },
    [OP_EVENT_FLATTENED] = { " flatten ", false },
    [OP_EVENT_COMMANDS_SENT] = { " commands-sent ", true },
    [OP_EVENT_INIT_REPLY] = { " frozen init-ack ", true },
    [OP_EVENT_PROCESSES_FREE] = { " freeze-slot dump-slot ", true },
    [OP_EVENT_WALKED] = { " walk ", true },
    [OP_EVENT_DUMPED] = { " dump ", false },
    [OP_EVENT_DUMP_FAILED] = { " dump copy image size compaction children store-job ", false },
    [OP_EVENT_DUMP_AGAIN] = { " dump image ", false },
    [OP_EVENT_IMAGE_WRITTEN] = { " image ", false },
    [OP_EVENT_COPIED] = { " copy ", false },
    [OP_EVENT_SIZED] = { " size ", true },
    [OP_EVENT_COMPACTED] = { " compaction ", true },
    [OP_EVENT_BOX_READY] = { " box-ready restore ", true },
    [OP_EVENT_BOX_LOST] = { " queued started flatten commands-sent freeze-slot frozen walk"
                            " dump-slot init-ack dump copy image size compaction box-lost"
                            " box-ready restore children launcher-room trial layers store-job"
                            " box-death close ",
        false },
    [OP_EVENT_BOX_DEAD] = { " box-death ", true },
    [OP_EVENT_CHILD_READY] = { " children launcher-room ", false },
    [OP_EVENT_TRIED] = { " trial ", false },
    [OP_EVENT_LAYER_MADE] = { " layers ", false },
    [OP_EVENT_STORE_JOB_DONE] = { " store-job ", false },
    [OP_EVENT_CANCEL] = { " store-job ", true },
};

static bool has_word(const char *words, const char *word) {
    char padded[64];

    snprintf(padded, sizeof padded, " %s ", word);
    return strstr(words, padded);
}

TEST(every_pair_of_waits) {
    for (int before = 0; before < OP_N_WAITS; before++)
        for (int next = 0; next < OP_N_WAITS; next++) {
            const char *name = op_wait_name((enum op_wait)next);
            bool may = has_word(next_names[before], name) ||
                       (next == OP_WAIT_DONE && before != OP_WAIT_DONE);

            if (op_wait_may_follow((enum op_wait)before, (enum op_wait)next) != may)
                FAIL("%s after %s: %s", name, op_wait_name((enum op_wait)before),
                    may ? "refused" : "allowed");
        }
}

TEST(every_event_in_every_wait) {
    for (int event = 0; event < OP_N_EVENTS; event++)
        for (int wait = 0; wait < OP_N_WAITS; wait++) {
            const char *name = op_wait_name((enum op_wait)wait);
            enum op_answer want = has_word(rules[event].taken, name)  ? OP_EVENT_IS_TAKEN
                                  : rules[event].is_ignored_elsewhere ? OP_EVENT_IS_IGNORED
                                                                      : OP_EVENT_IS_ILLEGAL;
            enum op_answer is = op_wait_takes((enum op_wait)wait, (enum op_event)event);

            if (is != want)
                FAIL("%s in %s: %d, not %d", op_event_name((enum op_event)event), name, (int)is,
                    (int)want);
        }
}

/* All waits that can come after `first`, itself included. */
static void reach(enum op_wait first, bool *reached) {
    if (reached[first])
        return;
    reached[first] = true;
    for (int next = 0; next < OP_N_WAITS; next++)
        if (op_wait_may_follow(first, (enum op_wait)next))
            reach((enum op_wait)next, reached);
}

TEST(every_wait_is_reached_from_the_queue) {
    bool reached[OP_N_WAITS] = { false };

    reach(OP_WAIT_QUEUED, reached);
    for (int wait = 0; wait < OP_N_WAITS; wait++)
        if (!reached[wait])
            FAIL("%s is never reached", op_wait_name((enum op_wait)wait));
}

TEST(every_wait_leads_to_the_end) {
    for (int wait = 0; wait < OP_N_WAITS; wait++) {
        bool reached[OP_N_WAITS] = { false };

        reach((enum op_wait)wait, reached);
        ASSERT_TRUE(reached[OP_WAIT_DONE]);
    }
}

/* The loss of the box does not count: an operation must not need it to continue. The first step is
 * not waited for, and the end of a closed sandbox is no event of its operations. */
TEST(every_wait_is_ended_by_an_event) {
    for (int wait = 0; wait < OP_N_WAITS; wait++) {
        bool is_ended = wait == OP_WAIT_STARTED || wait == OP_WAIT_CLOSE || wait == OP_WAIT_DONE ||
                        wait == OP_WAIT_BOX_LOST;

        for (int event = 0; event < OP_N_EVENTS; event++)
            is_ended |=
                event != OP_EVENT_BOX_LOST &&
                op_wait_takes((enum op_wait)wait, (enum op_event)event) == OP_EVENT_IS_TAKEN;
        if (!is_ended)
            FAIL("nothing ends %s", op_wait_name((enum op_wait)wait));
    }
}

TEST(nothing_is_taken_after_the_end) {
    for (int event = 0; event < OP_N_EVENTS; event++)
        ASSERT_TRUE(op_wait_takes(OP_WAIT_DONE, (enum op_event)event) != OP_EVENT_IS_TAKEN);
}

TEST(names_are_different) {
    for (int i = 0; i < OP_N_WAITS; i++)
        for (int k = 0; k < i; k++)
            ASSERT_TRUE(strcmp(op_wait_name((enum op_wait)i), op_wait_name((enum op_wait)k)));
    for (int i = 0; i < OP_N_EVENTS; i++)
        for (int k = 0; k < i; k++)
            ASSERT_TRUE(strcmp(op_event_name((enum op_event)i), op_event_name((enum op_event)k)));
    ASSERT_STR_EQ(op_wait_name(OP_N_WAITS), "?");
    ASSERT_STR_EQ(op_event_name(OP_N_EVENTS), "?");
}

/* A paused sandbox that is resumed meanwhile is thawed by the operation, not at once. */
TEST(processes_are_paused_from_the_freeze_to_the_copy) {
    static const char holding[] = " frozen walk dump-slot init-ack dump copy image ";

    for (int wait = 0; wait < OP_N_WAITS; wait++)
        ASSERT_TRUE(op_wait_holds_processes((enum op_wait)wait) ==
                    has_word(holding, op_wait_name((enum op_wait)wait)));
}
