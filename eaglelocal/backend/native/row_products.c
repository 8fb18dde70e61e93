/* Products of rows with repacked Q4_K weights and with Q6_K weights, in place of llama.cpp's.
 *
 * llama.cpp multiplies up to three rows of Q4_K (seven of Q6_K) one by one, and more by another kernel, which rounds
 * differently: a draft that is verified in so many rows would be judged by other logits than the text is written with.
 * Here all rows are rounded as one alone (row_kernel.h), and what is unpacked of the weights serves up to eight of them:
 * further rows of a decode cost less, and prompts are read faster. */
#include "row_products.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { Q4_K = 12, Q6_K = 14, F32 = 0 }; /* ggml_type */
enum { MIN_ROWS = 2 };                  /* one alone is left to llama.cpp */
enum { GROUP = 8 };                     /* columns that are interleaved, of Q4_K */
enum { BLOCK = 256 };                   /* elements of a column or row that share a scale */
enum { TILE_BYTES = 1 << 16 };          /* of weights, in the cache of a core while all rows are multiplied with them */
enum { SPINS = 4096 };                  /* looks at what other threads do before the system may run them */

struct q4_group { /* block_q4_Kx8 of llama.cpp: a block of each of eight columns */
    uint16_t d[8], dmin[8];
    uint8_t scales[96], qs[1024];
};

struct q6_block { /* block_q6_K */
    uint8_t ql[128], qh[64];
    int8_t scales[16];
    uint16_t d;
};

struct q8_block { /* block_q8_K: a block of a quantized row, and the sums of each 16 elements */
    float d;
    int8_t qs[256];
    int16_t sums[16];
};

/* Multiplies rows, at most kernel.at_once, with a group of columns of Q4_K or with one of Q6_K. */
typedef void multiply(int num_rows, int64_t blocks, const void *weights, const char *rows, size_t row_bytes, float *out,
                      size_t out_bytes);
typedef void quantize(const float *row, void *out, int64_t n);

struct product {
    struct tensor *node;
    int32_t op_params[16]; /* the node's own */
    char *rows;            /* its quantized rows */
    bool has_rows;         /* the product before it has quantized them */
    int32_t tile, num_tiles; /* columns of the result, and how many such tiles */
    _Atomic int32_t next_row, rows_done, next_tile; /* what no thread has taken, and what all have done */
};

static struct {
    multiply *q4, *q6;
    int32_t at_once;
    quantize *quantize;
    int32_t op;
} kernel;

#if defined(__x86_64__)
#define ALWAYS inline __attribute__((always_inline))
#define NAME(x) x##_vnni
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")))
#define AT_ONCE 8
#define HAS_DOTS 1
#include "row_kernel.h"
#undef NAME
#undef TARGET
#undef AT_ONCE
#undef HAS_DOTS
#define NAME(x) x##_avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define AT_ONCE 4
#define HAS_DOTS 0
#include "row_kernel.h"
#endif

static size_t count_bytes(const struct tensor *node) {
    return (size_t)node->src[0]->ne[0] / BLOCK * sizeof(struct q8_block);
}

/* Quantizes rows until all are: threads take one at a time, so that none waits for a thread that does not run. */
static void quantize_rows(struct product *job) {
    const struct tensor *input = job->node->src[1];
    const int32_t rows = (int32_t)input->ne[1];
    for (int32_t row; (row = atomic_fetch_add(&job->next_row, 1)) < rows;) {
        kernel.quantize((const float *)((char *)input->data + row * input->nb[1]), job->rows + row * count_bytes(job->node),
                        input->ne[0]);
        atomic_fetch_add(&job->rows_done, 1);
    }
    for (int32_t spins = 1; atomic_load(&job->rows_done) < rows; spins++)
        if (spins % SPINS == 0)
            sched_yield();
}

/* Multiplies all rows with the columns of a tile. */
static void multiply_tile(const struct product *job, int64_t first, int64_t columns) {
    const struct tensor *node = job->node, *weights = node->src[0];
    const bool is_grouped = weights->type == Q4_K;
    const int64_t blocks = weights->ne[0] / BLOCK, rows = node->src[1]->ne[1], step = is_grouped ? GROUP : 1;
    for (int64_t row = 0; row < rows; row += kernel.at_once) {
        const int num_rows = (int)(rows - row < kernel.at_once ? rows - row : kernel.at_once);
        const char *quantized = job->rows + row * count_bytes(node);
        for (int64_t column = first; column < first + columns; column += step)
            (is_grouped ? kernel.q4 : kernel.q6)(num_rows, blocks, (const char *)weights->data + column * weights->nb[1],
                                                 quantized, count_bytes(node),
                                                 (float *)((char *)node->data + row * node->nb[1]) + column, node->nb[1]);
    }
}

static void run(struct tensor *node, int ith, int nth, void *data) {
    (void)ith, (void)nth;
    struct product *job = data;
    if (!job->has_rows)
        quantize_rows(job);
    const int64_t columns = node->src[0]->ne[1];
    for (int32_t tile; (tile = atomic_fetch_add(&job->next_tile, 1)) < job->num_tiles;) {
        const int64_t first = (int64_t)tile * job->tile, left = columns - first;
        multiply_tile(job, first, left < job->tile ? left : job->tile);
    }
}

static bool is_handled(const struct tensor *node) {
    if (node->op != kernel.op || !kernel.q4)
        return false;
    const struct tensor *weights = node->src[0], *input = node->src[1];
    const bool is_grouped = weights->type == Q4_K && weights->extra && weights->ne[1] % GROUP == 0;
    return (is_grouped || (weights->type == Q6_K && !weights->extra)) && weights->ne[2] == 1 && weights->ne[3] == 1 &&
           weights->ne[0] % BLOCK == 0 && input->type == F32 && input->nb[0] == 4 && input->ne[1] >= MIN_ROWS &&
           input->ne[1] < INT32_MAX && input->ne[2] == 1 && input->ne[3] == 1 && node->type == F32 && node->nb[0] == 4;
}

/* Makes room for the jobs and for the rows of any one of them; false where the system has none. */
static bool reserve(struct products *p, size_t num_jobs, size_t num_bytes) {
    if (num_jobs > p->num_jobs) {
        free(p->jobs);
        p->jobs = malloc(num_jobs * sizeof *p->jobs);
        p->num_jobs = p->jobs ? num_jobs : 0;
    }
    if (num_bytes > p->num_bytes) {
        free(p->rows);
        p->rows = malloc(num_bytes);
        p->num_bytes = p->rows ? num_bytes : 0;
    }
    return p->num_jobs >= num_jobs && p->num_bytes >= num_bytes;
}

static void start(struct product *job, struct tensor *node, char *rows) {
    const struct tensor *weights = node->src[0];
    const int64_t groups = TILE_BYTES / (int64_t)weights->nb[1] / GROUP;
    job->node = node;
    job->rows = rows;
    job->has_rows = false;
    job->tile = (int32_t)(groups ? groups : 1) * GROUP;
    job->num_tiles = (int32_t)((weights->ne[1] + job->tile - 1) / job->tile);
    atomic_init(&job->next_row, 0);
    atomic_init(&job->rows_done, 0);
    atomic_init(&job->next_tile, 0);
    memcpy(job->op_params, node->op_params, sizeof job->op_params);
}

int32_t products_start(struct products *p, void *graph, const struct graph_functions *ggml) {
    const int32_t nodes = ggml->num_nodes(graph);
    size_t num_jobs = 0, num_bytes = 0;
    for (int32_t i = 0; i < nodes; i++) {
        const struct tensor *node = ggml->node(graph, i);
        if (!is_handled(node))
            continue;
        const size_t needed = count_bytes(node) * (size_t)node->src[1]->ne[1];
        num_bytes = needed > num_bytes ? needed : num_bytes;
        num_jobs++;
    }
    if (!num_jobs || !reserve(p, num_jobs, num_bytes))
        return 0;
    struct product *job = p->jobs;
    const struct tensor *quantized = NULL; /* the input whose rows are there; while it is used, nothing overwrites it */
    for (int32_t i = 0; i < nodes; i++) {
        struct tensor *node = ggml->node(graph, i);
        if (quantized && node->data == quantized->data)
            quantized = NULL;
        if (!is_handled(node))
            continue;
        start(job, node, p->rows);
        job->has_rows = node->src[1] == quantized;
        quantized = node->src[1];
        const struct custom custom = {run, ALL_THREADS, job++};
        memcpy(node->op_params, &custom, sizeof custom);
        node->op = ggml->custom_op;
    }
    return (int32_t)num_jobs;
}

void products_finish(struct products *p, int32_t num_jobs) {
    for (int32_t i = 0; i < num_jobs; i++) {
        struct product *job = p->jobs + i;
        job->node->op = kernel.op;
        memcpy(job->node->op_params, job->op_params, sizeof job->op_params);
    }
}

void products_free(struct products *p) {
    free(p->jobs);
    free(p->rows);
}

#if defined(__x86_64__)
typedef void multiply_row(int n, float *out, size_t stride, const void *weights, const void *row, int rows, int columns);
typedef void dot(int n, float *out, size_t, const void *weights, size_t, const void *row, size_t, int rows);

/* True if both kernels give what llama.cpp's give for one row, to the last bit, with arbitrary weights. */
static bool is_same(multiply_row *multiply_row, dot *dot) {
    enum { BLOCKS = 3 };
    struct q4_group q4[BLOCKS];
    struct q6_block q6[BLOCKS];
    struct q8_block row[BLOCKS];
    float elements[BLOCKS * BLOCK], theirs[GROUP + 1], ours[GROUP + 1];
    uint32_t random = 1;
    for (size_t i = 0; i < sizeof q4; i++)
        ((uint8_t *)q4)[i] = (uint8_t)((random = random * 1664525 + 1013904223) >> 24);
    for (size_t i = 0; i < sizeof q6; i++)
        ((uint8_t *)q6)[i] = (uint8_t)((random = random * 1664525 + 1013904223) >> 24);
    for (int b = 0; b < BLOCKS; b++) { /* halves from 0.03 to 2 */
        q6[b].d = (uint16_t)(0x2800 + (random = random * 1664525 + 1013904223) % 0x1800);
        for (int c = 0; c < GROUP; c++) {
            q4[b].d[c] = (uint16_t)(0x2800 + (random = random * 1664525 + 1013904223) % 0x1800);
            q4[b].dmin[c] = (uint16_t)(0x2800 + (random = random * 1664525 + 1013904223) % 0x1800);
        }
    }
    for (int i = 0; i < BLOCKS * BLOCK; i++)
        elements[i] = (float)(int32_t)(random = random * 1664525 + 1013904223) * 1e-9f;
    kernel.quantize(elements, row, BLOCKS * BLOCK);
    multiply_row(BLOCKS * BLOCK, theirs, GROUP, q4, row, 1, GROUP);
    dot(BLOCKS * BLOCK, theirs + GROUP, 0, q6, 0, row, 0, 1);
    kernel.q4(1, BLOCKS, q4, (char *)row, sizeof row, ours, sizeof ours);
    kernel.q6(1, BLOCKS, q6, (char *)row, sizeof row, ours + GROUP, sizeof ours);
    return memcmp(ours, theirs, sizeof ours) == 0;
}
#endif

/* Sets llama.cpp's kernels for one row, of Q4_K in groups of eight and of Q6_K, and how it quantizes one; NULL leaves all
 * products to llama.cpp. False where ours do not give what these give, or this processor has none. */
bool products_install(void *multiply_row_q4, void *dot_q6, void *quantize_row, int32_t op) {
    kernel.q4 = kernel.q6 = NULL;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!quantize_row || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return false;
    const bool has_dots = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    kernel.q4 = has_dots ? rows_q4_vnni : rows_q4_avx2;
    kernel.q6 = has_dots ? rows_q6_vnni : rows_q6_avx2;
    kernel.at_once = has_dots ? 8 : 4;
    kernel.quantize = (quantize *)quantize_row;
    kernel.op = op;
    if (is_same((multiply_row *)multiply_row_q4, (dot *)dot_q6))
        return true;
    kernel.q4 = kernel.q6 = NULL;
#else
    (void)multiply_row_q4, (void)dot_q6, (void)quantize_row, (void)op;
#endif
    return false;
}
