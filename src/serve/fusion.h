/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests of SandboxFusion's clients. A program of an interpreted language is a run
 * (fusion.c). What needs several steps has a sandbox of its own, which ends with the answer
 * (fusion_steps.c): compilation, files that are fetched, and the cells of a notebook.
 */
#ifndef ROLLBOX_SERVE_FUSION_H
#define ROLLBOX_SERVE_FUSION_H

#include "serve/server.h"

#define FUSION_OUTPUT_MAX (INT64_C(64) << 20)
#define FUSION_WORDS 10

struct fusion_language {
    const char *name, *file;
    const char *compile[FUSION_WORDS]; /* empty: it is not compiled */
    const char *run[FUSION_WORDS];
};

struct fusion_steps;

struct fusion {
    const struct fusion_language *language; /* NULL: cells of a notebook */
    struct rollbox_file *files;             /* the first one is the program */
    size_t n_files;
    int64_t compile_ms, run_ms;
    char *cells; /* for the interpreter */
    struct fusion_steps *steps;
};

/* ---- fusion_answers.c ---- */

/* {"status", "return_code", ...} of a step. */
json_t *fusion_result(const struct rollbox_result *result);
/* Each answers. Results are consumed, and may be NULL. */
void fusion_answer(struct exchange *exchange, const char *status, const char *message,
    json_t *take_compiled, json_t *take_run, json_t *take_files);
void fusion_refuse(struct exchange *exchange, const char *detail);

/* ---- fusion_steps.c ---- */

/* The steps of exchange->data, a struct fusion, begin. */
void fusion_steps_start(struct exchange *exchange, struct rollbox_plan *plan);
void fusion_steps_free(struct fusion_steps *steps);

#endif
