/* SPDX-License-Identifier: Apache-2.0 */
/* The machine that an image is for: "linux/arm64", "linux/arm/v7". */
#ifndef ROLLBOX_STORE_IMAGE_PLATFORM_H
#define ROLLBOX_STORE_IMAGE_PLATFORM_H

#include <jansson.h>
#include <stdbool.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"

struct image_platform {
    char os[24], architecture[24];
    char variant[24]; /* "": any */
};

/* "amd64", "arm64": this machine in the words of images. */
const char *image_architecture(void);

/* This machine, with any variant. */
struct image_platform image_platform_own(void);

/* Reads OS/ARCHITECTURE[/VARIANT]; NULL is this machine. Errors: INVALID_ARGUMENT. */
int image_platform_parse(
    const char *text, struct image_platform *ret_platform, struct rollbox_error *error);

/* Whether `described` ({"os", "architecture", "variant"}) is for a platform. What it does not say
 * fits every platform. */
bool image_platform_fits(const struct image_platform *platform, const json_t *described);

/* Appends "linux/arm/v7". */
void image_platform_add(struct buf *to, const json_t *described);

/* The image of an index for a platform: the first that fits, but one without a variant if there is
 * one and none was asked for. NULL: there is none. */
json_t *image_platform_choose(const json_t *index, const struct image_platform *platform);

#endif
