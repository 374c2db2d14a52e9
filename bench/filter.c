/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the system-call filter of the default policy, as bubblewrap's --seccomp reads it (struct
 * sock_filter, one after the other), to standard output. */
#include <stdio.h>

#include "policy/filter.h"

int main(void) {
    struct sock_filter program[FILTER_MAX_INSTRUCTIONS];
    int n =
        filter_build(&(struct filter_options){ .no_inet = true }, program, FILTER_MAX_INSTRUCTIONS);

    return n < 0 || fwrite(program, sizeof *program, (size_t)n, stdout) != (size_t)n ||
           fflush(stdout) != 0;
}
