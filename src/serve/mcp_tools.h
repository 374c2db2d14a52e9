/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tools of the Model Context Protocol. A call of a tool is a request to /v1 and an answer: this
 * file turns arguments into requests, and answers into results. mcp_tools.json describes the tools.
 */
#ifndef ROLLBOX_SERVE_MCP_TOOLS_H
#define ROLLBOX_SERVE_MCP_TOOLS_H

#include <jansson.h>
#include <stdbool.h>

#include "base/buf.h"

struct mcp_tool;

struct mcp_request {
    const char *method;
    struct buf path, query, body;
};

/* The tools as tools/list has them: an array that stays. */
json_t *mcp_tools(void);
/* NULL: there is no such tool. */
const struct mcp_tool *mcp_tool_find(const char *name);
/* The request of a call. `lease`: of a new sandbox; "": none. False: the arguments are wrong, and
 * *fault says why. The caller frees the request in any case. */
bool mcp_tool_request(const struct mcp_tool *tool, const json_t *arguments, const char *lease,
    struct mcp_request *ret, struct buf *fault);
void mcp_request_done(struct mcp_request *request);
/* The result of tools/call. `status` 0: the answer broke off. */
json_t *mcp_tool_result(const struct mcp_tool *tool, const json_t *arguments, int status,
    const char *type, const struct buf *body);
/* A result that says why the call was not possible. */
json_t *mcp_tool_fault(const char *text);

#endif
