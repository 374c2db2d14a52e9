/* SPDX-License-Identifier: Apache-2.0 */
/* Flags, errors and progress of the instructions. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "build/build.h"

#define MAX_TITLE 160

int build_out_of_memory(struct build *build) {
    return error_set(
        build->error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "build", "out of memory");
}

int step_failed(struct build *build, const struct instruction *at, int r) {
    const struct rollbox_error inner = *build->error;

    error_set(build->error, inner.code, inner.error_number, inner.stage, "%.200s:%u: %s",
        build->file.name, at->line, inner.message);
    return r;
}

const char *step_flag(const struct instruction *at, const char *name) {
    const size_t length = strlen(name);
    const char *found = NULL;

    for (size_t i = 0; i < at->flags.n; i++) {
        const char *flag = at->flags.list[i];

        if (strncmp(flag, name, length) == 0 && (flag[length] == '=' || !flag[length]))
            found = flag[length] ? flag + length + 1 : "";
    }
    return found;
}

char *step_option(const char *text, const char *name) {
    const size_t length = strlen(name);

    for (const char *at = text; *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, name, length) == 0 &&
            (at[length] == '=' || !at[length] || at[length] == ','))
            return at[length] == '=' ? strndup(at + length + 1, strcspn(at + length + 1, ","))
                                     : strdup("");
    return NULL;
}

/* ---- keys ---- */

void step_key_begin(struct digest *key, const struct stage *stage, const char *what) {
    digest_init(key);
    digest_add_sized(key, "rollbox build 1", 15);
    digest_add_sized(key, stage->state.key, strlen(stage->state.key));
    digest_add_sized(key, what, strlen(what));
}

void step_key_text(struct digest *key, const char *text) {
    digest_add_sized(key, text, strlen(text));
}

/* ---- progress ---- */

void step_begin(struct build *build, struct stage *stage, const struct instruction *at) {
    char title[MAX_TITLE * 2];
    const char *name = stage->name ? stage->name : "";
    const bool several = build->n_stages > 1;

    stage->step++;
    snprintf(title, sizeof title, "[%s%s%u/%u] %s %.*s", several ? name : "",
        several && name[0] ? " " : "", stage->step, stage->n_steps, instruction_name(at->kind),
        MAX_TITLE, at->arguments);
    progress_begin(&build->progress, title);
}

void step_end(struct build *build, struct stage *stage, const struct instruction *at, bool cached) {
    json_t *row = json_pack("{s:i, s:s, s:i, s:s?, s:b}", "stage", (int)(stage - build->stages),
        "instruction", instruction_name(at->kind), "line", (int)at->line, "image",
        stage->state.image, "cached", cached);

    json_array_append_new(build->steps, row);
    build->n_cached += cached;
    progress_end(&build->progress, cached ? "CACHED" : "DONE");
}
