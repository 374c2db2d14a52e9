/* SPDX-License-Identifier: Apache-2.0 */
/* RESULT messages as the client reads them: any bytes give a consistent result, whose JSON is one
 * line that parses, or are refused, and nothing leaks. */
#include <errno.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "client/client.h"

static void check(const struct rollbox_result *result) {
    char *text = NULL;

    if ((size_t)result->outcome > ROLLBOX_OUTCOME_ERROR)
        abort();
    if ((result->outcome == ROLLBOX_OUTCOME_EXIT) != (result->exit_code >= 0) ||
        (result->outcome == ROLLBOX_OUTCOME_SIGNAL) != (result->signal > 0))
        abort();
    if ((result->outcome == ROLLBOX_OUTCOME_ERROR) != (result->error.code != ROLLBOX_OK))
        abort();
    if (rollbox_result_json(result, "id", &text) < 0)
        abort();
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (!json || strchr(text, '\n'))
        abort();
    json_decref(json);
    free(text);
}

/* The first byte says how many descriptors came along. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct wire_message message;
    struct rollbox_error error;
    struct result result;

    if (size < 1 || size > sizeof message.bytes)
        return 0;
    memcpy(message.bytes, data + 1, size - 1);
    message.data = message.bytes;
    message.length = size - 1;
    for (message.n_fds = 0; message.n_fds < data[0] % 3u; message.n_fds++)
        message.fds[message.n_fds] = fd_memory_file("output", "mapped\n\xff", 8);
    int r = result_read(&message, "{}", &result);
    if (r == 0)
        check(&result.public);
    else if (r != -EBADMSG)
        abort();
    result_done(&result);
    wire_message_done(&message);
    (void)result_read_error(data + 1, size - 1, &error);
    return 0;
}
