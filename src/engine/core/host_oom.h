/* SPDX-License-Identifier: Apache-2.0 */
/* Kills for want of the host's memory. */
#ifndef ROLLBOX_ENGINE_CORE_HOST_OOM_H
#define ROLLBOX_ENGINE_CORE_HOST_OOM_H

#include <stdbool.h>
#include <stdint.h>

struct engine;

int64_t engine_oom_kills(struct engine *engine, bool now);
bool engine_oom_lately(struct engine *engine); /* has it killed anybody in the last seconds? */

#endif
