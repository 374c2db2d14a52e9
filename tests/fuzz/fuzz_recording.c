/* SPDX-License-Identifier: Apache-2.0 */
/* A recording of any bytes, from which every exchange in it is answered, and one that it does not
 * have. Each is given at most once, and what is given is in the recording. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "net/recording.h"

static void expect(bool holds) {
    if (!holds)
        abort();
}

static void listen_to(struct replay *replay) {
    const char *data;
    size_t n;

    do {
        while ((n = replay_server(replay, &data)) > 0)
            replay_sent(replay, (n + 1) / 2);
    } while (replay_server_ends(replay));
}

/* A guest that repeats its recorded bytes. */
static void talk(struct recording *recording, struct recorded *stream) {
    struct replay replay;

    replay_init(&replay, recording, stream->host, stream->port);
    for (size_t i = 0; i < stream->n_pieces; i++) {
        const struct recorded_piece *piece = &stream->pieces[i];
        size_t offset = 0;
        long taken = 1;

        listen_to(&replay);
        if (piece->is_up && piece->is_end)
            (void)replay_guest_ends(&replay);
        while (piece->is_up && offset < piece->length && taken > 0) {
            taken = replay_guest(&replay, piece->data + offset, piece->length - offset);
            expect(taken <= (long)(piece->length - offset));
            offset += taken > 0 ? (size_t)taken : 0;
            listen_to(&replay);
        }
    }
    (void)replay_is_over(&replay);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char first[] = RECORDING_FIRST_LINE;
    struct recording *recording = NULL;
    auto_free char *text = malloc(size + sizeof first);

    expect(text != NULL);
    memcpy(text, first, sizeof first - 1);
    if (size > 0)
        memcpy(text + sizeof first - 1, data, size);
    if (recording_read(text, size + sizeof first - 1, &recording) < 0)
        return 0;
    for (size_t i = 0; i < recording->n; i++) {
        struct recorded *item = &recording->items[i];

        if (!item->is_http) {
            talk(recording, item);
            continue;
        }
        if (!item->is_complete)
            continue;
        struct recorded *found = recording_take_http(
            recording, item->host, item->port, item->method, item->target, item->digest);
        expect(found != NULL && found <= item && found->is_used);
    }
    expect(recording_take_http(recording, "no", 1, "NONE", "no", "no") == NULL);
    recording_free(recording);
    return 0;
}
