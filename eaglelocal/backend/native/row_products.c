/* Products of rows with quantized weights, in place of llama.cpp's: of repacked Q4_K, and of Q4_1, Q5_K, Q6_K
 * and Q8_0.
 *
 * llama.cpp multiplies a few rows of the K types one by one, and more by another kernel, which rounds differently: a
 * draft that is verified in so many rows would be judged by other logits than the text is written with. Here all rows
 * are rounded as one alone (row_kernel.h), and what is unpacked of the weights serves up to eight of them: further rows
 * of a decode cost less, and prompts are mostly read faster. */
#include "row_products.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { Q4_1 = 3, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, F32 = 0 }; /* ggml_type */
enum { GROUP = 8 };            /* columns that are interleaved, of Q4_K */
enum { MOST_DRAFTED = 17 };    /* rows that verify the longest draft */
enum { SHORT_BLOCK = 32, AT_A_TIME = 16 }; /* elements of a block of Q4_1 and Q8_0; blocks that are converted at once */
enum { RAISED = 128 };         /* what is added to elements, so that they are positive */
enum { ALIGNMENT = 64 };       /* bytes, of quantized rows */
enum { TILE_BYTES = 1 << 16 }; /* of weights, in the cache of a core while all rows are multiplied with them */
enum { SPINS = 4096 };         /* looks at what other threads do before the system may run them */

struct q4_group { /* block_q4_Kx8 of llama.cpp: a block of each of eight columns */
    uint16_t d[8], dmin[8];
    uint8_t scales[96], qs[1024];
};

struct q5_block { /* block_q5_K */
    uint16_t d, dmin;
    uint8_t scales[12], qh[32], qs[128];
};

struct q6_block { /* block_q6_K */
    uint8_t ql[128], qh[64];
    int8_t scales[16];
    uint16_t d;
};

struct q4_1_block {
    uint16_t d, m;
    uint8_t qs[16];
};

struct q8_0_block {
    uint16_t d;
    int8_t qs[32];
};

struct q8_1_block { /* of rows; s: d times the sum of qs */
    uint16_t d, s;
    int8_t qs[32];
};

struct q8_block { /* block_q8_K, of rows, with the sums of each 16 elements */
    float d;
    int8_t qs[256];
    int16_t sums[16];
};

/* Rows of short blocks lie in tiles of kernel.at_once rows, block by block: of each row the elements, then of each the
 * scale, then of each the sum. */
enum { SHORT_BYTES = SHORT_BLOCK + 2 * sizeof(float) }; /* of a block of a row */

/* Multiplies rows, at most kernel.at_once, with a column of weights, or with a group of columns of Q4_K. */
typedef void multiply(int num_rows, int64_t blocks, const void *weights, const char *rows, size_t row_bytes, float *out,
                      size_t out_bytes);
typedef void quantize(const float *row, void *out, int64_t n);
typedef void multiply_row(int n, float *out, size_t stride, const void *weights, const void *row, int rows, int columns);
typedef void dot(int n, float *out, size_t, const void *weights, size_t, const void *row, size_t, int rows);

enum rows { Q8_K_ROWS, Q8_0_ROWS, Q8_1_ROWS, NUM_ROWS }; /* formats of rows in llama.cpp */
enum { NUM_FORMATS = 5 };

struct format { /* of weights */
    int32_t type, block, columns; /* elements of a block; columns that are multiplied at once */
    enum rows rows;               /* that llama.cpp multiplies with them */
    int32_t max_rows;             /* with more, llama.cpp's kernel is faster */
    multiply *multiply;           /* NULL: left to llama.cpp */
};

struct product {
    struct tensor *node;
    const struct format *format;
    int32_t op_params[16]; /* the node's own */
    char *rows;            /* its quantized rows */
    size_t row_bytes;      /* of each */
    bool has_rows;         /* the product before it has quantized them */
    int32_t tile, num_tiles; /* columns of the result, and how many such tiles */
    _Atomic int32_t next_row, rows_done, next_tile; /* what no thread has taken, and what all have done */
};

static struct {
    struct format formats[NUM_FORMATS];
    int32_t at_once, op;
    uint8_t raise;                /* added to elements of rows */
    quantize *quantize[NUM_ROWS]; /* llama.cpp's */
} kernel = {
    .op = -1,
    .formats = {{Q4_K, 256, GROUP, Q8_K_ROWS, INT32_MAX, NULL},
                {Q5_K, 256, 1, Q8_K_ROWS, MOST_DRAFTED, NULL},
                {Q6_K, 256, 1, Q8_K_ROWS, INT32_MAX, NULL},
                {Q8_0, SHORT_BLOCK, 1, Q8_0_ROWS, INT32_MAX, NULL},
                {Q4_1, SHORT_BLOCK, 1, Q8_1_ROWS, INT32_MAX, NULL}},
};

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

/* Returns the bytes of a quantized row of n elements. */
static size_t count_bytes(const struct format *f, int64_t n) {
    const size_t block_bytes = f->block == SHORT_BLOCK ? SHORT_BYTES : sizeof(struct q8_block);
    return ((size_t)(n / f->block) * block_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static float widen_half(uint16_t half) {
    const uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    float value;
    memcpy(&value, &magnitude, sizeof value);
    value = magnitude < 0x0f800000 ? value * 0x1p112f : magnitude > 0x0f800000 ? NAN : INFINITY;
    return sign ? -value : value;
}

/* Writes a row of short blocks into its place in a tile. */
static void quantize_short(const float *row, char *tile, int32_t place, int64_t n) {
    const int32_t rows = kernel.at_once;
    struct q8_1_block blocks[AT_A_TIME];
    for (int64_t left = n / SHORT_BLOCK; left > 0; left -= AT_A_TIME) {
        const int64_t num = left < AT_A_TIME ? left : AT_A_TIME;
        kernel.quantize[Q8_1_ROWS](row, blocks, num * SHORT_BLOCK);
        for (int64_t i = 0; i < num; i++, tile += rows * SHORT_BYTES) {
            float *scales = (float *)(tile + rows * SHORT_BLOCK);
            for (int at = 0; at < SHORT_BLOCK; at++)
                tile[place * SHORT_BLOCK + at] = (char)(blocks[i].qs[at] + kernel.raise);
            scales[place] = widen_half(blocks[i].d);
            scales[rows + place] = widen_half(blocks[i].s);
        }
        row += num * SHORT_BLOCK;
    }
}

/* Quantizes the row of this number. */
static void quantize_row(const struct format *f, const float *row, char *rows, int32_t number, size_t row_bytes, int64_t n) {
    const int32_t place = number % kernel.at_once;
    if (f->block == SHORT_BLOCK)
        quantize_short(row, rows + (number - place) * row_bytes, place, n);
    else
        kernel.quantize[Q8_K_ROWS](row, rows + number * row_bytes, n);
}

/* Quantizes rows until all are: threads take one at a time, so that none waits for a thread that does not run. */
static void quantize_rows(struct product *job) {
    const struct tensor *input = job->node->src[1];
    const int32_t rows = (int32_t)input->ne[1];
    for (int32_t row; (row = atomic_fetch_add(&job->next_row, 1)) < rows;) {
        const float *elements = (const float *)((char *)input->data + row * input->nb[1]);
        quantize_row(job->format, elements, job->rows, row, job->row_bytes, input->ne[0]);
        atomic_fetch_add(&job->rows_done, 1);
    }
    for (int32_t spins = 1; atomic_load(&job->rows_done) < rows; spins++)
        if (spins % SPINS == 0)
            sched_yield();
}

/* Multiplies all rows with the columns of a tile. */
static void multiply_tile(const struct product *job, int64_t first, int64_t columns) {
    const struct tensor *node = job->node, *weights = node->src[0];
    const struct format *f = job->format;
    const int64_t blocks = weights->ne[0] / f->block, rows = node->src[1]->ne[1];
    for (int64_t row = 0; row < rows; row += kernel.at_once) {
        const int num_rows = (int)(rows - row < kernel.at_once ? rows - row : kernel.at_once);
        for (int64_t column = first; column < first + columns; column += f->columns)
            f->multiply(num_rows, blocks, (const char *)weights->data + column * weights->nb[1],
                        job->rows + row * job->row_bytes, job->row_bytes,
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

/* Returns the format of a product's weights; NULL if it is left to llama.cpp. Q4_K with an `extra` is in groups: the only
 * other layout of it, AMX's, is never used (backend/cpu_repack.py). */
static const struct format *find_format(const struct tensor *node) {
    if (node->op != kernel.op)
        return NULL;
    const struct tensor *weights = node->src[0], *input = node->src[1];
    if (weights->ne[2] != 1 || weights->ne[3] != 1 || input->type != F32 || input->nb[0] != 4 ||
        input->ne[2] != 1 || input->ne[3] != 1 || node->type != F32 || node->nb[0] != 4)
        return NULL;
    for (const struct format *f = kernel.formats; f < kernel.formats + NUM_FORMATS; f++)
        if (f->type == weights->type && f->multiply && weights->ne[0] % f->block == 0 &&
            weights->ne[1] % f->columns == 0 && input->ne[1] <= f->max_rows && (weights->extra != NULL) == (f->columns > 1))
            return f;
    return NULL;
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
        p->rows = aligned_alloc(ALIGNMENT, num_bytes);
        p->num_bytes = p->rows ? num_bytes : 0;
    }
    return p->num_jobs >= num_jobs && p->num_bytes >= num_bytes;
}

static void start(struct product *job, struct tensor *node, const struct format *format, char *rows) {
    const struct tensor *weights = node->src[0];
    const int64_t columns = TILE_BYTES / (int64_t)weights->nb[1] / GROUP * GROUP;
    job->node = node;
    job->format = format;
    job->rows = rows;
    job->row_bytes = count_bytes(format, weights->ne[0]);
    job->has_rows = false;
    job->tile = (int32_t)(columns ? columns : GROUP);
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
        const struct format *format = find_format(node);
        if (!format)
            continue;
        const int64_t tiles = (node->src[1]->ne[1] + kernel.at_once - 1) / kernel.at_once;
        const size_t needed = count_bytes(format, node->src[1]->ne[0]) * (size_t)(tiles * kernel.at_once);
        num_bytes = needed > num_bytes ? needed : num_bytes;
        num_jobs++;
    }
    if (!num_jobs || !reserve(p, num_jobs, num_bytes))
        return 0;
    struct product *job = p->jobs;
    const struct product *last = NULL; /* whose rows are there; while its input is used, nothing else lies in its place */
    for (int32_t i = 0; i < nodes; i++) {
        struct tensor *node = ggml->node(graph, i);
        if (last && node->data == last->node->src[1]->data)
            last = NULL;
        const struct format *format = find_format(node);
        if (!format)
            continue;
        start(job, node, format, p->rows);
        job->has_rows = last && node->src[1] == last->node->src[1] && format->block == last->format->block;
        last = job;
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
enum { MOST_AT_ONCE = 8, TEST_ELEMENTS = 768, TEST_BYTES = 3 * sizeof(struct q4_group) };
enum { LEAST_HALF = 0x2800, HALVES = 0x1800 }; /* from 0.03 to 2 */

static uint32_t draw(uint32_t *random) {
    return (*random = *random * 1664525 + 1013904223) >> 8;
}

/* True if a format's kernel gives what llama.cpp's gives for one row, to the last bit, with arbitrary weights and any
 * number of rows. places: the bytes of a block at which halves are, ended by -1. */
static bool rounds_alike(const struct format *f, size_t block_bytes, const int *places, void *theirs) {
    char weights[TEST_BYTES], llama_row[TEST_BYTES], rows[MOST_AT_ONCE][TEST_BYTES] __attribute__((aligned(ALIGNMENT)));
    float elements[TEST_ELEMENTS], expected[MOST_AT_ONCE][GROUP], found[MOST_AT_ONCE][GROUP];
    const int64_t blocks = TEST_ELEMENTS / f->block;
    uint32_t random = 1;
    for (size_t i = 0; i < (size_t)blocks * block_bytes; i++)
        weights[i] = (char)draw(&random);
    for (int64_t b = 0; b < blocks; b++)
        for (const int *place = places; *place >= 0; place++) {
            const uint16_t half = (uint16_t)((LEAST_HALF + draw(&random) % HALVES) | (draw(&random) % 2 << 15));
            memcpy(weights + (size_t)b * block_bytes + *place, &half, sizeof half);
        }
    for (int32_t r = 0; r < kernel.at_once; r++) {
        for (int i = 0; i < TEST_ELEMENTS; i++)
            elements[i] = (float)draw(&random) * 1e-7f - 0.8f;
        kernel.quantize[f->rows](elements, llama_row, TEST_ELEMENTS);
        quantize_row(f, elements, rows[0], r, sizeof *rows, TEST_ELEMENTS);
        if (f->columns > 1)
            ((multiply_row *)theirs)(TEST_ELEMENTS, expected[r], GROUP, weights, llama_row, 1, GROUP);
        else
            ((dot *)theirs)(TEST_ELEMENTS, expected[r], 0, weights, 0, llama_row, 0, 1);
    }
    for (int32_t num_rows = 1; num_rows <= kernel.at_once; num_rows++) {
        f->multiply(num_rows, blocks, weights, rows[0], sizeof *rows, found[0], sizeof *found);
        for (int32_t r = 0; r < num_rows; r++)
            if (memcmp(found[r], expected[r], (size_t)f->columns * sizeof(float)))
                return false;
    }
    return true;
}
#endif

/* Takes the products from llama.cpp, or with NULL leaves all to it. theirs: its kernels for one row, of each format, then
 * how it quantizes a row to each format of rows; num_skipped: how many wider kernels of ours to pass over. Returns a bit for
 * each format that is taken: none on other processors, nor any whose kernel rounds differently. Not to be called while a
 * graph is computed. */
int32_t products_install(void *const *theirs, int32_t op, int32_t num_skipped) {
    int32_t taken = 0;
    for (int i = 0; i < NUM_FORMATS; i++)
        kernel.formats[i].multiply = NULL;
#if defined(__x86_64__)
    static multiply *const vnni[] = {rows_q4_vnni, rows_q5_vnni, rows_q6_vnni, rows_q8_0_vnni, rows_q4_1_vnni};
    static multiply *const avx2[] = {rows_q4_avx2, rows_q5_avx2, rows_q6_avx2, rows_q8_0_avx2, rows_q4_1_avx2};
    static const size_t block_bytes[] = {sizeof(struct q4_group), sizeof(struct q5_block), sizeof(struct q6_block),
                                         sizeof(struct q8_0_block), sizeof(struct q4_1_block)};
    static const int halves[][17] = {
        {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, -1}, {0, 2, -1}, {208, -1}, {0, -1}, {0, 2, -1}};
    __builtin_cpu_init();
    if (!theirs || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return 0;
    const bool has_dots = !num_skipped && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    kernel.at_once = has_dots ? 8 : 4;
    kernel.op = op;
    kernel.raise = has_dots ? RAISED : 0;
    for (int i = 0; i < NUM_ROWS; i++)
        kernel.quantize[i] = (quantize *)theirs[NUM_FORMATS + i];
    for (int i = 0; i < NUM_FORMATS; i++) {
        struct format *f = kernel.formats + i;
        f->multiply = has_dots ? vnni[i] : avx2[i];
        if (f->type == Q8_0)
            f->max_rows = has_dots ? INT32_MAX : MOST_DRAFTED;
        if (!rounds_alike(f, block_bytes[i], halves[i], theirs[i]))
            f->multiply = NULL;
        taken |= (f->multiply != NULL) << i;
    }
#else
    (void)theirs, (void)op, (void)num_skipped;
#endif
    return taken;
}
