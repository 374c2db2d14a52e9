/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that OpenSSL refers to and the gateway never reaches: it connects to nothing. In a
 * static program the C library's would load shared libraries of the machine it
 * runs on, and the linker warns about each.
 */
#include <netdb.h>
#include <stddef.h>

int getaddrinfo(
    const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **ret) {
    (void)name;
    (void)service;
    (void)hints;
    *ret = NULL;
    return EAI_FAIL;
}

void freeaddrinfo(struct addrinfo *list) {
    (void)list;
}

struct hostent *gethostbyname(const char *name) {
    (void)name;
    return NULL;
}
