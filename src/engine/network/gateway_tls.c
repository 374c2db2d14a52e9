/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/network/gateway_tls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/core/spawn.h"
#include "engine/network/gateway_process.h"
#include "store/store.h"

#define PROGRAM "rollbox-egress-tls"
#define INLINE_POLICY (32u << 10)
#define MAX_BUNDLE (32u << 20)

static int run_maker(struct engine *engine, char *path, struct rollbox_error *error) {
    auto_free char *program = spawn_find_program(NULL, PROGRAM);
    char *argv[] = { (char *)PROGRAM, (char *)"--make-ca", path, NULL };
    auto_close int words = memfd_create("rollbox-words", MFD_CLOEXEC);
    auto_buf struct buf text = BUF_INIT;
    const int fds[] = { engine->null_fd, engine->null_fd, words };
    int status = 0, result;
    pid_t pid;

    if (program == NULL || words < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    result = spawn_clean(program, argv, fds, ARRAY_SIZE(fds), &pid);
    if (result < 0)
        return error_set(error, error_code_of(-result, ROLLBOX_ERR_ENGINE_START), -result, "policy",
            "net allow: %s cannot be started: %s", program, strerror(-result));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (status == 0)
        return 0;
    (void)fd_read_again(words, 1024, &text);
    return error_set(error, ROLLBOX_ERR_IO, EIO, "policy", "net allow: %.*s",
        text.length > 0 ? (int)strcspn(text.data, "\n") : 50,
        text.length > 0 ? text.data : "the certificate authority of the store cannot be made");
}

static int open_in(const char *directory, const char *name) {
    auto_free char *path = NULL;
    int fd;

    if (asprintf(&path, "%s/%s", directory, name) < 0)
        return -ENOMEM;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

static int read_in(const char *directory, const char *name, struct buf *to) {
    auto_close int fd = open_in(directory, name);

    return fd < 0 ? fd : fd_read_all(fd, MAX_BUNDLE, to);
}

int gateway_tls_bundle(struct engine *engine, const char *store, struct buf *to,
    struct buf *to_java, struct rollbox_error *error) {
    auto_free char *path = NULL;
    int result;

    if (asprintf(&path, "%s/ca", store) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    result = run_maker(engine, path, error);
    if (result < 0)
        return result;
    result = read_in(path, "bundle.pem", to);
    if (result == 0)
        result = read_in(path, "bundle.jks", to_java);
    return result < 0 ? error_set(error, ROLLBOX_ERR_IO, -result, "policy",
                            "net allow: %s/bundle.pem or bundle.jks cannot be read: %s", path,
                            strerror(-result))
                      : 0;
}

/* Roots for servers: the user's own list, if there is one, else the host's. */
static int open_roots(const char *directory) {
    int fd = open_in(directory, "roots.pem");

    return fd == -ENOENT ? open_in(directory, "bundle.pem") : fd;
}

static int send_begin(struct gateway_process *tls, int egress) {
    auto_free char *store = NULL, *path = NULL;
    auto_close int key = -EBADF, certificate = -EBADF, roots = -EBADF;

    if (store_default_path(&store, NULL) < 0 || asprintf(&path, "%s/ca", store) < 0)
        return -ENOMEM;
    key = open_in(path, "key.pem");
    certificate = open_in(path, "cert.pem");
    roots = open_roots(path);
    if (key < 0 || certificate < 0 || roots < 0)
        return -ENOENT;
    const int fds[] = { egress, key, certificate, roots };
    return gateway_process_send(tls, json_pack("{s:s}", "do", "begin"), fds, ARRAY_SIZE(fds));
}

int gateway_tls_start(struct gateway_process *tls, struct gateway_process *egress) {
    auto_close int ours = -EBADF, theirs = -EBADF;
    int pair[2], result;

    if (tls->pid != 0)
        return 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    ours = pair[0];
    theirs = pair[1];
    result = gateway_process_start(tls);
    if (result < 0)
        return result;
    result = send_begin(tls, ours);
    if (result == 0)
        result = gateway_process_send(egress, json_pack("{s:s}", "do", "tls"), &theirs, 1);
    if (result < 0)
        gateway_process_stop(tls);
    return result;
}

int gateway_tls_send(struct gateway_process *tls, const char *verb, const char *box,
    const char *policy, int secrets, const struct gateway_tape *tape) {
    json_t *message = json_pack("{s:s, s:s}", "do", verb, "box", box);
    auto_close int text = -EBADF;
    int fds[4];
    size_t n = 0;

    if (message == NULL)
        return -ENOMEM;
    if (strlen(policy) > INLINE_POLICY) {
        text = fd_memory_file("rollbox-rules", policy, strlen(policy));
        if (text < 0) {
            json_decref(message);
            return text;
        }
        fds[n++] = text;
        json_object_set_new(message, "policy_fd", json_true());
    } else
        json_object_set_new(message, "policy", json_string(policy));
    if (secrets >= 0)
        fds[n++] = secrets;
    if (strcmp(verb, "open") == 0 && tape->record >= 0) {
        fds[n++] = tape->record;
        json_object_set_new(message, "record", json_true());
    }
    if (strcmp(verb, "open") == 0 && tape->replay >= 0) {
        fds[n++] = tape->replay;
        json_object_set_new(message, "replay", json_true());
    }
    return gateway_process_send(tls, message, fds, n);
}

int gateway_tls_close(struct gateway_process *tls, const char *box) {
    return gateway_process_send(tls, json_pack("{s:s, s:s}", "do", "close", "box", box), NULL, 0);
}
