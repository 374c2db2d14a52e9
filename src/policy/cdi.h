/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CDI files: how a vendor says what a container needs to use a device (Container Device Interface,
 * https://github.com/cncf-tags/container-device-interface). JSON or YAML.
 *
 * Read are device nodes, mounts and environment variables. Hooks are programs of the host, and
 * are never run. This part does no I/O.
 */
#ifndef ROLLBOX_POLICY_CDI_H
#define ROLLBOX_POLICY_CDI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define CDI_MAX_BYTES (4u << 20)
#define CDI_PROBLEM_MAX 200

/* Parses and checks a file. 0 and the specification, for json_decref(); or -EINVAL, with what is
 * wrong in problem[CDI_PROBLEM_MAX]; or -ENOMEM. */
int cdi_parse(const char *text, size_t length, bool is_yaml, json_t **ret_spec, char *problem);

/* The same of the output of `nvidia-container-cli list` (cdi_list.c), as a specification of
 * nvidia.com/gpu. */
int cdi_parse_list(const char *text, size_t length, json_t **ret_spec, char *problem);

/* Whether a value is an absolute path without "..", as a specification's must be. */
bool cdi_is_path(const json_t *value);

/* "vendor.com/class" and "name". */
bool cdi_is_kind(const char *text, size_t length);
bool cdi_is_name(const char *text, size_t length);

/* "vendor.com/class=name": the length of the part before the "="; 0: it is no such name. */
size_t cdi_kind_length(const char *name);

/* The device of that qualified name, borrowed; NULL: the specification has none. */
const json_t *cdi_device(const json_t *spec, const char *name);

#endif
