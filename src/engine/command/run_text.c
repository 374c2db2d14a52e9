/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/command/run_text.h"
#include "base/buf.h"
#include "base/wire.h"
#include "engine/command/command.h"
#include "engine/core/log.h"
#include "guest/guest.h"

char *run_describe(const struct run *run) {
    struct wire_field field;
    size_t position = 0;
    struct buf text = BUF_INIT;

    while (run->given.message.length > sizeof(struct wire_header) && text.length < 80 &&
           wire_next(run->given.message.data + sizeof(struct wire_header),
               run->given.message.length - sizeof(struct wire_header), &position, &field) > 0)
        if (field.tag == GUEST_ARG) {
            const char *argument = wire_text(&field);

            buf_add_text(&text, text.length ? " " : "");
            if (argument)
                buf_add(&text, argument, strnlen(argument, 80));
        }
    return buf_take(&text);
}
