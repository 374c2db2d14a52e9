/* SPDX-License-Identifier: Apache-2.0 */
/* Compressed bodies; inflate.h has the model. */
#include "serve/inflate.h"

#include <errno.h>
#include <limits.h>
#include <zlib.h>

#include "base/cleanup.h"

#define PIECE_BYTES ((size_t)256 << 10)
#define GZIP_ALONE (16 + MAX_WBITS)

/* One piece of output. 1: more may follow; 0: a member has ended. */
static int inflate_piece(z_stream *stream, size_t most, struct buf *to) {
    char *place = buf_reserve(to, PIECE_BYTES);

    if (!place)
        return -ENOMEM;
    stream->next_out = (Bytef *)place;
    stream->avail_out = PIECE_BYTES;
    int r = inflate(stream, Z_NO_FLUSH);
    to->length += PIECE_BYTES - stream->avail_out;
    if (to->length > most)
        return -EFBIG;
    if (r == Z_MEM_ERROR)
        return -ENOMEM;
    if (r != Z_OK && r != Z_STREAM_END)
        return -EBADMSG;
    return r == Z_OK;
}

/* A body may have several members, as files of gzip do. */
int inflate_gzip(const void *data, size_t length, size_t most, struct buf *to) {
    z_stream stream = { .next_in = (Bytef *)(uintptr_t)data, .avail_in = (uInt)length };
    int r = 1;

    if (length > UINT_MAX)
        return -EFBIG;
    if (inflateInit2(&stream, GZIP_ALONE) != Z_OK)
        return -ENOMEM;
    while (r > 0) {
        r = inflate_piece(&stream, most, to);
        if (!r && stream.avail_in)
            r = inflateReset(&stream) == Z_OK ? 1 : -ENOMEM;
    }
    (void)inflateEnd(&stream);
    return r;
}
