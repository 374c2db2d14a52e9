/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The content of a tokens file. What is taken has names of the allowed length, known scopes and a
 * secret or a certificate; what is refused leaves the tokens as they were, and says why.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "serve/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t count(const struct list *list) {
    size_t n = 0;

    list_for_each(node, list) {
        n++;
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tokens tokens = { .defaults = { .of = { 0 } } };

    if (!tokens.list.next) {
        list_init(&tokens.list);
        list_init(&tokens.tenants);
    }
    size_t before = count(&tokens.list);
    tokens.fault[0] = '\0';
    if (tokens_parse(&tokens, (const char *)data, size) < 0) {
        if (!tokens.fault[0] || count(&tokens.list) != before)
            abort();
        return 0;
    }
    list_for_each(node, &tokens.list) {
        const struct token *token = container_of(node, struct token, of_tokens);

        if (!token_tenant_ok(token->tenant) || !token->id[0] || token->expires < 0 ||
            token->scopes & ~TOKEN_EVERYTHING)
            abort();
    }
    return 0;
}
