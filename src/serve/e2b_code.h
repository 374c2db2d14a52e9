/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The code interpreter of E2B's clients: contexts, each a process of e2b_interpreter.py in the
 * sandbox, which keeps its state. It answers with lines of JSON, which are passed on as they are.
 * Pieces of code for one context wait for each other. A context whose process has died gets another
 * one with the next piece.
 */
#ifndef ROLLBOX_SERVE_E2B_CODE_H
#define ROLLBOX_SERVE_E2B_CODE_H

#include "serve/e2b.h"

/* The arguments of an interpreter for that language. */
#define E2B_INTERPRETER(language) "python3", "-c", e2b_interpreter, language
extern const char *const e2b_interpreter;

void handle_e2b_execute(struct exchange *exchange);
void handle_e2b_context_create(struct exchange *exchange);
void handle_e2b_contexts(struct exchange *exchange);
void handle_e2b_context_delete(struct exchange *exchange);
void handle_e2b_context_restart(struct exchange *exchange);

/* With their sandbox. */
void e2b_code_end(struct e2b_box *e2b);
/* A fork or a snapshot has the contexts, and their processes already. */
void e2b_code_copy(const struct e2b_box *from, struct e2b_box *to);

#endif
