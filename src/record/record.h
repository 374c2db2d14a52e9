/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trajectories: the messages between an engine and its recorder, and the parts of a line
 * (docs/reference/trajectories.md has the format).
 *
 * The recorder is a child process of the engine that writes trajectories. It hashes, redacts,
 * escapes and writes, so that neither a large stream nor a slow disk delays the engine. The engine
 * sends it one message (base/wire.h) per step and never waits. The message is the line as a tree:
 * keys and values in order, contents inline or as descriptors. The recorder does not know the kinds
 * of steps.
 */
#ifndef ROLLBOX_RECORD_RECORD_H
#define ROLLBOX_RECORD_RECORD_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"

#define RECORD_FORMAT "rollbox-trajectory/1"
#define RECORD_STREAM_BYTES (256u << 10) /* of each content, by default */
#define RECORD_MAX_STREAM (16u << 20)
#define RECORD_FILE_BYTES (UINT64_C(1) << 30)
#define RECORD_MAX_LINE (64u << 20) /* bytes of one, its newline included */
#define RECORD_MAX_RULES 64
#define RECORD_MAX_RULE 4096 /* bytes of one */
#define RECORD_DIGEST_HEX 64
#define RECORD_REAL_DIGITS 12 /* decimal digits of fractional numbers, as written and hashed */

/* ---- messages ---- */

/*
 * The serial is the trajectory's number. To the recorder:
 *   BEGIN  POLICY MAX_STREAM MAX_FILE ENV_VALUES? NAME* PATTERN* PARENT? tree     one descriptor:
 * where to write STEP   SECRET* tree descriptors: those of its CONTENT_FDs, in order END    REASON
 * no more steps come From it, about a trajectory: STATE STEPS ERROR MESSAGE? DONE. With serial 0
 * and nothing in it: that it works.
 */
enum record_type { RECORD_BEGIN = 1, RECORD_STEP, RECORD_END, RECORD_STATE };

enum record_tag {
    RECORD_KEY = 1,      /* text: of the value that follows */
    RECORD_WORD,         /* text: one of our own */
    RECORD_TEXT,         /* bytes: foreign data, which rules may redact */
    RECORD_NUMBER,       /* u64: an int64 */
    RECORD_MILLISECONDS, /* u64: nanoseconds */
    RECORD_FLAG,         /* u64 */
    RECORD_NONE,
    RECORD_OBJECT, /* opens one */
    RECORD_LIST,
    RECORD_UP,           /* closes it */
    RECORD_CUT,          /* of the content that follows there was more */
    RECORD_CONTENT,      /* bytes: a stream or file */
    RECORD_CONTENT_FD,   /* u64: its length; UINT64_MAX: to its end */
    RECORD_JSON,         /* text: of ours, or checked as JSON before */
    RECORD_DATA,         /* text: foreign JSON, which rules may redact */
    RECORD_POLICY,       /* text */
    MAX_RECORD,          /* u64: bytes kept of a content */
    RECORD_MAX_FILE,     /* u64: bytes of the file */
    RECORD_ENV_VALUES,   /* u64 */
    RECORD_RULE_NAME,    /* text */
    RECORD_RULE_PATTERN, /* text */
    RECORD_SECRET,       /* text: NAME=value */
    RECORD_PARENT,       /* u64, u64: number and step */
    RECORD_PARENT_STEP,
    RECORD_KIN,     /* u64: the trajectory whose secrets it shares, 0: none */
    RECORD_REASON,  /* text */
    RECORD_STEPS,   /* u64: lines written */
    RECORD_ERROR,   /* u64: an errno */
    RECORD_MESSAGE, /* text */
    RECORD_DONE,    /* u64: its last line is written, or never will be */
};

/* Serves the other end of a SOCK_SEQPACKET socket until that closes and all is written, or nobody
 * takes it. It looks there when the bell, an eventfd that does not block, is rung: so who sends
 * decides when it wakes. Both are consumed. Returns the exit status. */
int recorder_run(int take_socket, int take_bell);

/* ---- rules ---- */

struct rules;

/* 0 or -ENOMEM. */
int rules_new(struct rules **ret_rules);
struct rules *rules_free(struct rules *rules);

/* Called every now and then while a child looks through something. */
void rules_on_wait(struct rules *rules, void (*on_wait)(void *data), void *data);

/* The value of this variable is a secret: 0 or -errno. */
int rules_add_name(struct rules *rules, const char *name);

/* Adds a pattern: every match of this extended regular expression within a line is a secret.
 * INVALID_ARGUMENT. */
int rules_add_pattern(struct rules *rules, const char *pattern, struct rollbox_error *error);

/* "NAME=value": looked for from now on, if the name is one of those and the value is long enough
 * not to be everywhere. */
int rules_learn(struct rules *rules, const char *variable);

/* Adds the secrets that these other rules have learned so far. */
int rules_learn_from(struct rules *rules, const struct rules *others);

bool rules_any(const struct rules *rules);

/* Appends the text without secrets; is_cut: more came after it, so a secret may have begun at its
 * end. 0, -ENOMEM; or -EFBIG: it cannot be looked through (a line is too long, or is made to take
 * too much), and nothing of it may be shown. May fork, and wait for that child. */
int rules_apply(struct rules *rules, const char *data, size_t length, bool is_cut, struct buf *to);

/* ---- lines ---- */

struct line_options {
    struct rules *rules;
    uint64_t most; /* bytes kept of a content */
};

/* The tree of a message's fields. `fds` are read with pread. 0, -EBADMSG or -ENOMEM. */
int line_build(const struct line_options *options, const void *data, size_t length, const int *fds,
    size_t n_fds, json_t **ret_line);

/* Others' JSON without secrets, its keys too. Takes the reference; NULL: out of memory. */
json_t *line_clean(const struct line_options *options, json_t *take_value);

/* Removes the kept parts of contents. Their digests stay, and the digest of the line does not
 * change. */
void line_shorten(json_t *line);

/* As text, with its newline: ASCII alone, so that no terminal obeys it. */
int line_write(const json_t *line, struct buf *to);

/* ---- digests ---- */

/*
 * SHA-256, for the guest is hostile and could make two histories meet under a digest that is only
 * fast. It costs the recorder, not the engine. A chain: each line's digest is that of the one
 * before, and of the line's action and observation.
 */
struct chain {
    char hex[RECORD_DIGEST_HEX + 1];
};

void chain_begin(struct chain *chain, const char *policy_digest, const char *image_digest,
    const char *parent_digest);
void chain_add(struct chain *chain, const json_t *action, const json_t *observation);
struct sha256_ctx;
void digest_end(struct sha256_ctx *context, char ret_hex[RECORD_DIGEST_HEX + 1]);
void digest_hex(const void *data, size_t length, char ret_hex[RECORD_DIGEST_HEX + 1]);

#endif
