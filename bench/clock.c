/* SPDX-License-Identifier: Apache-2.0 */
/* Queries the time of day as often as argv[1] says: what that takes is seen from outside. */
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv) {
    struct timespec now;

    for (long n = argc > 1 ? atol(argv[1]) : 0; n > 0; n--)
        if (clock_gettime(CLOCK_REALTIME, &now) < 0)
            return 1;
    return 0;
}
