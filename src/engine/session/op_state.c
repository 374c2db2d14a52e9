/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/session/op_state.h"

#include <stdint.h>

#include "engine/box/box.h"

#define IN(suffix) (UINT32_C(1) << OP_WAIT_##suffix)
#define EVERY_WAIT ((UINT32_C(1) << OP_N_WAITS) - 1)

_Static_assert(OP_N_WAITS <= 32, "a set of waits is a 32-bit mask");

/* The snapshot is taken, and the operation's own steps come next. */
#define USE_OF_SNAPSHOT (IN(CHILDREN) | IN(STORE_JOB))
#define AFTER_SNAPSHOT (IN(SIZE) | IN(COMPACTION) | USE_OF_SNAPSHOT)

#define BEGIN_FREEZE (IN(FREEZE_SLOT) | IN(FROZEN) | IN(BOX_LOST))
#define BEGIN_DUMP (IN(DUMP_SLOT) | IN(INIT_ACK))

/* Which waits may follow each wait, besides DONE, which may follow every other: an operation can
 * fail at any time, as its sandbox can be closed. */
static const uint32_t next_waits[OP_N_WAITS] = {
    [OP_WAIT_QUEUED] = IN(STARTED),
    [OP_WAIT_STARTED] = IN(FLATTEN) | IN(COMMANDS_SENT) | BEGIN_FREEZE | BEGIN_DUMP |
                        AFTER_SNAPSHOT | IN(BOX_READY) | IN(RESTORE) | IN(TRIAL) | IN(LAYERS) |
                        IN(CLOSE),
    [OP_WAIT_FLATTEN] = IN(STARTED),
    [OP_WAIT_COMMANDS_SENT] = BEGIN_FREEZE | BEGIN_DUMP | AFTER_SNAPSHOT,
    [OP_WAIT_FREEZE_SLOT] = BEGIN_FREEZE | IN(STARTED),
    /* Commands that had to stand for the files' sake turn out to be there: they are dumped. */
    [OP_WAIT_FROZEN] = IN(STARTED) | IN(WALK) | BEGIN_DUMP | IN(COPY) | AFTER_SNAPSHOT,
    [OP_WAIT_WALK] = 0,
    [OP_WAIT_DUMP_SLOT] = BEGIN_DUMP,
    [OP_WAIT_INIT_ACK] = IN(DUMP),
    /* Processes that were to be dumped may have ended: then the files are taken alone. */
    [OP_WAIT_DUMP] = BEGIN_DUMP | BEGIN_FREEZE | IN(COPY) | IN(IMAGE) | AFTER_SNAPSHOT,
    [OP_WAIT_COPY] = IN(IMAGE) | AFTER_SNAPSHOT,
    [OP_WAIT_IMAGE] = BEGIN_DUMP | AFTER_SNAPSHOT,
    [OP_WAIT_SIZE] = IN(COMPACTION) | USE_OF_SNAPSHOT,
    [OP_WAIT_COMPACTION] = USE_OF_SNAPSHOT,
    [OP_WAIT_BOX_LOST] = IN(STARTED),
    [OP_WAIT_BOX_READY] = 0,
    [OP_WAIT_RESTORE] = 0,
    [OP_WAIT_CHILDREN] = IN(LAUNCHER_ROOM),
    [OP_WAIT_LAUNCHER_ROOM] = IN(CHILDREN),
    [OP_WAIT_TRIAL] = IN(STORE_JOB),
    [OP_WAIT_LAYERS] = IN(STORE_JOB),
    [OP_WAIT_STORE_JOB] = IN(RESTORE) | IN(BOX_DEATH),
    [OP_WAIT_BOX_DEATH] = 0,
    [OP_WAIT_CLOSE] = 0,
    [OP_WAIT_DONE] = 0,
};

/* In which waits an event is taken, and in which it is ignored. In all others it is illegal. An
 * event that a sandbox sends to all operations that may wait (`EVERY_WAIT`) is ignored by those
 * that do not. */
static const struct {
    uint32_t taken, ignored;
} rules[OP_N_EVENTS] = {
    [OP_EVENT_START] = { IN(QUEUED), 0 },
    [OP_EVENT_FLATTENED] = { IN(FLATTEN), 0 },
    [OP_EVENT_COMMANDS_SENT] = { IN(COMMANDS_SENT), EVERY_WAIT },
    /* Every signal and every pause is answered, also to nobody. */
    [OP_EVENT_INIT_REPLY] = { IN(FROZEN) | IN(INIT_ACK), EVERY_WAIT },
    [OP_EVENT_PROCESSES_FREE] = { IN(FREEZE_SLOT) | IN(DUMP_SLOT), EVERY_WAIT },
    [OP_EVENT_WALKED] = { IN(WALK), EVERY_WAIT },
    [OP_EVENT_DUMPED] = { IN(DUMP), 0 },
    /* HIBERNATE keeps the dump until the store has all of it, and FORK of a group until the others
     * have theirs. */
    [OP_EVENT_DUMP_FAILED] = { IN(DUMP) | IN(COPY) | IN(IMAGE) | IN(SIZE) | IN(COMPACTION) |
                                   IN(STORE_JOB) | IN(CHILDREN),
        0 },
    [OP_EVENT_DUMP_AGAIN] = { IN(DUMP) | IN(IMAGE), 0 },
    [OP_EVENT_IMAGE_WRITTEN] = { IN(IMAGE), 0 },
    [OP_EVENT_COPIED] = { IN(COPY), 0 },
    [OP_EVENT_SIZED] = { IN(SIZE), EVERY_WAIT },
    [OP_EVENT_COMPACTED] = { IN(COMPACTION), EVERY_WAIT },
    [OP_EVENT_BOX_READY] = { IN(BOX_READY) | IN(RESTORE), EVERY_WAIT },
    [OP_EVENT_BOX_LOST] = { EVERY_WAIT & ~IN(DONE), 0 },
    [OP_EVENT_BOX_DEAD] = { IN(BOX_DEATH), EVERY_WAIT },
    [OP_EVENT_CHILD_READY] = { IN(CHILDREN) | IN(LAUNCHER_ROOM), 0 },
    [OP_EVENT_TRIED] = { IN(TRIAL), 0 },
    [OP_EVENT_LAYER_MADE] = { IN(LAYERS), 0 },
    [OP_EVENT_STORE_JOB_DONE] = { IN(STORE_JOB), 0 },
    [OP_EVENT_CANCEL] = { IN(STORE_JOB), EVERY_WAIT },
};

const char *op_wait_name(enum op_wait wait) {
    switch (wait) {
#define X(suffix, text)                                                                            \
    case OP_WAIT_##suffix:                                                                         \
        return text;
        OP_WAITS(X)
#undef X
    case OP_N_WAITS:
        break;
    }
    return "?";
}

const char *op_event_name(enum op_event event) {
    switch (event) {
#define X(suffix, text)                                                                            \
    case OP_EVENT_##suffix:                                                                        \
        return text;
        OP_EVENTS(X)
#undef X
    case OP_N_EVENTS:
        break;
    }
    return "?";
}

bool op_wait_may_follow(enum op_wait before, enum op_wait next) {
    return next == OP_WAIT_DONE ? before != OP_WAIT_DONE : next_waits[before] >> next & 1;
}

enum op_answer op_wait_takes(enum op_wait wait, enum op_event event) {
    return rules[event].taken >> wait & 1     ? OP_EVENT_IS_TAKEN
           : rules[event].ignored >> wait & 1 ? OP_EVENT_IS_IGNORED
                                              : OP_EVENT_IS_ILLEGAL;
}

bool op_wait_holds_processes(enum op_wait wait) {
    const uint32_t holding =
        IN(FROZEN) | IN(WALK) | IN(DUMP_SLOT) | IN(INIT_ACK) | IN(DUMP) | IN(COPY) | IN(IMAGE);

    return holding >> wait & 1;
}
