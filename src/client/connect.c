/* SPDX-License-Identifier: Apache-2.0 */
/* Connections to a server in a sandbox. The engine only forwards the request: the connected socket
 * comes from the sandbox's init, through a socket pair of this call's. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "client/client.h"
#include "client/sandbox.h"
#include "guest/guest.h"

static int fail(struct rollbox_error *error, unsigned port, int number) {
    if (number == ECONNREFUSED)
        return error_set(error, ROLLBOX_ERR_NOT_FOUND, number, "run",
            "nothing listens on port %u in the sandbox", port);
    return error_set(error, error_code_of(number, ROLLBOX_ERR_RESOURCE_EXHAUSTED), number, "run",
        "cannot connect to port %u in the sandbox: %s", port, strerror(number));
}

/* Init's answer. 0 and the connected socket; or the error. */
static int await_socket(int from, unsigned port, int *ret_fd, struct rollbox_error *error) {
    struct guest_record record = { 0 };
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n = 0;
    ssize_t length = fd_receive(from, &record, sizeof record, fds, &n);

    if (length < 0)
        return fail(error, port, (int)-length);
    bool is_right =
        length == sizeof record && record.kind == GUEST_CONNECTED && n == (record.error ? 0 : 1);
    if (is_right && !record.error)
        *ret_fd = TAKE_FD(fds[0]);
    while (n)
        close_fd(&fds[--n]);
    if (length == 0)
        return error_set(error, ROLLBOX_ERR_NOT_FOUND, ESRCH, "run",
            "the sandbox ended before the connection to port %u was made", port);
    if (!is_right)
        return error_set(error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "run",
            "the sandbox's init answered something else than a connection");
    return record.error ? fail(error, port, record.error) : 0;
}

ROLLBOX_PUBLIC int rollbox_connect(
    struct rollbox_sandbox *sandbox, unsigned port, int *ret_fd, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;
    int pair[2];

    if (!sandbox || !ret_fd || port < 1 || port > UINT16_MAX)
        return request_invalid(error, "a sandbox and a port from 1 to 65535 must be given");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return fail(error, port, errno);
    auto_close int ours = pair[0];
    auto_close int theirs = pair[1];
    sandbox_begin(&message, sandbox, VERB_CONNECT);
    wire_add_u64(&message, TAG_NUMBER, port);
    int r = sandbox_call(sandbox, &message, &theirs, 1, NULL, error);
    if (r < 0)
        return r;
    close_fd(&theirs); /* so that the end of the sandbox is seen */
    return await_socket(ours, port, ret_fd, error);
}

ROLLBOX_PUBLIC int rollbox_publish(struct rollbox_sandbox *sandbox, unsigned port,
    const char *listen, char **ret_json, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    if (!sandbox || port > UINT16_MAX || (listen && !port))
        return request_invalid(error, "a sandbox and a port from 1 to 65535 must be given");
    sandbox_begin(&message, sandbox, VERB_PUBLISH);
    wire_add_u64(&message, TAG_NUMBER, port);
    if (listen)
        wire_add_text(&message, TAG_PATH, listen);
    return sandbox_call(sandbox, &message, NULL, 0, ret_json, error);
}
