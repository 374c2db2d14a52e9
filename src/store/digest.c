/* SPDX-License-Identifier: Apache-2.0 */
#include "store/digest.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"

#define MAX_SEGMENTS (1u << 20)
#define CHUNK (256u << 10)

/* Single-threaded: the program has one pair of buffers. Smaller files are read completely, which
 * costs less than finding their holes. */
static uint8_t chunks[2][CHUNK];

void digest_init(struct digest *digest) {
    sha256_init(&digest->context);
}

void digest_add(struct digest *digest, const void *data, size_t length) {
    sha256_update(&digest->context, length, data);
}

void digest_add_u64(struct digest *digest, uint64_t value) {
    uint8_t bytes[8];

    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    digest_add(digest, bytes, sizeof bytes);
}

void digest_add_sized(struct digest *digest, const void *data, size_t length) {
    digest_add_u64(digest, length);
    if (length)
        digest_add(digest, data, length);
}

void digest_end(struct digest *digest, uint8_t ret_bytes[DIGEST_BYTES]) {
    sha256_digest(&digest->context, DIGEST_BYTES, ret_bytes);
}

void digest_hex(const uint8_t bytes[DIGEST_BYTES], char ret_hex[DIGEST_HEX + 1]) {
    for (int i = 0; i < DIGEST_BYTES; i++) {
        ret_hex[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        ret_hex[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
    ret_hex[DIGEST_HEX] = '\0';
}

void digest_end_hex(struct digest *digest, char ret_hex[DIGEST_HEX + 1]) {
    uint8_t bytes[DIGEST_BYTES];

    digest_end(digest, bytes);
    digest_hex(bytes, ret_hex);
}

int segments_of(int fd, uint64_t size, struct segment **ret_segments, size_t *ret_n) {
    auto_free struct segment *list = NULL;
    size_t n = 0, capacity = 0;

    for (uint64_t at = 0; at < size;) {
        off_t data = lseek(fd, (off_t)at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            break;
        off_t hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
        if (hole < 0) {
            if (errno != EINVAL)
                return -errno;
            data = (off_t)at; /* a file system that knows no holes */
            hole = (off_t)size;
        }
        uint64_t start = (uint64_t)data / SEGMENT_BLOCK * SEGMENT_BLOCK;
        uint64_t end =
            MIN(((uint64_t)hole + SEGMENT_BLOCK - 1) / SEGMENT_BLOCK * SEGMENT_BLOCK, size);
        if (start >= size)
            break;
        start = MAX(start, at);
        if (n && list[n - 1].offset + list[n - 1].length == start) {
            list[n - 1].length += end - start;
        } else {
            if (n == MAX_SEGMENTS)
                return -EFBIG;
            if (n == capacity) {
                capacity = capacity ? 2 * capacity : 4;
                struct segment *more = realloc(list, capacity * sizeof *list);
                if (!more)
                    return -ENOMEM;
                list = more;
            }
            list[n++] = (struct segment){ start, end - start };
        }
        at = end;
    }
    *ret_segments = TAKE_PTR(list);
    *ret_n = n;
    return 0;
}

static bool all_zero(const uint8_t *p, size_t length) {
    return !length || (p[0] == 0 && memcmp(p, p + 1, length - 1) == 0);
}

void content_init(struct content *content, uint64_t size) {
    digest_init(&content->digest);
    digest_add_u64(&content->digest, size);
    content->offset = 0;
    content->held = 0;
}

static void block_done(
    struct content *content, uint64_t offset, const uint8_t *data, size_t length) {
    if (all_zero(data, length))
        return;
    digest_add_u64(&content->digest, offset);
    digest_add(&content->digest, data, length);
}

static void flush_content(struct content *content) {
    if (content->held)
        block_done(content, content->offset, content->block, content->held);
    content->held = 0;
}

void content_add(struct content *content, uint64_t offset, const void *data, size_t length) {
    const uint8_t *p = data;

    while (length) {
        uint64_t start = offset / SEGMENT_BLOCK * SEGMENT_BLOCK;
        size_t into = (size_t)(offset - start), n = MIN(length, SEGMENT_BLOCK - into);

        if (content->held && content->offset != start)
            flush_content(content);
        if (n == SEGMENT_BLOCK) {
            block_done(content, start, p, n);
        } else {
            /* A block that comes in portions, or the file's last one. */
            if (!content->held)
                memset(content->block, 0, into);
            else if (content->held < into)
                memset(content->block + content->held, 0, into - content->held);
            content->offset = start;
            memcpy(content->block + into, p, n);
            content->held = into + n;
            if (content->held == SEGMENT_BLOCK)
                flush_content(content);
        }
        offset += n;
        p += n;
        length -= n;
    }
}

void content_end(struct content *content, uint8_t ret_bytes[DIGEST_BYTES]) {
    flush_content(content);
    digest_end(&content->digest, ret_bytes);
}

/* Reads exactly this many bytes, or fails: -EIO if the file has become shorter. */
static int read_at(int fd, void *data, size_t length, uint64_t offset) {
    for (char *p = data; length;) {
        ssize_t n = pread(fd, p, length, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        p += n;
        length -= (size_t)n;
        offset += (size_t)n;
    }
    return 0;
}

int content_of(int fd, uint64_t size, uint8_t ret_bytes[DIGEST_BYTES]) {
    const struct segment whole = { 0, size };
    const struct segment *segments = &whole;
    auto_free struct segment *found = NULL;
    struct content content;
    size_t n = size > 0;
    int r = 0;

    if (size > CHUNK) {
        r = segments_of(fd, size, &found, &n);
        segments = found;
    }
    if (r < 0)
        return r;
    content_init(&content, size);
    for (size_t i = 0; i < n; i++)
        for (uint64_t done = 0; done < segments[i].length;) {
            size_t part = (size_t)MIN(segments[i].length - done, (uint64_t)CHUNK);

            r = read_at(fd, chunks[0], part, segments[i].offset + done);
            if (r < 0)
                return r;
            content_add(&content, segments[i].offset + done, chunks[0], part);
            done += part;
        }
    content_end(&content, ret_bytes);
    return 0;
}

int content_same(int a, int b, uint64_t size) {
    const struct segment whole = { 0, size };
    auto_free struct segment *found_a = NULL;
    auto_free struct segment *found_b = NULL;
    const struct segment *of_a = &whole, *of_b = &whole;
    size_t n_a = 1, n_b = 1, i = 0, j = 0;
    int r = 0;

    if (size > CHUNK) {
        r = segments_of(a, size, &found_a, &n_a);
        if (r >= 0)
            r = segments_of(b, size, &found_b, &n_b);
        of_a = found_a;
        of_b = found_b;
    }
    if (r < 0)
        return r;
    /* Holes in both files are equal: moves from one end of a segment to the next, over the union of
     * both lists. */
    for (uint64_t at = 0; at < size;) {
        while (i < n_a && of_a[i].offset + of_a[i].length <= at)
            i++;
        while (j < n_b && of_b[j].offset + of_b[j].length <= at)
            j++;
        uint64_t next = i < n_a ? of_a[i].offset : size;
        if (j < n_b)
            next = MIN(next, of_b[j].offset);
        if (next > at) {
            at = next;
            continue;
        }
        size_t part = (size_t)MIN(size - at, (uint64_t)CHUNK);
        r = read_at(a, chunks[0], part, at);
        if (r >= 0)
            r = read_at(b, chunks[1], part, at);
        if (r < 0)
            return r;
        if (memcmp(chunks[0], chunks[1], part) != 0)
            return 0;
        at += part;
    }
    return 1;
}
