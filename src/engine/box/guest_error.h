/* SPDX-License-Identifier: Apache-2.0 */
/* A failure of the guest side, in words. */
#ifndef ROLLBOX_ENGINE_BOX_GUEST_ERROR_H
#define ROLLBOX_ENGINE_BOX_GUEST_ERROR_H

#include <rollbox/rollbox.h>

#include "guest/guest.h"

struct profile;

void guest_restore_error_to_text(const struct guest_record *record, struct rollbox_error *error);
void guest_error_to_text(const struct profile *profile, const struct guest_record *record,
    const char *argv0, const char *cwd, struct rollbox_error *error);

#endif
