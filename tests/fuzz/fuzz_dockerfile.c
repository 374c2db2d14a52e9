/* SPDX-License-Identifier: Apache-2.0 */
/* Dockerfiles and .dockerignore files: any bytes give instructions that keep their promises, or an
 * error with a line. Words of them are expanded and matched, and nothing leaks. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "build/dockerfile.h"
#include "build/expand.h"
#include "build/glob.h"

static void expect(bool holds) {
    if (!holds)
        abort();
}

static const char *find(void *context, const char *name) {
    static const char *const values[] = { NULL, "", "a value/of $it" };

    (void)context;
    return values[strlen(name) % 3];
}

static void check_words(const struct words *words) {
    for (size_t i = 0; i < words->n; i++)
        expect(words->list[i] != NULL);
    expect(!words->n || words->list[words->n] == NULL);
}

static void expand(const char *text, char escape) {
    const struct expand_scope scope = { find, NULL, escape };
    struct words words = { 0 };
    char why[EXPAND_WHY] = "", *out = NULL;
    int r = expand_word(&scope, text, EXPAND_REMOVES_QUOTES, &out, why);

    expect(r == 0 ? out != NULL && strlen(out) <= EXPAND_MAX_BYTES : why[0] != '\0');
    free(out);
    out = NULL;
    if (expand_word(&scope, text, EXPAND_KEEPS_QUOTES, &out, why) == 0)
        free(out);
    expect(expand_split(text, escape, &words) == 0);
    check_words(&words);
    for (size_t i = 0; i < words.n; i++)
        expect(words.list[i][0] != '\0');
    words_done(&words);
}

static void check_clean(const char *text) {
    char *clean = glob_clean(text);

    expect(clean != NULL && clean[0] != '/' && strstr(clean, "//") == NULL);
    expect(
        strncmp(clean, "../", 3) != 0 && strstr(clean, "/../") == NULL && strcmp(clean, "..") != 0);
    free(clean);
}

static void check_instruction(const struct dockerfile *file, const struct instruction *at) {
    expect(at->line > 0 && at->arguments != NULL && instruction_name(at->kind) != NULL);
    check_words(&at->flags);
    check_words(&at->json);
    expand(at->arguments, file->escape);
    check_clean(at->arguments);
    (void)glob_match(at->arguments, "some/path of a file", GLOB_PATH);
    (void)glob_match(at->arguments, "some/path of a file", GLOB_PLAIN);
    for (size_t i = 0; i < at->n_heredocs; i++) {
        expect(at->heredocs[i].name[0] != '\0' && at->heredocs[i].body != NULL);
        expand(at->heredocs[i].body, file->escape);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct rollbox_error error = { 0 };
    struct dockerfile file;
    struct ignore ignore;

    if (dockerfile_parse("Dockerfile", (const char *)data, size, &file, &error) == 0) {
        expect(file.n > 0 && file.n <= DOCKERFILE_MAX_INSTRUCTIONS);
        for (size_t i = 0; i < file.n; i++)
            check_instruction(&file, &file.items[i]);
        dockerfile_done(&file);
    } else {
        expect(strncmp(error.message, "Dockerfile", 10) == 0);
    }
    if (size < 65536 && ignore_parse((const char *)data, size, &ignore) == 0) {
        (void)ignore_matches(&ignore, "some/path/of/a.file");
        ignore_done(&ignore);
    }
    return 0;
}
