/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Myers' greedy algorithm ("An O(ND) difference algorithm and its variations", 1986) over whole
 * lines.
 *
 * Common lines at the start and end are removed first. The search over the rest has a bound on the
 * number of edits, because its trace takes memory quadratic in that number. Texts that differ by
 * more are shown as the old middle deleted and the new one added, which is correct but longer than
 * necessary.
 */
#include "store/textdiff.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"

#define MAX_EDITS 1500
#define CONTEXT 3

struct line {
    const char *text;
    size_t length; /* with its newline */
    uint64_t hash;
};

struct lines {
    struct line *list;
    size_t n;
};

bool textdiff_is_text(const void *data, size_t length) {
    return (!length || !memchr(data, '\0', length)) && utf8_valid(data, length);
}

static int split_lines(const char *data, size_t length, struct lines *ret_lines) {
    struct lines lines = { 0 };

    for (size_t i = 0; i < length; i++)
        lines.n += data[i] == '\n' || i + 1 == length;
    lines.list = calloc(lines.n + 1, sizeof *lines.list);
    if (!lines.list)
        return -ENOMEM;
    size_t start = 0, n = 0;
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ (unsigned char)data[i]) * 1099511628211u;
        if (data[i] == '\n' || i + 1 == length) {
            lines.list[n++] = (struct line){ data + start, i + 1 - start, hash };
            start = i + 1;
            hash = 14695981039346656037u;
        }
    }
    *ret_lines = lines;
    return 0;
}

static bool is_same_line(const struct line *a, const struct line *b) {
    return a->hash == b->hash && a->length == b->length && memcmp(a->text, b->text, a->length) == 0;
}

/* Marks in `gone` and `added` the lines of a and b that are not in the longest common part found.
 * 0, -E2BIG for too many edits, -ENOMEM. */
static int search_edits(
    const struct line *a, int n, const struct line *b, int m, bool *gone, bool *added) {
    int most = MIN(n + m, MAX_EDITS), d = 0;
    bool found = false;
    auto_free int *v = calloc(2 * (size_t)most + 3, sizeof *v);
    auto_free int **trace = calloc((size_t)most + 1, sizeof *trace);
    int r = 0;

    if (!v || !trace)
        return -ENOMEM;
    int *middle = v + most + 1;
    middle[1] = 0;
    for (d = 0; d <= most && !found && r == 0; d++) {
        /* The furthest points before this round, of the diagonals that it looks at. */
        trace[d] = malloc((2 * (size_t)d + 3) * sizeof **trace);
        if (!trace[d]) {
            r = -ENOMEM;
            break;
        }
        memcpy(trace[d], middle - d - 1, (2 * (size_t)d + 3) * sizeof **trace);
        for (int k = -d; k <= d && !found; k += 2) {
            int x = k == -d || (k != d && middle[k - 1] < middle[k + 1]) ? middle[k + 1]
                                                                         : middle[k - 1] + 1;
            int y = x - k;

            while (x < n && y < m && is_same_line(&a[x], &b[y])) {
                x++;
                y++;
            }
            middle[k] = x;
            found = x >= n && y >= m;
        }
    }
    d--;
    if (r == 0 && !found)
        r = -E2BIG;
    for (int x = n, y = m; r == 0 && d > 0; d--) {
        const int *before = trace[d] + d + 1;
        int k = x - y;
        int from = k == -d || (k != d && before[k - 1] < before[k + 1]) ? k + 1 : k - 1;
        int px = before[from], py = px - from;

        /* One edit led from (px, py) to the beginning of a run of equal lines, at whose end we are.
         */
        if (from == k + 1)
            added[py] = true;
        else
            gone[px] = true;
        x = px;
        y = py;
    }
    for (int i = 0; i <= most; i++)
        free(trace[i]);
    return r;
}

static void add_line(struct buf *to, char mark, const struct line *line) {
    buf_add(to, &mark, 1);
    buf_add(to, line->text, line->length);
    if (line->text[line->length - 1] != '\n')
        buf_add_text(to, "\n\\ No newline at end of file\n");
}

static void add_range(struct buf *to, char mark, size_t start, size_t n) {
    /* An empty range is named by the line before it. */
    buf_printf(to, n == 1 ? "%c%zu" : "%c%zu,%zu", mark, start + (n > 0), n);
}

/* Builds the hunks from the marks: i and j advance through both texts together, and common lines
 * are reached at the same time. */
static void write_hunks(const struct lines *a, const bool *gone, const struct lines *b,
    const bool *added, struct buf *to) {
    size_t i = 0, j = 0;

    while (i < a->n || j < b->n) {
        while (i < a->n && j < b->n && !gone[i] && !added[j]) {
            i++;
            j++;
        }
        if (i >= a->n && j >= b->n)
            return;
        size_t lead = MIN(MIN(i, j), (size_t)CONTEXT), start_a = i - lead, start_b = j - lead,
               end_a = i, end_b = j, quiet = 0;
        /* As far as changes are at most twice the context apart. */
        for (size_t x = i, y = j; x < a->n || y < b->n;) {
            if (x < a->n && gone[x]) {
                x++;
                quiet = 0;
            } else if (y < b->n && added[y]) {
                y++;
                quiet = 0;
            } else {
                if (++quiet > 2 * CONTEXT)
                    break;
                x++;
                y++;
            }
            if (!quiet) {
                end_a = x;
                end_b = y;
            }
        }
        size_t tail = MIN(MIN(a->n - end_a, b->n - end_b), (size_t)CONTEXT);
        buf_add_text(to, "@@ ");
        add_range(to, '-', start_a, end_a + tail - start_a);
        buf_add_text(to, " ");
        add_range(to, '+', start_b, end_b + tail - start_b);
        buf_add_text(to, " @@\n");
        for (i = start_a, j = start_b; i < end_a + tail || j < end_b + tail;) {
            if (i < a->n && gone[i]) {
                add_line(to, '-', &a->list[i++]);
            } else if (j < b->n && added[j]) {
                add_line(to, '+', &b->list[j++]);
            } else {
                add_line(to, ' ', &a->list[i++]);
                j++;
            }
        }
    }
}

int textdiff(const char *old_name, const void *old_data, size_t old_length, const char *new_name,
    const void *new_data, size_t new_length, struct buf *to) {
    struct lines a = { 0 }, b = { 0 };
    auto_free bool *gone = NULL;
    auto_free bool *added = NULL;
    int r = split_lines(old_data, old_length, &a);

    if (r == 0)
        r = split_lines(new_data, new_length, &b);
    gone = calloc(a.n + 1, sizeof *gone);
    added = calloc(b.n + 1, sizeof *added);
    if (r == 0 && (!gone || !added))
        r = -ENOMEM;
    if (r == 0) {
        size_t head = 0, tail = 0;

        while (head < a.n && head < b.n && is_same_line(&a.list[head], &b.list[head]))
            head++;
        while (tail < a.n - head && tail < b.n - head &&
               is_same_line(&a.list[a.n - 1 - tail], &b.list[b.n - 1 - tail]))
            tail++;
        size_t n = a.n - head - tail, m = b.n - head - tail;
        if (n || m) {
            r = n && m ? search_edits(a.list + head, (int)n, b.list + head, (int)m, gone + head,
                             added + head)
                       : -E2BIG;
            if (r == -E2BIG) {
                memset(gone + head, true, n);
                memset(added + head, true, m);
                r = 0;
            }
            if (r == 0) {
                buf_printf(to, "--- %s\n+++ %s\n", old_name, new_name);
                write_hunks(&a, gone, &b, added, to);
                r = buf_failed(to) ? -ENOMEM : 0;
            }
        }
    }
    free(a.list);
    free(b.list);
    return r;
}
