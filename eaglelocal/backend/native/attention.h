/* Attention of few rows over many cells on a CPU: what attention.c (scheduling) and attention_kernel.h (arithmetic)
 * share. */
#ifndef ATTENTION_H
#define ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_WIDTH = 256 };  /* of a key or value, in elements */
enum { MAX_GROUP = 64 };   /* query heads that share a key head */
enum { MAX_QUERIES = 64 }; /* of a block */
enum { TILE = 32 };        /* cells that are converted to float at once */

enum type { F32 = 0, F16 = 1, Q4_0 = 2, Q8_0 = 8, BF16 = 30 }; /* ggml_type */

/* One call of attention: queries [streams][heads][rows][k_width] over keys and values [streams][kv_heads][cells]. */
struct attention {
    int32_t rows, heads, kv_heads, cells, streams, k_width, v_width;
    int32_t k_type, v_type;
    float scale, softcap;                           /* softcap 0: none */
    const char *q, *k, *v, *mask;                   /* mask: f16 [streams][heads][rows][cells], or NULL */
    size_t q_row, q_head, q_stream;                 /* strides in bytes */
    size_t k_cell, k_head, k_stream;
    size_t v_cell, v_head, v_stream;
    size_t mask_row, mask_head, mask_stream;
    int32_t mask_heads, mask_streams;               /* heads and streams repeat over these */
    const float *sinks;                             /* [heads] or NULL */
    float *out;                                     /* [streams][rows][heads][v_width] */
};

/* Rows whose queries for one key head are computed together: at most MAX_QUERIES queries. */
struct block {
    int32_t stream, kv_head, first_row, rows;
};

/* Softmax of one query so far: the largest score, the sum of exponentials relative to it; its weighted values stand
 * in the scratch. */
struct softmax {
    float largest, sum;
};

/* One thread's memory. */
struct scratch {
    float *keys, *values;       /* [TILE][k_width], [TILE][v_width] */
    float *scores;              /* [MAX_QUERIES][TILE] */
    float *weighted;            /* [MAX_QUERIES][v_width] */
    struct softmax *softmax;    /* [MAX_QUERIES] */
    float *total_weighted;      /* as weighted and softmax, of all spans so far */
    struct softmax *total;
    int32_t *active;            /* [MAX_QUERIES] those with an unmasked cell in this tile */
};

/* Run a block's queries, row by row and head by head, over cells [first, end); results stand in the scratch. */
typedef void span_kernel(const struct attention *, struct block, int32_t first, int32_t end, struct scratch *);

#endif
