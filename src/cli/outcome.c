/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/outcome.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/utf8.h"
#include "cli/cli.h"

int outcome_print_json(
    const struct options *options, const struct rollbox_result *result, const char *id) {
    auto_free char *json = NULL;
    auto_buf struct buf line = BUF_INIT;

    if (rollbox_result_json(result, id, &json) < 0)
        return cli_fail(options, "out of memory");
    buf_add_text(&line, json);
    buf_add(&line, "\n", 1);
    if (buf_failed(&line))
        return cli_fail(options, "out of memory");
    int r = fd_write_all(STDOUT_FILENO, line.data, line.length);
    cli_notify();
    if (r < 0)
        return cli_fail(options, "cannot write to standard output: %s", strerror(-r));
    return result->outcome == ROLLBOX_OUTCOME_ERROR ? CLI_EXIT_ERROR : 0;
}

int outcome_fail(const struct options *options, const struct rollbox_error *error) {
    struct rollbox_result result = {
        .outcome = ROLLBOX_OUTCOME_ERROR, .exit_code = -1, .isolation = "{}", .error = *error
    };

    return options_has(options, OPTION_JSON) ? outcome_print_json(options, &result, NULL)
                                             : cli_fail_error(options, error);
}

int outcome_status(
    const struct options *options, const struct rollbox_result *result, uint64_t output_limit) {
    const char *timeout = options_text(options, OPTION_TIMEOUT);
    const bool is_default =
        !timeout && options->command->bit & (COMMAND_RUN | COMMAND_RECORD | COMMAND_SHELL) &&
        !options_has(options, OPTION_TTY) && !options_has(options, OPTION_POLICY) &&
        !options_has(options, OPTION_TEMPLATE);

    switch (result->outcome) {
    case ROLLBOX_OUTCOME_EXIT:
        return result->exit_code;
    case ROLLBOX_OUTCOME_SIGNAL:
        return 128 + result->signal;
    case ROLLBOX_OUTCOME_TIMEOUT:
        cli_fail(options, "timed out after %s%s",
            timeout      ? timeout
            : is_default ? "300 s, the default; --timeout sets another, --timeout none removes it"
                         : "the policy's time",
            timeout ? " s" : "");
        return CLI_EXIT_TIMEOUT;
    case ROLLBOX_OUTCOME_OUT_OF_MEMORY:
        cli_fail(options, "out of memory: the sandbox needed more than its limit (see --memory)");
        return CLI_EXIT_OUT_OF_MEMORY;
    case ROLLBOX_OUTCOME_OUTPUT_LIMIT:
        if (output_limit < UINT64_MAX)
            cli_fail(options,
                "too much output: more than %" PRIu64 " bytes on one stream (see --output-limit)",
                output_limit);
        else
            cli_fail(options,
                "too much output on one stream: more than the policy allows (see --output-limit)");
        return CLI_EXIT_OUTPUT_LIMIT;
    case ROLLBOX_OUTCOME_ERROR:
        cli_fail_error(options, &result->error);
        if (result->error.code == ROLLBOX_ERR_COMMAND_NOT_FOUND)
            return CLI_EXIT_NOT_FOUND;
        return result->error.code == ROLLBOX_ERR_NOT_EXECUTABLE ? CLI_EXIT_NOT_EXECUTABLE
                                                                : CLI_EXIT_ERROR;
    }
    return CLI_EXIT_ERROR;
}

static bool has_any(const struct buf *text, const char *const *words, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (memmem(text->data, text->length, words[i], strlen(words[i])))
            return true;
    return false;
}

/* Without a network, bind and connect fail with EACCES, which alone could also concern a file. */
static bool tells_of_network(const struct buf *tail) {
    static const char *const sure[] = { "Cannot assign requested address", "EADDRNOTAVAIL",
        "Network is unreachable", "ENETUNREACH", "Temporary failure in name resolution",
        "Name or service not known", "Could not resolve host", "EAI_AGAIN" };
    static const char *const denied[] = { "Permission denied", "EACCES", "permission denied" };
    static const char *const calls[] = { "bind", "listen", "connect", "socket" };

    return has_any(tail, sure, ARRAY_SIZE(sure)) ||
           (has_any(tail, denied, ARRAY_SIZE(denied)) && has_any(tail, calls, ARRAY_SIZE(calls)));
}

#define HINTED_REFUSALS ((size_t)3)

/* From inside, a refused connection looks like a broken one. */
static void hint_refusals(const struct options *options, const char *network) {
    json_t *whole = json_loads(network, 0, NULL);
    const json_t *refusals = json_object_get(whole, "refusals");
    size_t n = json_array_size(refusals);
    auto_buf struct buf text = BUF_INIT;

    for (size_t i = 0; i < MIN(n, HINTED_REFUSALS); i++) {
        const json_t *one = json_array_get(refusals, i);
        const char *host = json_string_value(json_object_get(one, "host"));
        const char *why = json_string_value(json_object_get(one, "why"));

        if (!host || !why)
            continue;
        buf_add_text(&text, text.length ? ", " : "");
        utf8_shown(&text, host, strlen(host), "");
        const json_int_t port = json_integer_value(json_object_get(one, "port"));

        if (port)
            buf_printf(&text, ":%" JSON_INTEGER_FORMAT, port);
        buf_printf(&text, " (%s)", why);
    }
    if (n > HINTED_REFUSALS)
        buf_printf(&text, " and %zu more", n - HINTED_REFUSALS);
    if (text.length && !buf_failed(&text))
        cli_fail(options, "the network rules refused %.*s", (int)text.length, (char *)text.data);
    json_decref(whole);
}

void outcome_hint_network(const struct options *options, const struct rollbox_result *result,
    const char *tail, size_t length) {
    const struct buf text = { .data = (char *)(uintptr_t)tail, .length = length };

    if (result->outcome == ROLLBOX_OUTCOME_EXIT && result->exit_code && result->network)
        hint_refusals(options, result->network);
    if (length && result->outcome == ROLLBOX_OUTCOME_EXIT && result->exit_code &&
        result->isolation && strstr(result->isolation, "\"net\":\"none\"") &&
        tells_of_network(&text))
        cli_fail(options, "the sandbox has no network (net none); choose net loopback for a "
                          "private network, net allow for hosts that you name, or net host for "
                          "the host's");
}
