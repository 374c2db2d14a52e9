/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What E2B's clients send beyond HTTP: messages of the Connect protocol, in two pieces that the
 * first byte divides, forms with files, and the Host of a sandbox's port. What is accepted must lie
 * within the input.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "serve/connect.h"
#include "serve/http.h"
#include "serve/upload_form.h"

static void take_messages(struct buf *in) {
    json_t *message = NULL;
    size_t before;
    int r;

    do {
        before = in->length;
        r = connect_take(in, &message);
        if (r == 1 && (!json_is_object(message) || in->length + CONNECT_HEAD > before))
            abort();
        if (r == 1)
            json_decref(message);
    } while (r == 1);
}

static void take_parts(const char *data, size_t length) {
    struct form form;
    struct form_part part;

    if (form_open(&form, "multipart/form-data; boundary=b", data, length)) {
        while (form_next(&form, &part) == 1) {
            if (part.data < data || part.length > length || part.data + part.length > data + length)
                abort();
            form_part_done(&part);
        }
        form_part_done(&part);
    }
    form_done(&form);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct buf in = BUF_INIT, id = BUF_INIT;
    unsigned port = 0;

    if (size < 1 || size > 100000)
        return 0;
    size_t first = data[0] < size - 1 ? data[0] : size - 1;
    buf_add(&in, data + 1, first);
    take_messages(&in);
    buf_add(&in, data + 1 + first, size - 1 - first);
    take_messages(&in);
    buf_done(&in);
    char *text = malloc(size);
    if (!text)
        abort();
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    take_parts(text, size - 1);
    if (http_sandbox_host(text, &port, &id) && (!port || port > UINT16_MAX || !id.length))
        abort();
    buf_done(&id);
    free(text);
    return 0;
}
