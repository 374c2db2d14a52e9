/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target over files, without a fuzzer: corpora as regression tests, with any compiler.
 * Arguments are files and directories (looked into one level deep). The name of the file at work is
 * in the output last when one of them ends the program.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned n_files;

static int replay_file(const char *path) {
    auto_buf struct buf content = BUF_INIT;
    int r = fd_read_file(path, 64 << 20, &content);

    if (r < 0)
        return fprintf(stderr, "%s: %s\n", path, strerror(-r)), 1;
    printf("%s\n", path);
    fflush(stdout);
    /* A copy of just this size, so that a read past its end is seen by the address sanitizer. */
    auto_free uint8_t *exact = malloc(content.length ? content.length : 1);
    if (!exact)
        return perror("malloc"), 1;
    if (content.length)
        memcpy(exact, content.data, content.length);
    LLVMFuzzerTestOneInput(exact, content.length);
    n_files++;
    return 0;
}

static int replay(const char *path) {
    struct stat st;
    struct dirent **entries;
    int status = 0, n;

    if (stat(path, &st) < 0)
        return perror(path), 1;
    if (!S_ISDIR(st.st_mode))
        return replay_file(path);
    n = scandir(path, &entries, NULL, alphasort);
    if (n < 0)
        return perror(path), 1;
    for (int i = 0; i < n; i++) {
        auto_free char *file = NULL;

        if (entries[i]->d_name[0] != '.') {
            if (asprintf(&file, "%s/%s", path, entries[i]->d_name) < 0)
                return perror("asprintf"), 1;
            status |= replay_file(file);
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

int main(int argc, char **argv) {
    int status = 0;

    for (int i = 1; i < argc; i++)
        status |= replay(argv[i]);
    if (n_files == 0)
        return fprintf(stderr, "nothing to replay\n"), 1;
    printf("%u files replayed\n", n_files);
    return status;
}
