/* SPDX-License-Identifier: Apache-2.0 */
/* Ends sandboxes that have the kernel hold too much for them. */
#ifndef ROLLBOX_ENGINE_RUN_HOARDS_H
#define ROLLBOX_ENGINE_RUN_HOARDS_H

struct engine;

void hoards_watch(struct engine *engine); /* something runs */
void hoards_finish(struct engine *engine);

#endif
