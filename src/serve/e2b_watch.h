/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watchers of directories, by comparison: what is in the directory now with what was there at the
 * look before. So a file that comes and goes between two looks is not told, and a rename is a
 * removal and a creation.
 */
#ifndef ROLLBOX_SERVE_E2B_WATCH_H
#define ROLLBOX_SERVE_E2B_WATCH_H

#include "serve/e2b.h"

void handle_e2b_watch(struct exchange *exchange);
void handle_e2b_watcher_create(struct exchange *exchange);
void handle_e2b_watcher_events(struct exchange *exchange);
void handle_e2b_watcher_remove(struct exchange *exchange);
/* With their sandbox. */
void e2b_watch_end(struct e2b_box *e2b);

#endif
