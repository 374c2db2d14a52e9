/* SPDX-License-Identifier: Apache-2.0 */
/* A guest's DNS query: answers stay within their bound and have its question. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "net/dns.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t answer[DNS_ANSWER];
    struct dns_query query;
    uint32_t address;
    int r = dns_read(data, size, &query);

    if (r == -EBADMSG)
        return 0;
    if (strlen(query.name) >= sizeof query.name || query.question_length > size)
        abort();
    if (dns_answer_code(&query, DNS_NO_NAME, answer) > DNS_ANSWER)
        abort();
    if (r < 0)
        return 0;
    if (dns_answer_address(&query, 0xc6120001, answer) > DNS_ANSWER ||
        memcmp(answer + 12, query.question, query.question_length) != 0)
        abort();
    if (strlen(query.name) <= 253 && dns_answer_name(&query, "a.example", answer) > DNS_ANSWER)
        abort();
    (void)dns_reversed_address(query.name, &address);
    return 0;
}
