/* SPDX-License-Identifier: Apache-2.0 */
#include "store/pull_progress.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "store/files.h"

#define TICK_NS 200000000
#define SLACK_BYTES (16u << 20) /* the manifest, the configuration, and bytes in buffers */

static const char *const state_names[] = {
    [PULL_MISSING] = "missing",
    [PULL_KNOWN] = "known",
    [PULL_KEPT] = "kept",
    [PULL_FETCHED] = "fetched",
};

static const char *const state_texts[] = {
    [PULL_MISSING] = "fetching",
    [PULL_KNOWN] = "in the store",
    [PULL_KEPT] = "fetched before",
    [PULL_FETCHED] = "fetched",
};

static void print_event(const struct pull_layer *layer) {
    printf("{\"event\": \"layer\", \"digest\": \"sha256:%s\", \"bytes\": %" PRIu64
           ", \"state\": \"%s\"}\n",
        layer->hex, layer->bytes, state_names[layer->state]);
    fflush(stdout);
}

/* Bytes of layers that are on their way. */
static uint64_t bytes_on_the_way(const struct pull_progress *progress) {
    struct names names;
    uint64_t bytes = 0;
    struct stat st;

    if (names_read(progress->layout, &names) < 0)
        return 0;
    for (size_t i = 0; i < names.n; i++)
        if (strncmp(names.list[i], "oci-put-blob", 12) == 0 &&
            fstatat(progress->layout, names.list[i], &st, AT_SYMLINK_NOFOLLOW) == 0)
            bytes += (uint64_t)st.st_size;
    names_done(&names);
    return bytes;
}

size_t pull_progress_fetched(const struct pull_progress *progress, uint64_t *ret_bytes) {
    size_t n = 0;

    *ret_bytes = 0;
    for (size_t i = 0; i < progress->n_layers; i++)
        if (progress->layers[i].state == PULL_FETCHED) {
            *ret_bytes += progress->layers[i].bytes;
            n++;
        }
    return n;
}

static void draw(struct pull_progress *progress, uint64_t done, uint64_t total, bool last) {
    if (progress->drawn_lines)
        fprintf(stderr, "\033[%zuA", progress->drawn_lines);
    for (size_t i = 0; i < progress->n_layers; i++)
        fprintf(stderr, "\r\033[K%.12s  %9.1f MB  %s\n", progress->layers[i].hex,
            (double)progress->layers[i].bytes / 1e6, state_texts[progress->layers[i].state]);
    fprintf(stderr, "\r\033[K%.1f of %.1f MB%s", (double)done / 1e6, (double)total / 1e6,
        last ? "\n" : "");
    fflush(stderr);
    progress->drawn_lines = progress->n_layers;
}

static void show(struct pull_progress *progress, uint64_t on_the_way, bool last) {
    uint64_t done = 0, total = 0;

    for (size_t i = 0; i < progress->n_layers; i++) {
        const struct pull_layer *layer = &progress->layers[i];

        if (layer->state == PULL_KNOWN)
            continue;
        total += layer->bytes;
        done += layer->state == PULL_MISSING ? 0 : layer->bytes;
    }
    done = MIN(done + on_the_way, total);
    if (progress->on_terminal)
        draw(progress, done, total, last);
    if (progress->as_events && done != progress->drawn_bytes) {
        printf("{\"event\": \"progress\", \"bytes\": %" PRIu64 ", \"total\": %" PRIu64 "}\n", done,
            total);
        fflush(stdout);
    }
    progress->drawn_bytes = done;
}

void pull_progress_show(struct pull_progress *progress, bool last) {
    if (!last)
        for (size_t i = 0; progress->as_events && i < progress->n_layers; i++)
            print_event(&progress->layers[i]);
    show(progress, 0, last);
}

int64_t pull_progress_watch(void *context, struct rollbox_error *error) {
    struct pull_progress *progress = context;
    const int64_t now = clock_now_ns();
    uint64_t seen = 0, missing = SLACK_BYTES;
    struct stat st;

    for (size_t i = 0; i < progress->n_layers; i++) {
        struct pull_layer *layer = &progress->layers[i];

        if (layer->state == PULL_MISSING &&
            fstatat(progress->blobs, layer->hex, &st, AT_SYMLINK_NOFOLLOW) == 0) {
            layer->state = PULL_FETCHED;
            (void)!linkat(progress->blobs, layer->hex, progress->downloads, layer->hex, 0);
            if (progress->as_events)
                print_event(layer);
        }
        seen += layer->state == PULL_FETCHED ? layer->bytes : 0;
        missing += layer->state == PULL_MISSING ? layer->bytes : 0;
    }
    const uint64_t on_the_way = bytes_on_the_way(progress);
    if (on_the_way > missing)
        return error_set(error, ROLLBOX_ERR_DAMAGED, EFBIG, "pull",
            "the registry sends more bytes than the image's manifest says; nothing of it is kept");
    if (now - progress->drawn_ns >= TICK_NS) {
        progress->drawn_ns = now;
        show(progress, on_the_way, false);
    }
    return (int64_t)(seen + on_the_way);
}
