/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/keys.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"

/* One key: a character, or ctrl- with a letter or one of @[\]^_ behind it. */
static int parse_key(const char *text, size_t length, unsigned char *ret_key) {
    const size_t prefix = strlen("ctrl-");

    if (length == 1 && (unsigned char)text[0] > ' ' && text[0] != 127) {
        *ret_key = (unsigned char)text[0];
        return 0;
    }
    if (length != prefix + 1 || strncasecmp(text, "ctrl-", prefix) != 0)
        return -EINVAL;
    char key = text[prefix];
    if (key >= 'a' && key <= 'z')
        key = (char)(key - 'a' + 'A');
    if (key < '@' || key > '_')
        return -EINVAL;
    *ret_key = (unsigned char)(key & 0x1f);
    return 0;
}

int keys_parse(const char *text, bool only_notices, struct keys *ret_keys) {
    struct keys keys = { .only_notices = only_notices };

    while (strcmp(text, "none") != 0) {
        size_t length = strcspn(text, ",");

        if (keys.length == MAX_KEYS || parse_key(text, length, &keys.sequence[keys.length]) < 0)
            return -EINVAL;
        keys.length++;
        if (!text[length])
            break;
        text += length + 1;
        if (!strcmp(text, "none"))
            return -EINVAL;
    }
    *ret_keys = keys;
    return 0;
}

/* How many keys of the sequence the latest ones are, the last of which is `key`: ctrl-p ctrl-p
 * ctrl-q has it, too. */
static size_t match(const struct keys *keys, unsigned char key) {
    unsigned char latest[MAX_KEYS + 1];
    size_t n = keys->matched;

    memcpy(latest, keys->sequence, n);
    latest[n++] = key;
    for (size_t from = 0; from < n; from++)
        if (!memcmp(latest + from, keys->sequence, n - from))
            return n - from;
    return 0;
}

size_t keys_filter(struct keys *keys, const char *typed, size_t length, char *to) {
    size_t n = 0;

    for (size_t i = 0; i < length && keys->length && !(keys->seen && !keys->only_notices); i++) {
        size_t before = keys->matched;

        keys->matched = match(keys, (unsigned char)typed[i]);
        if (keys->only_notices) {
            to[n++] = typed[i];
        } else {
            /* Keys that were held back and no longer belong to the sequence go to the command, and
             * so does this key if it does not begin one. */
            size_t released = before + 1 - keys->matched;

            memcpy(to + n, keys->sequence, MIN(released, before));
            n += MIN(released, before);
            if (released > before)
                to[n++] = typed[i];
        }
        if (keys->matched == keys->length) {
            keys->matched = 0;
            keys->seen = true;
        }
    }
    if (!keys->length) {
        memcpy(to, typed, length);
        n = length;
    }
    return n;
}
