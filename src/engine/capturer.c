/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/capturer.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "guest/image.h"
#include "snapshot/capture.h"

_Static_assert(CAPTURER_MAX_MAINS >= IMAGE_MAX_PROCESSES, "a verdict has room for every process of an image");

static bool read_at(int fd, void *to, size_t length, uint64_t at) {
    return pread(fd, to, length, (off_t)at) == (ssize_t)length;
}

static int find_mains(int image, struct verdict *verdict) {
    struct image header;
    struct stat st;

    if (fstat(image, &st) < 0 || (uint64_t)st.st_size < sizeof header || !read_at(image, &header, sizeof header, (uint64_t)st.st_size - sizeof header))
        return -EIO;
    for (uint64_t i = 0; i < header.processes.n; i++) {
        struct image_process process;

        if (!read_at(image, &process, sizeof process, header.processes.at + i * sizeof process))
            return -EIO;
        if (process.kind == IMAGE_LIVING && !process.parent && verdict->n_mains < ARRAY_SIZE(verdict->mains))
            verdict->mains[verdict->n_mains++] = process.pid;
    }
    return 0;
}

/* They die where they stand, without another instruction: with init, but for who traces them to see to. */
_Noreturn static void end_all(pid_t init) {
    (void)kill(init, SIGKILL);
    while (waitpid(-1, NULL, __WALL) > 0 || errno == EINTR)
        ;
    _exit(0);
}

_Noreturn void capturer_run(pid_t init, const uint64_t *externals, size_t n_externals, uint64_t most_bytes, int image, int socket) {
    static struct verdict verdict;
    struct capture_options options = { .init = init, .externals = externals, .n_externals = n_externals, .most_bytes = most_bytes };
    struct capture *capture = NULL;
    char byte;
    int r = capture_begin(&options, image, &capture, &verdict.error);

    if (r == 0) {
        struct capture_summary summary = capture_summary(capture);

        verdict.processes = summary.processes;
        verdict.bytes = summary.bytes;
        r = find_mains(image, &verdict);
        if (r < 0)
            error_set(&verdict.error, ROLLBOX_ERR_INTERNAL, -r, "snapshot", "the image cannot be read: %s", strerror(-r));
    }
    close(image);               /* it is for others to read now, and for nobody to write to */
    if (send(socket, &verdict, sizeof verdict, MSG_NOSIGNAL) == sizeof verdict && r == 0) {
        ssize_t n;

        while ((n = recv(socket, &byte, 1, 0)) < 0 && errno == EINTR)
            ;
        if (n > 0)
            end_all(init);
    }
    capture_end(capture);
    _exit(r < 0);
}
