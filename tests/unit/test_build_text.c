/* SPDX-License-Identifier: Apache-2.0 */
/* The pure parts of builds: lines of Dockerfiles, variables, patterns. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "build/dockerfile.h"
#include "build/expand.h"
#include "build/glob.h"
#include "test.h"

static struct dockerfile parsed(const char *text) {
    struct rollbox_error error = { 0 };
    struct dockerfile file = { 0 };

    ASSERT_OK(dockerfile_parse("D", text, strlen(text), &file, &error));
    return file;
}

static void refused(const char *text, const char *words) {
    struct rollbox_error error = { 0 };
    struct dockerfile file;

    ASSERT_TRUE(dockerfile_parse("D", text, strlen(text), &file, &error) < 0);
    ASSERT_TRUE(strstr(error.message, words) != NULL);
}

TEST(lines_continue_past_comments_and_empty_lines) {
    struct dockerfile file =
        parsed("\xef\xbb\xbf# escape=`\nFROM a\r\n# c\nRUN one `\n  # c\n\n two `  \n three\n");

    ASSERT_EQ(file.n, 2);
    ASSERT_STR_EQ(file.items[0].arguments, "a");
    ASSERT_STR_EQ(file.items[1].arguments, "one  two  three");
    ASSERT_EQ(file.items[1].line, 4);
    dockerfile_done(&file);
}

TEST(an_escaped_escape_ends_the_line) {
    struct dockerfile file = parsed("RUN a \\\\\nRUN b\n");

    ASSERT_EQ(file.n, 2);
    dockerfile_done(&file);
}

TEST(flags_and_json_arguments_are_split) {
    struct dockerfile file = parsed("copy --from=x --chown=\"a b\" [\"c\", \"d e\"]\nRUN [ x ]\n");

    ASSERT_EQ(file.items[0].flags.n, 2);
    ASSERT_STR_EQ(file.items[0].flags.list[1], "chown=\"a b\"");
    ASSERT_TRUE(file.items[0].is_json);
    ASSERT_STR_EQ(file.items[0].json.list[1], "d e");
    ASSERT_FALSE(file.items[1].is_json);
    dockerfile_done(&file);
}

TEST(heredocs_have_bodies_in_order) {
    struct dockerfile file =
        parsed("RUN cat <<A 3<<-'B' > x\na\nA\n\tb\n\tB\nRUN echo '<<C' $((1<<2))\n");

    ASSERT_EQ(file.n, 2);
    ASSERT_EQ(file.items[0].n_heredocs, 2);
    ASSERT_STR_EQ(file.items[0].heredocs[0].body, "a\n");
    ASSERT_STR_EQ(file.items[0].heredocs[1].body, "b\n");
    ASSERT_TRUE(file.items[0].heredocs[1].is_literal);
    ASSERT_EQ(file.items[1].n_heredocs, 0);
    dockerfile_done(&file);
}

TEST(bad_lines_are_named) {
    refused("FROM a\n\nBAD x\n", "D:3: BAD is no instruction");
    refused("RUN <<A\nx\n", "D:1: the heredoc has no end");
    refused("# escape=x\nFROM a\n", "D:1: escape");
    refused("FROM\n", "D:1: FROM needs an argument");
    refused("# only comments\n", "no instructions");
    refused("FROM \xff\n", "UTF-8");
}

static const char *find(void *context, const char *name) {
    (void)context;
    if (strcmp(name, "a") == 0)
        return "one/two/two";
    return strcmp(name, "empty") == 0 ? "" : NULL;
}

static void expands(const char *text, const char *wanted) {
    const struct expand_scope scope = { find, NULL, '\\' };
    char why[EXPAND_WHY], *out = NULL;

    ASSERT_OK(expand_word(&scope, text, EXPAND_REMOVES_QUOTES, &out, why));
    ASSERT_STR_EQ(out, wanted);
    free(out);
}

TEST(variables_have_the_forms_of_shells) {
    expands("$a${a}$", "one/two/twoone/two/two$");
    expands("'$a' \"$a\" \\$a \\x", "$a one/two/two $a x");
    expands("${none:-$a}${none-x}${empty:-y}${empty-z}", "one/two/twoxy");
    expands("${a:+s}${empty:+s}${empty+t}${none+t}", "st");
    expands("${a#*/} ${a##*/} ${a%/*} ${a%%/*}", "two/two two one/two one");
    expands("${a/two/2} ${a//two/2}", "one/2/two one/2/2");
    expands("\"${none:-\"in quotes\"}\"", "in quotes");
}

TEST(bad_variables_are_refused) {
    static const char *const texts[] = { "${a", "${", "${a:x}", "'", "\"", "${none:?why}",
        "${a b}" };
    const struct expand_scope scope = { find, NULL, '\\' };
    char why[EXPAND_WHY], *out = NULL;

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        ASSERT_ERR(expand_word(&scope, texts[i], EXPAND_REMOVES_QUOTES, &out, why), -EINVAL);
}

TEST(variables_do_not_grow_without_bound) {
    const struct expand_scope scope = { find, NULL, '\\' };
    char why[EXPAND_WHY], *out = NULL, *text = malloc(200001);

    for (size_t i = 0; i < 100000; i++)
        memcpy(text + 2 * i, "$a", 3);
    ASSERT_ERR(expand_word(&scope, text, EXPAND_REMOVES_QUOTES, &out, why), -EINVAL);
    free(text);
}

TEST(patterns_of_paths) {
    ASSERT_TRUE(glob_match("*.c", "a.c", GLOB_PATH));
    ASSERT_FALSE(glob_match("*.c", "d/a.c", GLOB_PATH));
    ASSERT_TRUE(glob_match("**/*.c", "a.c", GLOB_PATH));
    ASSERT_TRUE(glob_match("**/*.c", "d/e/a.c", GLOB_PATH));
    ASSERT_TRUE(glob_match("d/**", "d/e/f", GLOB_PATH));
    ASSERT_TRUE(glob_match("a/**/b", "a/b", GLOB_PATH));
    ASSERT_FALSE(glob_match("a/**/b", "a/xb", GLOB_PATH));
    ASSERT_TRUE(glob_match("[a-c]?\\*", "bx*", GLOB_PATH));
    ASSERT_FALSE(glob_match("[^a-c]", "b", GLOB_PATH));
    ASSERT_TRUE(glob_match("a*a*a*a*a*a*a*a*", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", GLOB_PATH));
    ASSERT_FALSE(glob_match("*a*a*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", GLOB_PATH));
}

TEST(the_last_rule_of_dockerignore_counts) {
    static const char text[] = "# c\n/x/\n*.log\n!keep.log\n a/**/z \n";
    struct ignore ignore;

    ASSERT_OK(ignore_parse(text, sizeof text - 1, &ignore));
    ASSERT_TRUE(ignore_matches(&ignore, "x/below"));
    ASSERT_TRUE(ignore_matches(&ignore, "b.log"));
    ASSERT_FALSE(ignore_matches(&ignore, "keep.log"));
    ASSERT_TRUE(ignore_matches(&ignore, "a/b/c/z"));
    ASSERT_FALSE(ignore_matches(&ignore, "y"));
    ignore_done(&ignore);
}

TEST(paths_are_made_clean) {
    static const char *const pairs[][2] = { { "/a//b/./c/", "a/b/c" }, { "../../a", "a" },
        { "a/b/../../..", "" }, { ".", "" } };

    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        char *clean = glob_clean(pairs[i][0]);

        ASSERT_STR_EQ(clean, pairs[i][1]);
        free(clean);
    }
}
