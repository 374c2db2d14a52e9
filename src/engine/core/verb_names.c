/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/verb_names.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "engine/protocol.h"

static struct { uint64_t requests, errors; } counts[VERB_END];

const char *verb_name(enum protocol_verb verb) {
    static const char *const names[] = {
#define PROTOCOL_VERB(constant, name) [VERB_##constant] = name,
        PROTOCOL_VERBS(PROTOCOL_VERB)
#undef PROTOCOL_VERB
    };

    return verb < ARRAY_SIZE(names) && names[verb] ? names[verb] : "?";
}

void verb_count_request(enum protocol_verb verb) {
    counts[verb].requests++;
}

void verb_count_failure(enum protocol_verb verb) {
    counts[verb].errors++;
}

void verbs_status(struct buf *to) {
    const char *between = "";

    buf_add_text(to, "\"verbs\": {");
    for (enum protocol_verb verb = VERB_NONE + 1; verb < VERB_END; verb++) {
        if (!counts[verb].requests)
            continue;
        buf_printf(to, "%s\"%s\": {\"requests\": %llu, \"errors\": %llu}", between, verb_name(verb),
            (unsigned long long)counts[verb].requests, (unsigned long long)counts[verb].errors);
        between = ", ";
    }
    buf_add_text(to, "}");
}
