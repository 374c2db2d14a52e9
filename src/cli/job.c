/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"
#include "cli/job.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/utf8.h"
#include "cli/options.h"

#define PARSE_FLAGS (JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL)

/* The name of the file that `code` becomes, in the job's working directory, and the command that
 * runs it. */
static const struct language {
    const char *name;
    const char *file;
    const char *argv[4];
} languages[] = {
    { "python", "main.py", { "python3", "main.py" } },
    { "bash", "main.sh", { "bash", "main.sh" } },
    { "sh", "main.sh", { "sh", "main.sh" } },
    { "node", "main.js", { "node", "main.js" } },
    { "javascript", "main.js", { "node", "main.js" } },
    { "perl", "main.pl", { "perl", "main.pl" } },
    { "ruby", "main.rb", { "ruby", "main.rb" } },
    { "c", "main.c", { "sh", "-c", "cc -O2 -o main main.c -lm && exec ./main" } },
    { "cpp", "main.cpp", { "sh", "-c", "c++ -O2 -o main main.cpp && exec ./main" } },
};

static const char *const fields[] = { "id", "argv", "code", "language", "stdin", "files", "cwd",
    "env", "timeout_s", "policy" };

/* Every complaint about a line says which line. */
__attribute__((format(printf, 3, 4))) static int refuse_job(
    const struct job *job, struct rollbox_error *error, const char *format, ...) {
    char text[800];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
        "job on line %llu: %s", (unsigned long long)job->line, text);
}

static bool is_text(const json_t *value) {
    return json_is_string(value) && strlen(json_string_value(value)) == json_string_length(value);
}

static bool is_id(const json_t *id) {
    return is_text(id) || json_is_integer(id);
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_of_number(char c) {
    return c && strchr("+-.0123456789eE", c);
}

/* The end of the JSON string that begins at text[at], past its quote; `length` if it has none. */
static size_t string_end(const char *text, size_t length, size_t at) {
    for (at++; at < length && text[at] != '"'; at++)
        at += text[at] == '\\';
    return MIN(at + 1, length);
}

/* The last value of the key "id" in a text that begins as a JSON object but is not one: the literal
 * of a string or number, else NULL. */
static const char *find_id(const char *text, size_t length, size_t *ret_length) {
    const char *found = NULL;
    bool is_key = false;
    int depth = 0;

    for (size_t at = 0; at < length;) {
        char c = text[at];
        size_t end = c == '"' ? string_end(text, length, at) : at + 1;

        if (depth == 1 && is_key && end - at == 4 && !memcmp(text + at, "\"id\"", 4)) {
            while (end < length && is_space(text[end]))
                end++;
            if (end < length && text[end] == ':')
                end++;
            while (end < length && is_space(text[end]))
                end++;
            size_t after = end;
            if (end < length && text[end] == '"')
                after = string_end(text, length, end);
            else
                while (after < length && is_of_number(text[after]))
                    after++;
            if (after > end) {
                found = text + end;
                *ret_length = after - end;
            }
            end = after;
        }
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        if (!is_space(c))
            is_key = c == '{' || c == ',';
        at = end;
    }
    return found;
}

/* A string's literal with U+FFFD for characters that JSON must not have: surrogates without their
 * other half, invalid UTF-8, control characters. */
static void mend_string(struct buf *to, const char *literal, size_t length) {
    for (size_t at = 0; at < length; at++) {
        unsigned code = 0, low = 0;
        bool is_escape = literal[at] == '\\' && at + 1 < length;

        if (is_escape && literal[at + 1] == 'u' && at + 6 <= length &&
            sscanf(literal + at + 2, "%4x", &code) == 1 && code >= 0xd800 && code < 0xe000) {
            if (code < 0xdc00 && at + 12 <= length && !memcmp(literal + at + 6, "\\u", 2) &&
                sscanf(literal + at + 8, "%4x", &low) == 1 && low >= 0xdc00 && low < 0xe000) {
                buf_add(to, literal + at, 12);
                at += 11;
            } else {
                buf_add_text(to, "\\ufffd");
                at += 5;
            }
        } else if (is_escape) {
            buf_add(to, literal + at++, 2);
        } else {
            buf_add(to, (unsigned char)literal[at] < 0x20 ? "?" : literal + at, 1);
        }
    }
}

/* The id of a line that is not a job, as far as it can be read, so that a reader of the rows can
 * find the job. A line that cannot be parsed at all (a lone surrogate in a model's text, a number
 * that is too large, a key twice, a truncated end) still has its id somewhere. */
static char *broken_id(const char *text, size_t length) {
    auto_buf struct buf mended = BUF_INIT, valid = BUF_INIT;
    size_t n = 0;
    const char *literal = find_id(text, length, &n);

    if (!literal)
        return strdup("null");
    if (literal[0] == '"') {
        mend_string(&mended, literal, n);
    } else {
        /* A number that a row cannot have as one is its digits. */
        json_t *number = json_loadb(literal, n, JSON_DECODE_ANY, NULL);
        const char *quote = json_is_integer(number) ? "" : "\"";

        json_decref(number);
        buf_add_text(&mended, quote);
        buf_add(&mended, literal, n);
        buf_add_text(&mended, quote);
    }
    if (!buf_failed(&mended))
        utf8_replace(&valid, mended.data, mended.length);
    if (buf_failed(&mended) || buf_failed(&valid))
        return NULL;
    json_t *id = json_loadb(valid.data, valid.length, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    char *known = id ? json_dumps(id, JSON_ENCODE_ANY | JSON_COMPACT) : strdup("null");
    json_decref(id);
    return known;
}

/* The JSON text of the id, and whether a job may have it. The row repeats an invalid id unchanged.
 */
static char *id_of(const json_t *root, const char *text, size_t length, bool *ret_valid) {
    const json_t *id = json_object_get(root, "id");

    if (!root) {
        char *known = broken_id(text, length);

        *ret_valid = known && strcmp(known, "null") != 0;
        return known;
    }
    *ret_valid = is_id(id);
    return id ? json_dumps(id, JSON_ENCODE_ANY | JSON_COMPACT) : strdup("null");
}

char *job_id(const char *text, size_t length) {
    json_t *root = json_loadb(text, length, PARSE_FLAGS, NULL);
    bool is_valid;
    char *id = id_of(root, text, length, &is_valid);

    json_decref(root);
    if (id && !is_valid) {
        free(id);
        return strdup("null");
    }
    return id;
}

static int take_command(struct job *job, struct rollbox_error *error) {
    const json_t *argv = json_object_get(job->root, "argv"),
                 *code = json_object_get(job->root, "code"),
                 *language = json_object_get(job->root, "language");

    if (!argv == !code)
        return refuse_job(job, error,
            argv ? "has both \"argv\" and \"code\"; give one"
                 : "has neither \"argv\" nor \"code\"");
    if (argv) {
        size_t n = json_array_size(argv);

        if (language)
            return refuse_job(job, error, "\"language\" goes with \"code\", not with \"argv\"");
        if (!json_is_array(argv) || n == 0)
            return refuse_job(job, error, "\"argv\" must be a list of at least one string%s",
                json_is_string(argv) ? "; a program's text is \"code\", with its \"language\", and "
                                       "a shell's line is [\"sh\", \"-c\", ...]"
                                     : "");
        job->argv = calloc(n + 1, sizeof *job->argv);
        if (!job->argv)
            return error_set(
                error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
        for (size_t i = 0; i < n; i++) {
            const json_t *item = json_array_get(argv, i);

            if (!is_text(item))
                return refuse_job(job, error, "\"argv\"[%zu] must be a string without NUL", i);
            job->argv[i] = json_string_value(item);
        }
        return 0;
    }
    if (!json_is_string(code))
        return refuse_job(job, error, "\"code\" must be a string");
    if (!is_text(language))
        return refuse_job(job, error, "\"code\" needs a \"language\", such as \"python\"");
    for (size_t i = 0; i < ARRAY_SIZE(languages); i++)
        if (strcmp(languages[i].name, json_string_value(language)) == 0) {
            job->argv = calloc(ARRAY_SIZE(languages[i].argv), sizeof *job->argv);
            if (!job->argv)
                return error_set(
                    error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
            memcpy(job->argv, languages[i].argv, sizeof languages[i].argv);
            if (json_object_get(json_object_get(job->root, "files"), languages[i].file))
                return refuse_job(job, error, "\"files\" has a %s, which is where \"code\" goes",
                    languages[i].file);
            job->options.is_code = !strcmp(languages[i].name, "python");
            job->files[job->options.n_files++] = (struct rollbox_file){ .path = languages[i].file,
                .data = json_string_value(code),
                .length = json_string_length(code) };
            return 0;
        }
    const char *near = options_nearest(json_string_value(language), &languages[0].name,
        ARRAY_SIZE(languages), sizeof languages[0]);
    return refuse_job(job, error, "unknown language \"%s\"; %s%s", json_string_value(language),
        near ? "did you mean " : "use \"argv\" for it", text_or(near, ""));
}

static int take_files(struct job *job, struct rollbox_error *error) {
    const json_t *files = json_object_get(job->root, "files");
    const char *path;
    const json_t *text;

    if (files && !json_is_object(files))
        return refuse_job(job, error, "\"files\" must be an object {path: text}");
    /* One more for the code. */
    job->files = calloc(json_object_size(files) + 1, sizeof *job->files);
    if (!job->files)
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
    json_object_foreach((json_t *)files, path, text) {
        if (!path[0] || !json_is_string(text))
            return refuse_job(job, error,
                "\"files\": the content of \"%s\" must be a string, and its path not empty", path);
        job->files[job->options.n_files++] = (struct rollbox_file){
            .path = path, .data = json_string_value(text), .length = json_string_length(text)
        };
    }
    return 0;
}

static int take_env(struct job *job, struct rollbox_error *error) {
    const json_t *env = json_object_get(job->root, "env"), *value;
    const char *name;
    size_t n = 0;

    if (!env)
        return 0;
    if (!json_is_object(env))
        return refuse_job(job, error, "\"env\" must be an object {name: value}");
    job->env = calloc(json_object_size(env) + 1, sizeof *job->env);
    if (!job->env)
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
    json_object_foreach((json_t *)env, name, value) {
        if (!name[0] || strchr(name, '=') || !is_text(value))
            return refuse_job(job, error,
                "\"env\": \"%s\" must be a name without '=' and its value a string without NUL",
                name);
        if (asprintf(&job->env[n++], "%s=%s", name, json_string_value(value)) < 0) {
            job->env[n - 1] = NULL;
            return error_set(
                error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
        }
    }
    return 0;
}

static int take_rest(struct job *job, struct rollbox_error *error) {
    const json_t *input = json_object_get(job->root, "stdin"),
                 *cwd = json_object_get(job->root, "cwd");
    const json_t *timeout = json_object_get(job->root, "timeout_s"),
                 *policy = json_object_get(job->root, "policy");

    if (input && !json_is_string(input))
        return refuse_job(job, error, "\"stdin\" must be a string");
    if (cwd && !is_text(cwd))
        return refuse_job(job, error, "\"cwd\" must be a string");
    if (policy && !json_is_object(policy))
        return refuse_job(job, error, "\"policy\" must be an object");
    if (json_is_string(timeout) && !strcmp(json_string_value(timeout), "none")) {
        job->options.timeout_ms = ROLLBOX_NO_TIMEOUT;
    } else if (timeout) {
        double seconds = json_number_value(timeout);

        if (!json_is_number(timeout) || !isfinite(seconds) || seconds <= 0 || seconds > 1e9)
            return refuse_job(
                job, error, "\"timeout_s\" must be a number of seconds above 0, or \"none\"");
        /* Rounded up: a job never gets less time than requested. */
        job->options.timeout_ms = (int64_t)(seconds * 1000);
        job->options.timeout_ms += (double)job->options.timeout_ms < seconds * 1000;
    }
    job->options.stdin_data = json_string_value(input);
    job->options.stdin_length = json_string_length(input);
    job->options.cwd = json_string_value(cwd);
    job->policy = policy;
    return 0;
}

/* A line that is a single string: parsers that accept only objects and lists do not take it as
 * JSON. */
static bool is_string(const char *text, size_t length) {
    size_t at = strspn(text, " \t\r");

    return at < length && text[at] == '"';
}

static int parse_job(
    struct job *job, const char *text, size_t length, struct rollbox_error *error) {
    json_error_t problem;
    const char *key;
    json_t *value;
    void *next;

    job->root = json_loadb(text, length, PARSE_FLAGS, &problem);
    job->id = id_of(job->root, text, length, &job->has_id);
    if (!job->id)
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
    if (!json_is_object(job->root)) {
        if (!job->root && is_string(text, length))
            return refuse_job(job, error,
                "must be a JSON object, not a string: {\"id\": ..., \"code\": ..., \"language\": "
                "\"python\"} for a program's text, {\"id\": ..., \"argv\": [...]} for a command");
        return job->root ? refuse_job(job, error, "must be a JSON object")
                         : refuse_job(job, error, "not JSON: %s (column %d)", problem.text,
                               problem.column);
    }
    const json_t *id = json_object_get(job->root, "id");
    if (!job->has_id)
        return refuse_job(
            job, error, id ? "\"id\" must be a string or a whole number" : "has no \"id\"");
    json_object_foreach_safe(job->root, next, key, value) {
        size_t i = 0;

        while (i < ARRAY_SIZE(fields) && strcmp(fields[i], key) != 0)
            i++;
        if (i < ARRAY_SIZE(fields)) {
            /* null counts as a missing field, as in a policy: programs write jobs with all fields,
             * and null for those without a value. */
            if (json_is_null(value))
                json_object_del(job->root, key);
            continue;
        }
        const char *near = strcmp(key, "timeout") == 0
                               ? "timeout_s"
                               : options_nearest(key, fields, ARRAY_SIZE(fields), sizeof fields[0]);
        return refuse_job(job, error, "unknown field \"%s\"%s%s%s", key,
            text_if(near, "; did you mean \""), text_or(near, ""), text_if(near, "\"?"));
    }
    int r = take_files(job, error);
    if (r >= 0)
        r = take_command(job, error);
    if (r >= 0)
        r = take_env(job, error);
    return r < 0 ? r : take_rest(job, error);
}

struct job *job_new(
    const char *text, size_t length, uint64_t line, struct rollbox_error *ret_error) {
    struct job *job = calloc(1, sizeof *job);

    if (!job)
        return NULL;
    list_init(&job->of_batch);
    list_init(&job->of_order);
    job->line = line;
    job->options = (struct rollbox_run_options){
        .size = sizeof job->options, .timeout_ms = -1, .output_limit = -1, .userdata = job
    };
    *ret_error = (struct rollbox_error){ .code = ROLLBOX_OK };
    parse_job(job, text, length, ret_error);
    if (!job->id)
        return job_free(job);
    job->options.argv = job->argv;
    job->options.env = (const char *const *)job->env;
    job->options.files = job->files;
    return job;
}

struct job *job_free(struct job *job) {
    list_remove(&job->of_batch);
    list_remove(&job->of_order);
    rollbox_run_free(job->run);
    if (job->sandbox)
        (void)rollbox_sandbox_close(job->sandbox, NULL);
    json_decref(job->root);
    for (size_t i = 0; job->env && job->env[i]; i++)
        free(job->env[i]);
    free(job->env);
    free(job->argv);
    free(job->files);
    free(job->id);
    free(job->row);
    free(job);
    return NULL;
}

int job_set_row(struct job *job, const struct rollbox_result *result) {
    auto_free char *json = NULL;
    auto_buf struct buf row = BUF_INIT;

    if (rollbox_result_json(result, NULL, &json) < 0)
        return -ENOMEM;
    /* The id comes first, as it was written in the job: a number stays a number. */
    buf_printf(&row, "{\"id\":%s,", job->id);
    buf_add_text(&row, json + 1);
    buf_add(&row, "\n", 1);
    size_t length = row.length;
    job->row = buf_take(&row);
    job->row_length = length;
    return job->row ? 0 : -ENOMEM;
}

int job_set_error_row(struct job *job, const struct rollbox_error *error) {
    const struct rollbox_result result = {
        .outcome = ROLLBOX_OUTCOME_ERROR, .exit_code = -1, .isolation = "{}", .error = *error
    };

    return job_set_row(job, &result);
}

bool job_error_is_transient(const struct rollbox_error *error) {
    switch (error->code) {
    case ROLLBOX_ERR_SETUP_FAILED:
    case ROLLBOX_ERR_RESOURCE_EXHAUSTED:
    case ROLLBOX_ERR_HOST_OUT_OF_MEMORY:
    case ROLLBOX_ERR_ENGINE_START:
    case ROLLBOX_ERR_ENGINE_LOST:
        return true;
    case ROLLBOX_OK:
    case ROLLBOX_ERR_INVALID_ARGUMENT:
    case ROLLBOX_ERR_POLICY_INVALID:
    case ROLLBOX_ERR_PATH_NOT_FOUND:
    case ROLLBOX_ERR_PATH_DENIED:
    case ROLLBOX_ERR_FEATURE_MISSING:
    case ROLLBOX_ERR_COMMAND_NOT_FOUND:
    case ROLLBOX_ERR_NOT_EXECUTABLE:
    case ROLLBOX_ERR_BAD_CWD:
    case ROLLBOX_ERR_ENGINE_BUSY:
    case ROLLBOX_ERR_PROTOCOL:
    case ROLLBOX_ERR_NOT_FOUND:
    case ROLLBOX_ERR_CANCELLED:
    case ROLLBOX_ERR_IO:
    case ROLLBOX_ERR_INTERNAL:
    case ROLLBOX_ERR_CONFLICT:
    case ROLLBOX_ERR_DAMAGED:
    case ROLLBOX_ERR_ENGINE_UNTRUSTED:
    case ROLLBOX_ERR_GUEST_INTERFERED:
        break;
    }
    return false;
}
