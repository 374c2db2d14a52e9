/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that c-ares refers to and the gateway never reaches. In a static program the C
 * library's would load shared libraries of the machine it runs on, and the linker warns about each.
 */
#include <errno.h>
#include <netdb.h>
#include <stddef.h>

struct servent *getservbyname(const char *name, const char *protocol) {
    (void)name;
    (void)protocol;
    return NULL;
}

int getservbyport_r(int port, const char *protocol, struct servent *buffer, char *text, size_t size,
    struct servent **ret) {
    (void)port;
    (void)protocol;
    (void)buffer;
    (void)text;
    (void)size;
    *ret = NULL;
    return ENOENT;
}
