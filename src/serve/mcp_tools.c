/* SPDX-License-Identifier: Apache-2.0 */
/* Tools of MCP; mcp_tools.h has the model. */
#include "serve/mcp_tools.h"

#include <mcp_tools_source.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"

#define TIMEOUT_DEFAULT_S 120.0
#define TIMEOUT_MAX_S 86400.0
#define OUTPUT_DEFAULT 100000
#define OUTPUT_ENGINE ((json_int_t)64 << 20) /* past it the command is ended */
#define IDLE_DEFAULT_S 3600
#define READ_DEFAULT ((size_t)256 << 10)
#define PLAIN "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"

enum answer {
    ANSWER_JSON,
    ANSWER_RUN, /* a result of a run or command */
    ANSWER_FILE
};

struct mcp_tool {
    const char *name, *method;
    const char *path; /* after the sandbox's; NULL: below /v1 without a sandbox, `whole` */
    const char *whole;
    const char *query;
    const char *const *body; /* arguments that are members of the body; NULL: no body */
    enum answer answer;
};

static const char *const run_body[] = { "argv", "code", "language", "files", "stdin", "env", "cwd",
    "user", "policy", NULL };
static const char *const create_body[] = { "name", "policy", "idle_s", NULL };
static const char *const snapshot_body[] = { "name", "processes", NULL };
static const char *const fork_body[] = { "snapshot", "n", "processes", NULL };
static const char *const reset_body[] = { "snapshot", "processes", NULL };
static const char *const grade_body[] = { "argv", "files", "outputs", "cwd", "env", "policy",
    NULL };

static const struct mcp_tool tools[] = {
    { "run", "POST", NULL, "/v1/runs", NULL, run_body, ANSWER_RUN },
    { "create_sandbox", "POST", NULL, "/v1/sandboxes", NULL, create_body, ANSWER_JSON },
    { "list_sandboxes", "GET", NULL, "/v1/sandboxes", NULL, NULL, ANSWER_JSON },
    { "close_sandbox", "DELETE", "", NULL, NULL, NULL, ANSWER_JSON },
    { "exec", "POST", "/execs", NULL, NULL, run_body, ANSWER_RUN },
    { "read_file", "GET", "/files", NULL, NULL, NULL, ANSWER_FILE },
    { "write_file", "PUT", "/files", NULL, NULL, NULL, ANSWER_JSON },
    { "list_files", "GET", "/files", NULL, "list=1", NULL, ANSWER_JSON },
    { "remove_file", "DELETE", "/files", NULL, NULL, NULL, ANSWER_JSON },
    { "snapshot", "POST", "/snapshots", NULL, NULL, snapshot_body, ANSWER_JSON },
    { "list_snapshots", "GET", "/snapshots", NULL, NULL, NULL, ANSWER_JSON },
    { "fork", "POST", "/fork", NULL, NULL, fork_body, ANSWER_JSON },
    { "reset", "POST", "/reset", NULL, NULL, reset_body, ANSWER_JSON },
    { "diff", "GET", "/diff", NULL, NULL, NULL, ANSWER_JSON },
    { "grade", "POST", "/grade", NULL, NULL, grade_body, ANSWER_RUN },
};

json_t *mcp_tools(void) {
    static json_t *parsed;

    if (!parsed)
        parsed = json_loads(mcp_tools_source, 0, NULL);
    return parsed;
}

static const json_t *description_of(const struct mcp_tool *tool) {
    json_t *row;
    size_t i;

    json_array_foreach(mcp_tools(), i, row) {
        if (!strcmp(json_string_value(json_object_get(row, "name")), tool->name))
            return row;
    }
    return NULL;
}

const struct mcp_tool *mcp_tool_find(const char *name) {
    for (size_t i = 0; i < ARRAY_SIZE(tools); i++)
        if (!strcmp(tools[i].name, name) && description_of(&tools[i]))
            return &tools[i];
    return NULL;
}

/* ---- requests ---- */

static void add_encoded(struct buf *to, const char *text, bool slashes) {
    for (; *text; text++) {
        if (strchr(slashes ? PLAIN "/" : PLAIN, *text))
            buf_add(to, text, 1);
        else
            buf_printf(to, "%%%02X", (unsigned char)*text);
    }
}

static void add_query(struct buf *to, const char *name, const char *value) {
    buf_printf(to, "%s%s=", to->length ? "&" : "", name);
    add_encoded(to, value, false);
}

static bool is_type(const json_t *value, const char *type) {
    return (!strcmp(type, "string") && json_is_string(value)) ||
           (!strcmp(type, "boolean") && json_is_boolean(value)) ||
           (!strcmp(type, "integer") && json_is_integer(value)) ||
           (!strcmp(type, "number") && json_is_number(value)) ||
           (!strcmp(type, "array") && json_is_array(value)) ||
           (!strcmp(type, "object") && json_is_object(value));
}

/* Names, types and presence. What /v1 checks as well is left to it. */
static bool arguments_fit(const json_t *schema, const json_t *arguments, struct buf *fault) {
    const json_t *properties = json_object_get(schema, "properties");
    json_t *value;
    const char *name;
    size_t i;

    json_object_foreach((json_t *)arguments, name, value) {
        const json_t *property = json_object_get(properties, name);
        const char *type = json_string_value(json_object_get(property, "type"));

        if (!property)
            buf_printf(fault, "there is no argument \"%.64s\"", name);
        else if (type && !is_type(value, type))
            buf_printf(fault, "%s must be of type %s", name, type);
        if (fault->length)
            return false;
    }
    json_array_foreach(json_object_get(schema, "required"), i, value) {
        if (!json_object_get(arguments, json_string_value(value))) {
            buf_printf(fault, "the argument \"%s\" is missing", json_string_value(value));
            return false;
        }
    }
    return true;
}

static void add_command(json_t *body, const json_t *arguments) {
    const char *command = json_string_value(json_object_get(arguments, "command"));
    const json_t *timeout = json_object_get(arguments, "timeout_s");
    double seconds = timeout ? json_number_value(timeout) : TIMEOUT_DEFAULT_S;

    if (command)
        json_object_set_new(body, "argv", json_pack("[s, s, s]", "/bin/sh", "-c", command));
    json_object_set_new(body, "timeout_ms",
        json_integer((json_int_t)(MIN(MAX(seconds, 0.0), TIMEOUT_MAX_S) * 1000)));
    json_object_set_new(body, "output_limit", json_integer(OUTPUT_ENGINE));
}

static void add_body(const struct mcp_tool *tool, const json_t *arguments, const char *lease,
    struct mcp_request *request) {
    json_t *body = json_object();

    for (size_t i = 0; tool->body[i]; i++) {
        json_t *value = json_object_get(arguments, tool->body[i]);

        if (value)
            json_object_set(body, tool->body[i], value);
    }
    if (tool->answer == ANSWER_RUN)
        add_command(body, arguments);
    if (tool->body == create_body && !json_object_get(body, "idle_s"))
        json_object_set_new(body, "idle_s", json_integer(IDLE_DEFAULT_S));
    if (tool->body == create_body && *lease)
        json_object_set_new(body, "lease", json_string(lease));
    auto_free char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (text)
        buf_add_text(&request->body, text);
}

static bool add_content(const json_t *arguments, struct mcp_request *request, struct buf *fault) {
    const json_t *text = json_object_get(arguments, "text");
    const json_t *base64 = json_object_get(arguments, "base64");

    if (!text == !base64) {
        buf_add_text(fault, "give either text or base64");
        return false;
    }
    if (text)
        buf_add(&request->body, json_string_value(text), json_string_length(text));
    else if (base64_decode(json_string_value(base64), json_string_length(base64), &request->body) <
             0)
        buf_add_text(fault, "base64 is malformed");
    return !fault->length;
}

static void add_queries(const json_t *arguments, struct mcp_request *request) {
    static const char *const names[] = { "from", "to", "mode" };
    static const char *const flags[] = { "recursive" };

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        const char *value = json_string_value(json_object_get(arguments, names[i]));

        if (value)
            add_query(&request->query, names[i], value);
    }
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++)
        if (json_is_true(json_object_get(arguments, flags[i])))
            add_query(&request->query, flags[i], "1");
}

bool mcp_tool_request(const struct mcp_tool *tool, const json_t *arguments, const char *lease,
    struct mcp_request *ret, struct buf *fault) {
    const json_t *schema = json_object_get(description_of(tool), "inputSchema");
    const char *sandbox = json_string_value(json_object_get(arguments, "sandbox"));
    const char *path = json_string_value(json_object_get(arguments, "path"));

    *ret = (struct mcp_request){ .method = tool->method };
    if (!arguments_fit(schema, arguments, fault))
        return false;
    buf_add_text(&ret->path, tool->whole ? tool->whole : "/v1/sandboxes/");
    if (!tool->whole) {
        add_encoded(&ret->path, sandbox, false);
        buf_add_text(&ret->path, tool->path);
    }
    if (path && (path[0] != '/' || !path[1])) {
        buf_add_text(fault, "path must be absolute, and name a file");
        /* The root is a directory that can be listed. */
        if (strcmp(path, "/") != 0 || strcmp(tool->name, "list_files") != 0)
            return false;
        buf_done(fault);
        path = "/.";
    }
    if (path)
        add_encoded(&ret->path, path, true);
    if (tool->query)
        buf_add_text(&ret->query, tool->query);
    add_queries(arguments, ret);
    if (!strcmp(tool->name, "diff") && json_is_true(json_object_get(arguments, "text")))
        add_query(&ret->query, "text", "1");
    if (tool->body)
        add_body(tool, arguments, lease, ret);
    else if (!strcmp(tool->method, "PUT") && !add_content(arguments, ret, fault))
        return false;
    if (!buf_failed(&ret->path) && !buf_failed(&ret->query) && !buf_failed(&ret->body))
        return true;
    buf_add_text(fault, "the server is out of memory");
    return false;
}

void mcp_request_done(struct mcp_request *request) {
    buf_done(&request->path);
    buf_done(&request->query);
    buf_done(&request->body);
}

/* ---- results ---- */

static json_t *result_of(const char *text, json_t *take_structured, bool is_error) {
    json_t *result = json_pack(
        "{s:[{s:s, s:s}], s:b}", "content", "type", "text", "text", text, "isError", (int)is_error);

    if (take_structured)
        json_object_set_new(result, "structuredContent", take_structured);
    return result;
}

json_t *mcp_tool_fault(const char *text) {
    return result_of(text, NULL, true);
}

/* A model reads the beginning and the end of a long output. */
static void cut_output(json_t *result, const char *name, const char *flag, size_t limit) {
    const json_t *whole = json_object_get(result, name);
    const char *text = json_string_value(whole);
    size_t length = json_string_length(whole), head = limit / 2, tail = limit - head;
    auto_buf struct buf cut = BUF_INIT;

    if (length <= limit)
        return;
    /* Not within a character. */
    while (head && ((unsigned char)text[head] & 0xc0) == 0x80)
        head--;
    while (tail && ((unsigned char)text[length - tail] & 0xc0) == 0x80)
        tail--;
    buf_add(&cut, text, head);
    buf_printf(&cut, "\n[%zu bytes are left out]\n", length - head - tail);
    buf_add(&cut, text + length - tail, tail);
    if (buf_failed(&cut))
        return;
    json_object_set_new(result, name, json_stringn(cut.data, cut.length));
    json_object_set_new(result, flag, json_true());
}

static void add_output(struct buf *to, const json_t *result, const char *name, const char *title) {
    const json_t *text = json_object_get(result, name);

    if (json_string_length(text)) {
        if (to->length && to->data[to->length - 1] != '\n')
            buf_add_text(to, "\n");
        buf_add_text(to, title);
        buf_add(to, json_string_value(text), json_string_length(text));
    }
}

/* What a model reads of a run: the output, and how it ended if that was not well. */
static json_t *run_result(const json_t *arguments, json_t *take_result) {
    const json_t *limit = json_object_get(arguments, "output_limit");
    size_t most = limit ? (size_t)MAX(json_integer_value(limit), 0) : OUTPUT_DEFAULT;
    const char *outcome = json_string_value(json_object_get(take_result, "outcome"));
    const json_t *code = json_object_get(take_result, "exit_code");
    auto_buf struct buf text = BUF_INIT, clean = BUF_INIT;
    bool exited = outcome && !strcmp(outcome, "exit");

    cut_output(take_result, "stdout", "stdout_truncated", most);
    cut_output(take_result, "stderr", "stderr_truncated", most);
    json_object_del(take_result, "stdout_base64");
    json_object_del(take_result, "stderr_base64");
    add_output(&text, take_result, "stdout", "");
    add_output(&text, take_result, "stderr", "[standard error]\n");
    if (text.length && text.data[text.length - 1] != '\n' && (!exited || json_integer_value(code)))
        buf_add_text(&text, "\n");
    if (!exited)
        buf_printf(&text, "[ended by: %s]\n", outcome ? outcome : "unknown");
    else if (json_integer_value(code))
        buf_printf(&text, "[exit code %d]\n", (int)json_integer_value(code));
    if (!text.length)
        buf_add_text(&text, "[no output]\n");
    utf8_replace(&clean, text.data, text.length);
    return result_of(clean.data ? clean.data : "", take_result, false);
}

static json_t *file_result(const json_t *arguments, const struct buf *body) {
    size_t offset = (size_t)json_integer_value(json_object_get(arguments, "offset"));
    const json_t *limit = json_object_get(arguments, "limit");
    size_t from = MIN(offset, body->length);
    size_t n = MIN(limit ? (size_t)json_integer_value(limit) : READ_DEFAULT, body->length - from);
    const char *data = body->data ? body->data + from : "";
    json_t *found = json_pack("{s:O, s:I, s:I}", "path", json_object_get(arguments, "path"), "size",
        (json_int_t)body->length, "offset", (json_int_t)from);
    auto_buf struct buf encoded = BUF_INIT;
    bool is_text = utf8_valid(data, n) && !memchr(data, 0, n);

    /* A character that the limit cuts belongs to the next piece. */
    for (size_t less = 1; !is_text && from + n < body->length && less < 4 && less < n; less++)
        if (utf8_valid(data, n - less) && !memchr(data, 0, n - less)) {
            n -= less;
            is_text = true;
        }
    if (is_text)
        buf_add(&encoded, data, n);
    else
        base64_encode(&encoded, data, n);
    json_object_set_new(found, is_text ? "text" : "base64",
        json_stringn(encoded.data ? encoded.data : "", encoded.length));
    if (from + n < body->length)
        json_object_set_new(found, "next_offset", json_integer((json_int_t)(from + n)));
    return result_of(encoded.data ? encoded.data : "", found, false);
}

static json_t *problem_result(int status, const struct buf *body) {
    json_t *problem = json_loadb(body->data ? body->data : "", body->length, 0, NULL);
    const char *code = json_string_value(json_object_get(problem, "code"));
    const char *detail = json_string_value(json_object_get(problem, "detail"));
    auto_buf struct buf text = BUF_INIT;

    if (detail)
        buf_printf(&text, "%s: %s", code ? code : "error", detail);
    else
        buf_printf(&text, "rollbox could not do this (status %d)", status);
    json_t *result = mcp_tool_fault(text.data ? text.data : "");
    if (problem)
        json_object_set_new(result, "_meta", json_pack("{s:o}", "rollbox/problem", problem));
    return result;
}

json_t *mcp_tool_result(const struct mcp_tool *tool, const json_t *arguments, int status,
    const char *type, const struct buf *body) {
    if (!status)
        return mcp_tool_fault("the answer broke off, or was too large");
    if (status >= 400)
        return problem_result(status, body);
    if (tool->answer == ANSWER_FILE && strcmp(type, "application/json") != 0)
        return file_result(arguments, body);
    json_t *answer = body->length ? json_loadb(body->data, body->length, JSON_ALLOW_NUL, NULL)
                                  : json_pack("{s:b}", "done", 1);
    if (tool->answer == ANSWER_RUN && json_is_object(answer))
        return run_result(arguments, answer);
    if (!json_is_object(answer))
        answer = json_pack("{s:o}", "value", answer ? answer : json_null());
    auto_free char *text = json_dumps(answer, JSON_COMPACT);
    return result_of(text ? text : "", answer, false);
}
