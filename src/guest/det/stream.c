/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/det/stream.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "base/chacha.h"
#include "guest/det/det.h"
#include "sys/syscalls.h"

#define STATE_BIT (1ull << 62) /* so that a reader that takes it for a limit finds it enormous */

static int limit_of(pid_t pid, int resource, const uint64_t *value, uint64_t *ret_value) {
    uint64_t now[2], after[2] = { value ? *value | STATE_BIT : 0, RLIM64_INFINITY };
    uint64_t *set = value ? after : NULL;
    uint64_t *get = ret_value ? now : NULL;
    int r = (int)sys_call4(__NR_prlimit64, pid, resource, set, get);

    if (r == 0 && ret_value)
        *ret_value = now[0] & ~STATE_BIT;
    return r;
}

int stream_store(pid_t pid, const struct stream *stream) {
    uint64_t owner = (uint64_t)stream->owner;
    int r = limit_of(pid, RLIMIT_RSS, &stream->state, NULL);

    return r == 0 ? limit_of(pid, RLIMIT_LOCKS, &owner, NULL) : r;
}

uint64_t stream_derive(uint64_t seed, uint64_t state, uint32_t purpose) {
    return chacha_number(seed, state, purpose) >> 2;
}

/* Loads the present stream of a thread's process. */
static int stream_load(uint64_t seed, pid_t pid, struct stream *ret_stream) {
    uint64_t owner = 0;
    int r = limit_of(pid, RLIMIT_RSS, NULL, &ret_stream->state);

    if (r == 0)
        r = limit_of(pid, RLIMIT_LOCKS, NULL, &owner);
    if (r < 0)
        return r;
    ret_stream->owner = (pid_t)owner;
    if (ret_stream->owner != pid && !process_has_thread(ret_stream->owner, pid)) {
        ret_stream->state =
            stream_derive(seed, ret_stream->state, PURPOSE_CHILD); /* the first call of a child */
        ret_stream->owner = process_of_thread(pid);
    }
    return 0;
}

uint64_t stream_of(uint64_t seed, pid_t thread) {
    struct stream stream;

    return stream_load(seed, thread, &stream) < 0 ? 0 : stream.state;
}

long stream_draw(uint64_t seed, pid_t pid, uint64_t to, size_t length) {
    uint8_t bytes[4096];
    struct stream stream;
    size_t done = 0;
    int r = stream_load(seed, pid, &stream);

    if (r < 0)
        return r;
    while (done < length) {
        size_t n = length - done < sizeof bytes ? length - done : sizeof bytes;

        for (size_t at = 0; at < n; at += CHACHA_BLOCK)
            chacha_block(seed, stream.state, PURPOSE_BYTES, (uint32_t)((done + at) / CHACHA_BLOCK),
                bytes + at);
        long written = process_write_memory(pid, to + done, bytes, n);
        if (written <= 0 && !done)
            return written < 0 ? written : -EFAULT;
        if (written > 0)
            done += (size_t)written;
        if (written != (long)n)
            break;
    }
    stream.state = stream_derive(seed, stream.state, PURPOSE_NEXT);
    r = stream_store(pid, &stream);
    return r < 0 ? r : (long)done;
}

void stream_advance(uint64_t seed, pid_t pid) {
    struct stream stream;

    if (stream_load(seed, pid, &stream) < 0)
        return;
    stream.state = stream_derive(seed, stream.state, PURPOSE_NEXT);
    (void)stream_store(pid, &stream);
}
