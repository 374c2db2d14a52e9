/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of forms with files; upload_form.h has the model. */
#include "serve/upload_form.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"

#define BOUNDARY_MAX 70u

bool form_open(struct form *form, const char *type, const void *data, size_t length) {
    static const char wanted[] = "multipart/form-data", key[] = "boundary=";
    const char *p = type ? strcasestr(type, key) : NULL;
    bool is_quoted;

    *form = (struct form){ .data = data, .length = length };
    if (!p || strncasecmp(type, wanted, sizeof wanted - 1) != 0)
        return false;
    p += sizeof key - 1;
    is_quoted = *p == '"';
    p += is_quoted;
    size_t n = strcspn(p, is_quoted ? "\"" : "; \t");
    if (!n || n > BOUNDARY_MAX)
        return false;
    buf_add_text(&form->boundary, "--");
    buf_add(&form->boundary, p, n);
    return !buf_failed(&form->boundary);
}

void form_done(struct form *form) {
    buf_done(&form->boundary);
}

void form_part_done(struct form_part *part) {
    buf_done(&part->name);
    buf_done(&part->filename);
}

static bool starts_with(const struct form *form, const char *text, size_t length) {
    return form->length - form->at >= length && !memcmp(form->data + form->at, text, length);
}

/* The value of a parameter of a header line: KEY="VALUE", with backslashes before quotes. */
static void parameter(const char *line, size_t length, const char *key, struct buf *to) {
    size_t key_length = strlen(key);

    for (size_t i = 0; i + key_length + 2 <= length; i++) {
        bool begins = i > 0 && (line[i - 1] == ' ' || line[i - 1] == ';');

        if (!begins || strncasecmp(line + i, key, key_length) != 0 || line[i + key_length] != '=' ||
            line[i + key_length + 1] != '"')
            continue;
        for (size_t j = i + key_length + 2; j < length && line[j] != '"'; j++) {
            if (line[j] == '\\' && j + 1 < length)
                j++;
            buf_add(to, line + j, 1);
        }
        return;
    }
}

static void take_head(const char *head, size_t length, struct form_part *part) {
    static const char name[] = "content-disposition:";

    while (length) {
        const char *end = memmem(head, length, "\r\n", 2);
        size_t n = end ? (size_t)(end - head) : length;

        if (n >= sizeof name - 1 && !strncasecmp(head, name, sizeof name - 1)) {
            parameter(head, n, "name", &part->name);
            parameter(head, n, "filename", &part->filename);
        }
        n += end ? 2 : 0;
        head += n;
        length -= n;
    }
}

int form_next(struct form *form, struct form_part *ret_part) {
    const struct buf *boundary = &form->boundary;

    *ret_part = (struct form_part){ .data = NULL };
    if (!starts_with(form, boundary->data, boundary->length))
        return -EBADMSG;
    form->at += boundary->length;
    if (starts_with(form, "--", 2))
        return 0;
    if (!starts_with(form, "\r\n", 2))
        return -EBADMSG;
    /* The head may be empty: then its end is the line end of the boundary. */
    const char *head = form->data + form->at;
    const char *end = memmem(head, form->length - form->at, "\r\n\r\n", 4);
    if (!end)
        return -EBADMSG;
    if (end > head)
        take_head(head + 2, (size_t)(end - head) - 2, ret_part);
    form->at = (size_t)(end - form->data) + 4;
    ret_part->data = form->data + form->at;
    auto_buf struct buf delimiter = BUF_INIT;
    buf_add_text(&delimiter, "\r\n");
    buf_add(&delimiter, boundary->data, boundary->length);
    if (buf_failed(&delimiter) || buf_failed(&ret_part->name) || buf_failed(&ret_part->filename))
        return -ENOMEM;
    end = memmem(ret_part->data, form->length - form->at, delimiter.data, delimiter.length);
    if (!end)
        return -EBADMSG;
    ret_part->length = (size_t)(end - ret_part->data);
    form->at = (size_t)(end - form->data) + 2;
    return 1;
}
