/* SPDX-License-Identifier: Apache-2.0 */
/* The series of the metrics: a family's name, its labels, and a count or histogram. */
#ifndef ROLLBOX_SERVE_SERIES_H
#define ROLLBOX_SERVE_SERIES_H

#include <stdint.h>

#include "base/list.h"

#define SERIES_BOUNDS 18

enum series_family {
    SERIES_RUNS, /* first: the tenant; second: the outcome */
    SERIES_EXECS,
    SERIES_REFUSED,       /* first: the tenant; second: the code */
    SERIES_REQUESTS,      /* first: the method; second: the route; with a status */
    SERIES_START_SECONDS, /* these histograms: first: the tenant */
    SERIES_EXEC_SECONDS,
    SERIES_QUEUE_SECONDS,
    SERIES_REQUEST_SECONDS, /* first: the method; second: the route */
};
#define SERIES_FAMILIES (SERIES_REQUEST_SECONDS + 1)

struct series {
    struct list in_bucket, of_family;
    enum series_family family;
    char *first, *second; /* values of labels */
    int status;
    uint64_t n; /* of a histogram: all */
    double sum;
    uint64_t in_bound[SERIES_BOUNDS + 1]; /* not cumulative; the last is over all bounds */
};

/* Upper bounds in seconds. */
extern const double series_bounds[SERIES_BOUNDS];
/* struct series.of_family; not initialised before the first series. */
extern struct list series_all[SERIES_FAMILIES];

#endif
