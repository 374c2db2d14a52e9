/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Says of a region again and again that forks are to have zeros in its place, and that they are to
 * have it; and writes to so much besides that no snapshot is what has changed.
 *
 * A byte on its input is answered by how often the region was not what it had written, while forks
 * were to have it.
 */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define LENGTH (16 << 12)
#define BESIDES (24 << 20)
#define EACH_NS 3000000

static int64_t now(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static unsigned long look(char *region) {
    unsigned long wrong = 0;

    for (size_t i = 0; i < LENGTH; i += 4096)
        if (region[i] != 7) {
            wrong++;
            memset(region, 7, LENGTH);
        }
    return wrong;
}

int main(void) {
    char *besides = mmap(NULL, BESIDES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *region = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned long wrong = 0;

    if (besides == MAP_FAILED || region == MAP_FAILED)
        return 1;
    memset(region, 7, LENGTH);
    setvbuf(stdout, NULL, _IONBF, 0);
    puts("ready");
    for (int generation = 0;; generation++) {
        struct pollfd asked = { .fd = 0, .events = POLLIN };
        char byte;

        memset(besides, generation, BESIDES);
        for (int64_t begun = now(); now() - begun < EACH_NS;)
            wrong += look(region);
        madvise(region, LENGTH, MADV_WIPEONFORK);
        for (int64_t begun = now(); now() - begun < EACH_NS;)
            ;
        madvise(region, LENGTH, MADV_KEEPONFORK);
        memset(region, 7, LENGTH);
        if (poll(&asked, 1, 0) > 0) {
            if (read(0, &byte, 1) <= 0)
                return 0;
            printf("%lu\n", wrong);
        }
    }
}
