/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SHA-256 from nettle. It is small, needs no initialisation, uses the processor's own instructions,
 * and libarchive loads it anyway.
 *
 * The digest of a file covers its size and, for every 4 KiB block with a byte other than 0, the
 * block's offset and bytes. So it does not depend on how a file system stores holes, and a guest's
 * sparse file of 8 EiB costs nothing.
 */
#ifndef ROLLBOX_STORE_DIGEST_H
#define ROLLBOX_STORE_DIGEST_H

#include <nettle/sha2.h>
#include <stddef.h>
#include <stdint.h>

#define DIGEST_BYTES SHA256_DIGEST_SIZE
#define DIGEST_HEX (2 * DIGEST_BYTES)

struct digest {
    struct sha256_ctx context;
};

void digest_init(struct digest *digest);
void digest_add(struct digest *digest, const void *data, size_t length);
/* A text or blob with its length before it, so that no two lists of them look the same. */
void digest_add_sized(struct digest *digest, const void *data, size_t length);
void digest_add_u64(struct digest *digest, uint64_t value);
void digest_end(struct digest *digest, uint8_t ret_bytes[DIGEST_BYTES]);
void digest_hex(const uint8_t bytes[DIGEST_BYTES], char ret_hex[DIGEST_HEX + 1]);
void digest_end_hex(struct digest *digest, char ret_hex[DIGEST_HEX + 1]);

/* The parts of a file that are not holes, in order, aligned to blocks, ending at `size` at the
 * latest. */
struct segment {
    uint64_t offset, length;
};

#define SEGMENT_BLOCK 4096

/* For free(). *ret_n is 0 for a file of holes. 0 or -errno; -EFBIG for more than a million
 * segments. */
int segments_of(int fd, uint64_t size, struct segment **ret_segments, size_t *ret_n);

/* Takes data in order, in any portions. */
struct content {
    struct digest digest;
    uint64_t offset; /* of the block below */
    size_t held;
    uint8_t block[SEGMENT_BLOCK];
};

void content_init(struct content *content, uint64_t size);
void content_add(struct content *content, uint64_t offset, const void *data, size_t length);
void content_end(struct content *content, uint8_t ret_bytes[DIGEST_BYTES]);

/* The content digest of a regular file (by its descriptor). */
int content_of(int fd, uint64_t size, uint8_t ret_bytes[DIGEST_BYTES]);

/* 1: two regular files of one size have the same content; 0: they have not; -errno. */
int content_same(int a, int b, uint64_t size);

#endif
