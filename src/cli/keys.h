/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The detach keys: a sequence of keys for rollbox and not for the command on the terminal.
 *
 * A key that may begin the sequence is held back until the next key. If that key does not continue
 * the sequence, the command receives both. If the command cannot be left (its sandbox ends with
 * rollbox), every key goes to the command at once, and the sequence is only detected.
 */
#ifndef ROLLBOX_CLI_KEYS_H
#define ROLLBOX_CLI_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#define MAX_KEYS 16 /* keys in a sequence */
#define KEYS_DEFAULT "ctrl-p,ctrl-q"

struct keys {
    unsigned char sequence[MAX_KEYS];
    size_t length;  /* 0: no sequence */
    size_t matched; /* of the sequence, by the keys before; held back unless `only_notices` */
    bool only_notices;
    bool seen; /* the sequence was typed */
};

/* Parses "ctrl-p,ctrl-q", "a,b" or "none". 0, or -EINVAL. */
int keys_parse(const char *text, bool only_notices, struct keys *ret_keys);

/* Looks for the sequence in keys[0 .. length), and puts the command's keys into to[], which has
 * room for length + MAX_KEYS. Returns their number. Keys after the sequence are dropped, unless
 * `only_notices`. */
size_t keys_filter(struct keys *keys, const char *typed, size_t length, char *to);

#endif
