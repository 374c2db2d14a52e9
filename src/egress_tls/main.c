/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox-egress-tls: the part of the gateway that decrypts TLS, reads requests, and adds secrets.
 *
 *   rollbox-egress-tls                 serves the engine on descriptor 3
 *   rollbox-egress-tls --make-ca DIR   makes the certificate authority of a store
 *
 * The engine starts it when the first sandbox has a rule that needs it. It gets connections, the
 * guest's socket and the server's, from rollbox-egress, which has decided that they are allowed. It
 * can neither connect nor resolve names.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <openssl/crypto.h>

#include "egress_tls/ca.h"
#include "egress_tls/serve.h"
#include "sys/syscalls.h"

#define ENGINE_FD 3

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        puts("rollbox-egress-tls " ROLLBOX_VERSION);
        return 0;
    }
    (void)signal(SIGPIPE, SIG_IGN); /* a peer that has gone is an error of the write */
    /* The host's settings are for its own programs. */
    (void)OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, NULL);
    if (argc == 3 && strcmp(argv[1], "--make-ca") == 0)
        return ca_make(argv[2]);
    if (argc != 1) {
        fprintf(stderr, "rollbox-egress-tls: the engine starts it; by hand: --make-ca DIRECTORY\n");
        return 2;
    }
    if (sys_close_range(ENGINE_FD + 1, ~0u, 0) < 0)
        return 1;
    return serve(ENGINE_FD);
}
