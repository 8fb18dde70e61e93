/* Products of a few rows with repacked Q4_K weights and with Q6_K weights, in place of llama.cpp's.
 *
 * llama.cpp multiplies up to three rows of Q4_K (seven of Q6_K) one by one, and more by another kernel, which rounds
 * differently: a draft that is verified in so many rows would be judged by other logits than the text is written with. Here each
 * row goes through llama.cpp's kernel for one row. The weights are read once for all rows: a tile of them stays in the
 * cache of a core while every row is multiplied with it. */
#include "row_products.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { Q4_K = 12, Q6_K = 14, F32 = 0 };         /* ggml_type */
enum { MIN_ROWS = 2, MAX_ROWS = 8 };            /* of more, llama.cpp's kernels are up to twice as fast */
enum { GROUP = 8 };                             /* rows of weights that are interleaved */
enum { BLOCK = 256, QUANTIZED_BLOCK = 292 };    /* elements of a block, and bytes of one in Q8_K */
enum { TILE_BYTES = 1 << 17 };

typedef void multiply(int n, float *out, size_t stride, const void *weights, const void *row, int rows, int columns);
typedef void dot(int n, float *out, size_t, const void *weights, size_t, const void *row, size_t, int rows);
typedef void quantize(const float *row, void *out, int64_t n);

struct product {
    struct tensor *node;
    int32_t op_params[16]; /* the node's own */
    struct products *products;
    size_t row_bytes; /* of a quantized row */
    int32_t tile, num_tiles; /* columns of the result, and how many such tiles */
    _Atomic int32_t next;    /* tile that no thread has taken */
};

static struct {
    multiply *multiply; /* of Q4_K in groups */
    dot *dot;           /* of a row of Q6_K */
    quantize *quantize;
    int32_t op;
} kernel;

/* Quantizes all rows into memory of this thread: waiting for shares of other threads would take as long where these do
 * not run. Ends the process where the system has no memory. */
static const char *quantize_rows(const struct product *job, const struct tensor *input, int ith) {
    struct products *p = job->products;
    const size_t num_bytes = job->row_bytes * (size_t)input->ne[1];
    if (p->num_bytes[ith] < num_bytes) {
        free(p->rows[ith]);
        p->rows[ith] = malloc(num_bytes);
        p->num_bytes[ith] = num_bytes;
        if (!p->rows[ith])
            abort();
    }
    for (int64_t r = 0; r < input->ne[1]; r++)
        kernel.quantize((const float *)((char *)input->data + r * input->nb[1]),
                        p->rows[ith] + r * job->row_bytes, input->ne[0]);
    return p->rows[ith];
}

static void run(struct tensor *node, int ith, int nth, void *data) {
    (void)nth;
    struct product *job = data;
    const struct tensor *weights = node->src[0], *input = node->src[1];
    const int64_t n = weights->ne[0], columns = weights->ne[1], rows = input->ne[1];
    const char *quantized = NULL; /* until a tile is taken */
    for (int32_t tile; (tile = atomic_fetch_add(&job->next, 1)) < job->num_tiles;) {
        quantized = quantized ? quantized : quantize_rows(job, input, ith);
        const int64_t first = (int64_t)tile * job->tile, left = columns - first;
        const char *part = (const char *)weights->data + first * weights->nb[1];
        const int width = (int)(left < job->tile ? left : job->tile);
        for (int64_t r = 0; r < rows; r++) {
            float *out = (float *)((char *)node->data + r * node->nb[1]) + first;
            const char *row = quantized + r * job->row_bytes;
            if (weights->type == Q4_K)
                kernel.multiply((int)n, out, (size_t)columns, part, row, 1, width);
            else
                for (int c = 0; c < width; c++)
                    kernel.dot((int)n, out + c, 0, part + c * weights->nb[1], 0, row, 0, 1);
        }
    }
}

static bool is_handled(const struct tensor *node) {
    if (node->op != kernel.op || !kernel.multiply)
        return false;
    const struct tensor *weights = node->src[0], *input = node->src[1];
    const bool is_grouped = weights->type == Q4_K && weights->extra && weights->ne[1] % GROUP == 0;
    return (is_grouped || (weights->type == Q6_K && !weights->extra)) && weights->ne[2] == 1 && weights->ne[3] == 1 &&
           weights->ne[0] % BLOCK == 0 && input->type == F32 && input->nb[0] == 4 &&
           input->ne[1] >= MIN_ROWS && input->ne[1] <= MAX_ROWS && input->ne[2] == 1 && input->ne[3] == 1 &&
           node->type == F32 && node->nb[0] == 4;
}

static size_t count_bytes(const struct tensor *node) {
    return (size_t)(node->src[0]->ne[0] / BLOCK * QUANTIZED_BLOCK);
}

/* Makes room for the jobs; false where the system has none. */
static bool reserve(struct products *p, size_t num_jobs) {
    if (num_jobs > p->num_jobs) {
        free(p->jobs);
        p->jobs = malloc(num_jobs * sizeof *p->jobs);
        p->num_jobs = p->jobs ? num_jobs : 0;
    }
    return p->num_jobs >= num_jobs;
}

static void start(struct product *job, struct tensor *node, struct products *p) {
    const struct tensor *weights = node->src[0];
    const int64_t groups = TILE_BYTES / (int64_t)weights->nb[1] / GROUP;
    job->node = node;
    job->products = p;
    job->row_bytes = count_bytes(node);
    job->tile = (int32_t)(groups ? groups : 1) * GROUP;
    job->num_tiles = (int32_t)((weights->ne[1] + job->tile - 1) / job->tile);
    atomic_init(&job->next, 0);
    memcpy(job->op_params, node->op_params, sizeof job->op_params);
}

int32_t products_start(struct products *p, void *graph, const struct graph_functions *ggml) {
    const int32_t nodes = ggml->num_nodes(graph);
    size_t num_jobs = 0;
    for (int32_t i = 0; i < nodes; i++)
        num_jobs += is_handled(ggml->node(graph, i));
    if (!num_jobs || !reserve(p, num_jobs))
        return 0;
    struct product *job = p->jobs;
    for (int32_t i = 0; i < nodes; i++) {
        struct tensor *node = ggml->node(graph, i);
        if (!is_handled(node))
            continue;
        start(job, node, p);
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
    for (int i = 0; i < PRODUCT_THREADS; i++)
        free(p->rows[i]);
}

/* Sets llama.cpp's kernels for one row: of Q4_K in groups of eight, of Q6_K; NULL leaves all products to llama.cpp.
 * False where this processor has other groups. */
bool products_install(void *multiply_row, void *dot_row, void *quantize_row, int32_t op) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2"))
        return false;
    kernel.multiply = (multiply *)multiply_row;
    kernel.dot = (dot *)dot_row;
    kernel.quantize = (quantize *)quantize_row;
    kernel.op = op;
    return true;
#else
    (void)multiply_row, (void)dot_row, (void)quantize_row, (void)op;
    return false;
#endif
}
