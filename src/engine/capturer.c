/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/capturer.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "guest/image.h"

_Static_assert(CAPTURER_MAX_MAINS >= IMAGE_MAX_PROCESSES, "a verdict has room for every process of an image");
_Static_assert(CAPTURER_MAX_TERMINALS == IMAGE_MAX_TERMINALS, "commands have no more than that");

/* They die where they stand, without another instruction: with init, but for who traces them to see to. */
_Noreturn static void end_all(pid_t init) {
    (void)kill(init, SIGKILL);
    while (waitpid(-1, NULL, __WALL) > 0 || errno == EINTR)
        ;
    _exit(0);
}

static bool tell(int socket, const struct verdict *verdict, const struct capture_tracker *trackers, size_t n) {
    int fds[CAPTURE_MAX_TRACKERS];

    for (size_t i = 0; i < n; i++)
        fds[i] = trackers[i].fd;
    return fd_send(socket, verdict, sizeof *verdict, fds, n) == 0;
}

/* What comes; 0: nothing more will. */
static char hear(int socket) {
    char order = 0;

    while (recv(socket, &order, 1, 0) < 0 && errno == EINTR)
        ;
    return order;
}

_Noreturn void capturer_run(const struct capture_options *options, bool (*may_go_on)(void *data), void *data, int image, int socket) {
    static struct verdict verdict;
    const struct capture_tracker *trackers = NULL;
    struct capture *capture = NULL;
    int r = capture_begin(options, image, &capture, &verdict.error);

    verdict.may_pass = r == -EAGAIN;
    if (r == 0) {
        struct capture_summary summary = capture_summary(capture);

        verdict.is_complete = capture_is_complete(capture);
        verdict.processes = summary.processes;
        verdict.bytes = summary.bytes;
        verdict.numbers = *capture_numbers(capture);
        verdict.is_addition = capture_is_addition(capture);
        verdict.n_trackers = (uint32_t)capture_trackers(capture, &trackers);
        for (size_t i = 0; i < verdict.n_trackers; i++)
            verdict.trackers[i] = (struct capture_tracker){ trackers[i].pid, -1 };
        capture_clocks(capture, verdict.clocks);
        verdict.n_mains = (uint32_t)capture_mains(capture, verdict.mains, ARRAY_SIZE(verdict.mains));
    }
    verdict.goes_on = r == 0 && may_go_on && may_go_on(data);
    if (verdict.goes_on)
        capture_let_go(capture);
    if (r < 0 || verdict.is_complete)
        close(image);           /* it is for others to read now, and for nobody to write to */
    bool is_told = tell(socket, &verdict, trackers, verdict.n_trackers) && r == 0;
    char order = !is_told ? 0 : verdict.goes_on ? CAPTURER_GO_ON : hear(socket);
    if (order == CAPTURER_END)
        end_all(options->init);
    if (order == CAPTURER_GO_ON && !verdict.is_complete) {
        r = capture_go_on(capture, &verdict.error);
        close(image);
        verdict.is_complete = true;
        verdict.bytes = capture_summary(capture).bytes;
        tell(socket, &verdict, NULL, 0);
    }
    capture_end(capture);
    _exit(r < 0);
}
