/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on a sandbox: what the files above make theirs of. sandbox.h has the model. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "client/client.h"
#include "client/sandbox.h"

int sandbox_check_name(const char *name, const char *what, struct rollbox_error *error) {
    size_t length = strlen(name);

    if (length < 1 || length > SANDBOX_NAME_MAX ||
        strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") != length)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%s must be 1 to %d of the characters A-Z a-z 0-9 _ . -: \"%.100s\"", what,
            SANDBOX_NAME_MAX, name);
    return 0;
}

void sandbox_begin(
    struct buf *message, const struct rollbox_sandbox *sandbox, enum protocol_verb verb) {
    wire_begin(message, PROTOCOL_SANDBOX, 0);
    wire_add_u64(message, TAG_VERB, verb);
    wire_add_text(message, TAG_SANDBOX, sandbox->name);
}

int sandbox_call(struct rollbox_sandbox *sandbox, struct buf *message, const int *fds, size_t n_fds,
    char **ret_json, struct rollbox_error *error) {
    auto_free char *json = NULL;

    int r = connection_check_owner(sandbox->owner, error);
    if (r >= 0)
        r = request_text(sandbox->engine, message, fds, n_fds, &json, error);
    if (r >= 0 && ret_json)
        *ret_json = TAKE_PTR(json);
    return r;
}

int sandbox_add_snapshot(struct buf *to, uint32_t tag, const char *snapshot, const char *what,
    struct rollbox_error *error) {
    int r = snapshot ? sandbox_check_name(snapshot, what, error) : 0;

    if (r >= 0 && snapshot)
        wire_add_text(to, tag, snapshot);
    return r;
}

int sandbox_diff(struct rollbox_sandbox *sandbox, const char *from, const char *to, bool text,
    bool digests, char **ret_json, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    sandbox_begin(&message, sandbox, VERB_DIFF);
    int r = sandbox_add_snapshot(&message, TAG_SNAPSHOT, from, "from", error);
    if (r >= 0)
        r = sandbox_add_snapshot(&message, TAG_TO, to, "to", error);
    if (r < 0)
        return r;
    if (text)
        wire_add_u64(&message, TAG_TEXTUAL, 1);
    if (digests)
        wire_add_u64(&message, TAG_DIGESTS, 1);
    return sandbox_call(sandbox, &message, NULL, 0, ret_json, error);
}
