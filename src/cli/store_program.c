/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/store_program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "cli/cli.h"

#define DOCKER "docker://"

void store_program_execute_as(const char *program, char *const *argv) {
    static const char *const below[] = { "", "../libexec/rollbox/" };
    auto_buf struct buf candidate = BUF_INIT;
    auto_free char *self = realpath("/proc/self/exe", NULL);
    char *slash = self ? strrchr(self, '/') : NULL;

    for (size_t i = 0; slash && i < ARRAY_SIZE(below); i++) {
        candidate.length = 0;
        buf_add(&candidate, self, (size_t)(slash + 1 - self));
        buf_printf(&candidate, "%s%s", below[i], program);
        if (!buf_failed(&candidate))
            execv(candidate.data, argv);
    }
#ifdef ROLLBOX_LIBEXECDIR
    candidate.length = 0;
    buf_printf(&candidate, "%s/%s", ROLLBOX_LIBEXECDIR, program);
    if (!buf_failed(&candidate))
        execv(candidate.data, argv);
#endif
}

void store_program_execute(char *const *argv) {
    store_program_execute_as(STORE_PROGRAM, argv);
}

int store_program_pull(
    const struct options *options, const char *reference, const char **ret_name) {
    static char pull[] = "pull", missing[] = "--missing", separator[] = "--";
    auto_buf struct buf program = BUF_INIT;
    int status = 0;

    buf_printf(&program, "rollbox %s", options->command->name);
    if (buf_failed(&program))
        return cli_fail(options, "out of memory");
    char *const argv[] = { program.data, pull, missing, separator, (char *)(uintptr_t)reference,
        NULL };
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        /* Standard output belongs to the command that will run. */
        const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

        (void)prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
        if (null >= 0 && dup2(null, STDOUT_FILENO) >= 0)
            store_program_execute(argv);
        _exit(CLI_EXIT_ERROR);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            pid = -1;
    if (pid < 0)
        return cli_fail(options, STORE_PROGRAM " cannot be started: %s", strerror(errno));
    *ret_name = reference + strlen(DOCKER);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : CLI_EXIT_ERROR;
}

bool store_program_is_reference(const char *image) {
    return image && strncmp(image, DOCKER, strlen(DOCKER)) == 0;
}
