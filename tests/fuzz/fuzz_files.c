/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files agent of a sandbox may send, as the library takes it: any bytes make files below
 * the target or are refused; nothing outside it changes, nothing but files, directories and links
 * is made, and no temporary file stays.
 *
 * The first byte says what was asked for. Then messages, each behind its length in two bytes.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/remove_tree.h"
#include "client/files.h"

static int top = -EBADF; /* holds "to", where trees go, and "outside" */
static char top_path[32];

static void make_top(void) {
    struct statfs fs;

    snprintf(top_path, sizeof top_path, "%s/rollbox-fuzz-XXXXXX",
        statfs("/dev/shm", &fs) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(top_path))
        abort();
    top = open(top_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void remove_top(void) {
    tree_empty(top);
    rmdir(top_path);
}

/* Aborts if there is what should not be; goes a few levels down. */
static void look(int directory, int levels) {
    _Alignas(8) char entries[4096];
    long n;

    while ((n = transfer_read_entries(directory, entries, sizeof entries)) > 0) {
        const char *name;
        int64_t offset;

        for (long at = 0; (name = transfer_next_entry(entries, n, &at, &offset));) {
            struct stat st;

            if (fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
                (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode) && !S_ISLNK(st.st_mode)) ||
                st.st_mode & 06000)
                abort();
            if (S_ISDIR(st.st_mode) && levels) {
                auto_close int inner =
                    openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                if (inner >= 0)
                    look(inner, levels - 1);
            }
        }
    }
}

static void check_outside(void) {
    auto_close int fd = openat(top, "outside/secret", O_RDONLY | O_CLOEXEC);
    char text[16] = "";
    struct stat st;
    unsigned n = 0;
    auto_close int directory = openat(top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _Alignas(8) char entries[4096];
    int64_t offset;
    long length = transfer_read_entries(directory, entries, sizeof entries);

    if (fd < 0 || fstat(fd, &st) < 0 || st.st_nlink != 1 || st.st_mode != (S_IFREG | 0600) ||
        read(fd, text, sizeof text) != 6 || strcmp(text, "secret"))
        abort();
    for (long at = 0; transfer_next_entry(entries, length, &at, &offset);)
        n++;
    if (n > 2)
        abort();
}

static void prepare(void) {
    if (tree_empty(top) < 0 || mkdirat(top, "outside", 0755) < 0 || mkdirat(top, "to", 0755) < 0)
        abort();
    auto_close int fd =
        openat(top, "outside/secret", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, "secret", 6) != 6 || symlinkat("../outside", top, "to/planted") < 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct rollbox_error error = { 0 };
    struct files files;
    int sockets[2], r = -EINVAL;
    char target[64], *json = NULL;
    void *content = NULL;
    size_t length = 0;

    if (top < 0) {
        make_top();
        atexit(remove_top);
    }
    if (size < 1 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0 ||
        files_init(&files, sockets[0]) < 0)
        return 0;
    prepare();
    snprintf(target, sizeof target, "%s/to%s", top_path, data[0] & 8 ? "/new" : "");
    for (size_t at = 1; at + 2 <= size;) {
        size_t n = data[at] | (size_t)data[at + 1] << 8;
        at += 2;
        n = MIN(n, size - at);
        if (n && send(sockets[1], data + at, n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
            break;
        at += n;
    }
    shutdown(sockets[1], SHUT_WR);
    switch (data[0] % 8) {
    case 0:
        r = files_read(&files, "/file", 1 << 20, &content, &length, &error);
        if (r == 0 && length > 1 << 20)
            abort();
        break;
    case 1:
        r = files_list(&files, "/", &json, &error);
        break;
    case 2:
        r = files_stat(&files, "/file", false, &json, &error);
        break;
    case 3:
        r = files_remove(&files, "/file", true, &error);
        break;
    case 4:
        r = files_write(&files, "/file", "text", 4, 0, &error);
        break;
    default:
        r = files_download(&files, "/file", target, &error);
        break;
    }
    if (r > 0 ||
        (r < 0 && (error.code == ROLLBOX_OK || !error.message[0] || strchr(error.message, '\n'))))
        abort();
    free(json);
    free(content);
    files_done(&files);
    close(sockets[1]);
    check_outside();
    auto_close int to = openat(top, "to", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (to < 0)
        abort();
    look(to, 3);
    return 0;
}
