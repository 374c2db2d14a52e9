/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The source of an image: a directory in OCI layout, or a tar file whose members are read in place
 * (an OCI layout or a docker-archive, compressed or not).
 *
 * Nothing is unpacked for reading: a member of a tar is found by its header and then streamed.
 * libarchive reads the formats. Only its built-in filters are enabled, none of which starts a
 * program.
 */
#ifndef ROLLBOX_STORE_SOURCE_H
#define ROLLBOX_STORE_SOURCE_H

#include <archive.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "store/digest.h"

#define SOURCE_MAX_MEMBERS 100000
#define SOURCE_MAX_TEXT (16u << 20) /* an index, manifest or configuration */

struct image_source_member {
    char *name;   /* without leading "./" */
    char *target; /* of a link inside the tar, resolved to a name; NULL */
    uint64_t size;
};

struct image_source {
    int fd; /* borrowed */
    bool is_directory;
    struct image_source_member *members; /* of a tar */
    size_t n_members;
    void (*progress)(void *context, uint64_t bytes);
    void *progress_context;
};

/* `fd` is the directory or file. */
int image_source_open(int fd, struct image_source *ret_source, struct rollbox_error *error);
void image_source_done(struct image_source *source);

bool image_source_has(const struct image_source *source, const char *name);

/* Reads a small member. */
int image_source_text(
    struct image_source *source, const char *name, struct buf *to, struct rollbox_error *error);

/* A member as a stream. One at a time. */
struct stream {
    struct image_source *source;
    int fd;                  /* of a file in a directory */
    struct archive *archive; /* of the tar */
    struct digest digest;    /* of the data read */
    uint64_t bytes;
    char *buffer;
};

int stream_open(struct image_source *source, const char *name, struct stream *ret_stream,
    struct rollbox_error *error);
/* The next part, valid until the next call. Its length, 0 at the end, or -errno. */
ssize_t stream_read(struct stream *stream, const void **ret_data);
void stream_close(struct stream *stream);

/* Filters that libarchive has built in. */
void image_source_filters(struct archive *archive);

/* The size of a member; 0 if it is not there. */
uint64_t image_source_size(const struct image_source *source, const char *name);

#endif
