/* Shared by the C files: llama.cpp's structs and functions, our own structs, and finding the largest of many numbers.
 * backend/native_step.py mirrors the structs. */
#ifndef NATIVE_STEP_H
#define NATIVE_STEP_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* besides llama_decode's own codes */
enum { NO_LOGITS = 1001, NO_STATES = 1002, NO_TAPS = 1003, CANNOT_REMOVE = 1004, CLOSED = 1005 };
enum { UNKNOWN = -1, ALREADY_READ = -2, NONE_FITS = -3 }; /* instead of a token */
enum { ENCODE = 0, DECODE = 1 };                          /* llama_process_type */

struct embedding { /* llama_embd */
    const float *data;
    size_t n_rows, n_embd;
};

struct rows { /* llama_batch */
    int32_t n_tokens;
    const int32_t *token;
    const float *embd;
    const int32_t *pos, *n_seq_id;
    const int32_t **seq_id;
    int8_t *logits;
};

struct candidate { /* llama_token_data */
    int32_t token;
    float logit, p;
};

struct candidates { /* llama_token_data_array */
    struct candidate *data;
    size_t size;
    int64_t selected;
    bool sorted;
};

struct api { /* functions of llama.cpp; contexts, memories, batches and samplers are opaque */
    int32_t (*decode)(void *context, struct rows rows);
    int32_t (*process)(void *context, int type, void *batch);
    void (*synchronize)(void *context);
    float *(*logits_row)(void *context, int32_t row);
    float *(*layer_input)(void *context, uint32_t layer);
    float *(*nextn)(void *context);
    float *(*nextn_row)(void *context, int32_t row);
    float *(*normed)(void *context);
    void (*set_normed)(void *context, bool value);
    void (*clear)(void *batch);
    int32_t (*add_token)(void *batch, int32_t sequence, int32_t token);
    int32_t (*add_embedding)(void *batch, int32_t sequence, struct embedding embedding);
    bool (*set_embedding)(void *batch, int32_t row, struct embedding embedding);
    bool (*set_position)(void *batch, int32_t row, const int32_t *position);
    bool (*set_output)(void *batch, int32_t row, bool value);
    bool (*remove_cells)(void *memory, int32_t sequence, int32_t first, int32_t end);
    int32_t (*last_position)(void *memory, int32_t sequence);
    void (*apply)(void *sampler, struct candidates *candidates);
    void (*accept)(void *sampler, int32_t token);
    void (*set_nextn_layer)(void *context, int32_t number);
};

struct head;

struct target {
    const struct api *api;
    void *context;
    int32_t n_vocab, tap_width, n_taps, nextn_tap; /* nextn_tap: the layer whose rows are read as "nextn" states; or -1 */
    int32_t normed_tap; /* the layer whose rows are the states after the output norm; or -1 */
    int32_t has_normed; /* the last decode gave those: all of its rows are outputs, or llama.cpp would make them so */
    int32_t num_end_tokens;
    const int32_t *end_tokens;                  /* [num_end_tokens] that end an answer */
    const int32_t *taps;                        /* [n_taps] layers */
    const float **tapped;                       /* [n_taps] their rows of the last decode */
    const int32_t **sequences;                  /* [n_batch] scratch */
    int8_t *outputs;                            /* [n_batch] scratch */
    int32_t *row_sequences;                     /* [n_batch] first sequences of the rows of the last decode */
    int32_t *best_tokens; /* [n_batch] their most likely tokens, as far as found in advance; then ALREADY_READ */
    int8_t *is_greedy;    /* [sequences] whose best tokens are found in advance */
    int32_t num_rows;     /* of the last decode */
    float *block_maxima;                        /* [blocks of n_vocab] scratch */
    void *memory;
    struct head *head;                          /* encodes the decoded rows; or NULL */
    double submitted_at;                        /* when the last decode began */
    double native_s; /* seconds inside llama.cpp so far; those from a submission to its collection all count */
};

struct head {
    const struct api *api;
    struct target *target; /* whose rows it encodes */
    void *context, *memory, *features, *pairs;
    int32_t width, n_batch; /* n_batch: rows of one call */
    float tap_eps;      /* EAGLE-3.1 fc_norm: epsilon of the norm of each tapped row; negative: no norm */
    const float *output_gains; /* [width] EAGLE-3.1 norm_output: gains of the fed-back state's norm; NULL: no norm */
    float output_eps;
    float *row;     /* [row_size] scratch: the tapped states, and zeros up to what the graph reads */
    int32_t row_size;
    float *encoded; /* [n_batch of the target x width] states of the rows encoded last */
    float *states;  /* [n_batch x width] states after the last draft's last level */
    int32_t num_encoded; /* rows of the target's last decode, if all were encoded in the same call; else 0 */
    int32_t were_states_read;   /* states of that decode were read; Python sets it */
    int32_t has_encoder; /* false for an MTP layer: the tapped rows are the states */
    int32_t reads_cache; /* it reads the target's cache and has none: all its rows have the position after that cache */
    int32_t num_layers;  /* MTP layers of which each drafts one token; else 1 */
    int32_t selects_outputs; /* those layers return logits and states of output rows alone; else all or none are outputs */
    int32_t num_levels;  /* of the last draft */
    void *upper, *upper_memory;  /* the context of the upper layers of a head of several layers; NULL: it has one */
    int32_t num_ranked_tokens;   /* that the upper layers give logits of */
    const int32_t *draft_tokens; /* [num_ranked_tokens] the target's tokens that they stand for; NULL: the same numbers */
    const int32_t *counts;       /* [n_batch] ones */
    const int32_t **row_sequences; /* [n_batch] scratch */
    int8_t *row_outputs;           /* [n_batch] scratch */
    double native_s;
};

struct draw { /* settings and memory for drawing a request's tokens */
    void *sampler;
    int32_t rank;       /* number of most likely tokens that are candidates; 0: those that top_p or min_p leave */
    float top_p, min_p; /* 1: no top_p */
    struct candidate *candidates; /* [rank + 2 x tokens with changed logits]; with rank 0 [2 n_vocab] */
    float *masked_logits;         /* [n_vocab] scratch, for constrained answers */
};

/* Mark the begin or the end of a decode (weight_pages.c): weights move slowly beside decodes. */
void mark_decode(bool is_running);

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the largest of many numbers */

enum { BLOCK = 256, LANES = 16 };

typedef float four __attribute__((vector_size(16)));

/* Return the larger of each pair. With intrinsics, because without -ffast-math (logits may be infinite) compilers do
 * not find the one instruction for it, and ranking a large vocabulary is then much slower. */
static inline four larger(four a, four b) {
#if defined(__SSE2__)
    return _mm_max_ps(a, b);
#elif defined(__aarch64__)
    return vmaxnmq_f32(a, b); /* gives the number of a number and NaN; the other variants do so if `a` is NaN */
#else
    for (int j = 0; j < 4; j++) b[j] = a[j] > b[j] ? a[j] : b[j];
    return b;
#endif
}

static inline float largest(const float *x, int32_t n) {
    const four least = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    four lanes[LANES / 4], next; /* independent, so that the CPU overlaps them */
    for (int j = 0; j < LANES / 4; j++) lanes[j] = least;
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES / 4; j++) {
            memcpy(&next, x + i + 4 * j, sizeof next);
            lanes[j] = larger(next, lanes[j]);
        }
    float best = -INFINITY;
    for (int j = 0; j < LANES; j++) best = lanes[j / 4][j % 4] > best ? lanes[j / 4][j % 4] : best;
    for (; i < n; i++) best = x[i] > best ? x[i] : best;
    return best;
}

static inline int32_t block_size(int32_t block, int32_t n) {
    return n - block * BLOCK < BLOCK ? n - block * BLOCK : BLOCK;
}

/* Return the index of the first largest number, given the largest of each block. */
static inline int32_t first_largest(const float *x, int32_t n, const float *maxima) {
    int32_t best = 0;
    for (int32_t block = 1; block * BLOCK < n; block++)
        if (maxima[block] > maxima[best]) best = block;
    const int32_t end = best * BLOCK + block_size(best, n);
    for (int32_t i = best * BLOCK; i < end; i++)
        if (x[i] == maxima[best]) return i;
    return best * BLOCK; /* all are NaN */
}

static inline void find_block_maxima(const float *x, int32_t n, float *maxima) {
    for (int32_t block = 0; block * BLOCK < n; block++) maxima[block] = largest(x + block * BLOCK, block_size(block, n));
}

#endif
