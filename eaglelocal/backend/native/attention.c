/* Flash attention on a CPU, in place of llama.cpp's own.
 *
 * llama.cpp reads all cells once for each row and each head, unless there are 64 rows and more. Verifying a draft means
 * 2 to 16 rows. Here the rows and heads that share a key head read each tile of cells once. Cells are cut into spans
 * that depend on their number alone, and spans are added up in order: a row's result does not depend on the rows that
 * are computed with it, nor on threads.
 *
 * attention_install wraps the CPU backend: each of its graphs is computed with the attentions, and products of few rows
 * (row_products.c), turned into custom operations (ggml's own kind: a function that all threads of the backend run), and
 * turned back afterwards. The structs are those of ggml's backend interface, version 2; attention_install checks what can
 * be checked. */
#include "attention.h"
#include "row_products.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { INTERFACE_VERSION = 2, MAX_THREADS = 512, MAX_SPANS = 32, MIN_SPAN = 256, ENOUGH_BLOCKS = 64 };

struct backend;
struct device;

struct backend { /* ggml_backend; of its interface: name, free, eight that are not used here, compute */
    void *guid;
    const char *(*name)(struct backend *);
    void (*release)(struct backend *);
    void *transfers[6];
    void *plans[4];
    int32_t (*compute)(struct backend *, void *graph);
    void *events[3];
    struct device *device;
    void *context;
};

struct device { /* ggml_backend_device */
    const char *(*name)(struct device *);
    const char *(*description)(struct device *);
    void (*memory)(struct device *, size_t *, size_t *);
    int32_t (*type)(struct device *);
    void (*properties)(struct device *, void *);
    struct backend *(*init)(struct device *, const char *);
    void *others[9];
    void *registry;
    void *context;
};

struct job { /* one attention of a graph that is being computed */
    struct attention attention;
    struct wrapped *wrapped;
    struct tensor *node;
    int32_t op_params[16]; /* the node's own */
    int32_t block_rows, row_blocks, num_blocks; /* row_blocks for each stream and key head */
    int32_t span, num_spans;
    bool splits_spans;     /* an item is one span of a block; else it is a whole block */
    int32_t num_items;
    _Atomic int32_t next;  /* item that no thread has taken */
    _Atomic int32_t *left; /* [num_blocks] spans that are not computed */
};

struct wrapped { /* a backend and its scratch */
    struct backend *backend;
    struct wrapped *next;
    struct job *jobs;
    _Atomic int32_t *left;
    float *partials; /* [num_blocks][num_spans][queries][2 + v_width] of one attention at a time */
    size_t num_jobs, num_left, num_partials;
    struct products products;
    void *scratch[MAX_THREADS];
    size_t scratch_bytes[MAX_THREADS];
};

static struct {
    struct graph_functions ggml;
    int32_t attention_op;
    struct backend *(*init)(struct device *, const char *);
    int32_t (*compute)(struct backend *, void *graph);
    void (*release)(struct backend *);
    span_kernel *kernel;
    struct wrapped *wrapped;
    atomic_flag lock;
} state;

/* Queries of a block are numbered row by row. */
static int32_t find_head(const struct attention *a, struct block block, int32_t query) {
    const int32_t group = a->heads / a->kv_heads;
    return block.kv_head * group + query % group;
}

static int32_t find_row(const struct attention *a, struct block block, int32_t query) {
    return block.first_row + query / (a->heads / a->kv_heads);
}

static const float *find_query(const struct attention *a, struct block block, int32_t query) {
    return (const float *)(a->q + block.stream * a->q_stream + find_head(a, block, query) * a->q_head +
                           find_row(a, block, query) * a->q_row);
}

/* The query's mask from a cell on; NULL if it sees all. */
static const char *find_mask(const struct attention *a, struct block block, int32_t query, int32_t cell) {
    if (!a->mask)
        return NULL;
    return a->mask + find_row(a, block, query) * a->mask_row +
           (find_head(a, block, query) % a->mask_heads) * a->mask_head +
           (block.stream % a->mask_streams) * a->mask_stream + 2 * (size_t)cell;
}

static bool has_unmasked(const char *mask, int32_t cells) {
    if (!mask)
        return true;
    for (int32_t c = 0; c < cells; c++) {
        uint16_t half;
        memcpy(&half, mask + 2 * c, 2);
        if (half != 0xfc00) /* minus infinity */
            return true;
    }
    return false;
}

/* Lists the queries that see one of these cells. */
static int32_t find_active(const struct attention *a, struct block block, int32_t cell, int32_t cells,
                           int32_t *active) {
    const int32_t group = a->heads / a->kv_heads;
    bool sees = false;
    int32_t n = 0;
    for (int32_t i = 0; i < block.rows * group; i++) {
        if (i % group == 0 || a->mask_heads > 1)
            sees = has_unmasked(find_mask(a, block, i, cell), cells);
        if (sees)
            active[n++] = i;
    }
    return n;
}

static float half_to_float(const char *source) {
    uint16_t half;
    memcpy(&half, source, 2);
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023, bits;
    if (exponent == 31)
        bits = sign | 0x7f800000 | fraction << 13;
    else if (exponent)
        bits = sign | (exponent + 112) << 23 | fraction << 13;
    else {
        float value = (float)fraction * 0x1p-24f;
        memcpy(&bits, &value, 4);
        bits |= sign;
    }
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* The bytes of `width` elements, a multiple of 32 for the types in blocks. */
static size_t count_bytes(int32_t type, size_t width) {
    switch (type) {
    case F32:
        return 4 * width;
    case Q8_0:
        return width / 32 * 34;
    case Q4_0:
        return width / 32 * 18;
    default:
        return 2 * width;
    }
}

/* Keys of a head lie far apart, one in each cell: the processor alone foresees only the first line of each. */
static inline void prefetch(const char *start, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64)
        __builtin_prefetch(start + line);
}

#if defined(__x86_64__)
#define NAME(x) x##_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
#define W 16
#define AT_ONCE 4
#define load_half(address) ((vector_avx512)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(address))))
#include "attention_kernel.h"
#undef NAME
#undef TARGET
#undef W
#undef AT_ONCE
#undef load_half
#define NAME(x) x##_avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define W 8
#define AT_ONCE 3
#define load_half(address) ((vector_avx2)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(address))))
#include "attention_kernel.h"
#elif defined(__aarch64__)
#define NAME(x) x##_neon
#define TARGET
#define W 4
#define AT_ONCE 4
#define load_half(address) ((vector_neon)vcvt_f32_f16(vld1_f16((const __fp16 *)(address))))
#include "attention_kernel.h"
#endif

/* The kernel for this processor, or NULL. num_skipped: how many wider ones to pass over. */
static span_kernel *find_kernel(int32_t num_skipped) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && num_skipped-- == 0)
        return span_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && num_skipped-- == 0)
        return span_avx2;
    return NULL;
#elif defined(__aarch64__)
    return num_skipped ? NULL : span_neon;
#else
    return NULL;
#endif
}

/* The memory of thread `ith`, large enough for this attention; ends the process where the system has none. */
static struct scratch take_scratch(struct wrapped *w, int ith, const struct attention *a) {
    const size_t floats = (size_t)TILE * (a->k_width + a->v_width) + MAX_QUERIES * (TILE + 2 * (a->v_width + 2) + 1);
    if (w->scratch_bytes[ith] < 4 * floats) {
        free(w->scratch[ith]);
        w->scratch_bytes[ith] = (4 * floats + 4095) & ~(size_t)4095;
        w->scratch[ith] = aligned_alloc(4096, w->scratch_bytes[ith]);
        if (!w->scratch[ith])
            abort();
    }
    struct scratch s;
    s.keys = w->scratch[ith];
    s.values = s.keys + TILE * a->k_width;
    s.scores = s.values + TILE * a->v_width;
    s.weighted = s.scores + MAX_QUERIES * TILE;
    s.total_weighted = s.weighted + MAX_QUERIES * a->v_width;
    s.softmax = (struct softmax *)(s.total_weighted + MAX_QUERIES * a->v_width);
    s.total = s.softmax + MAX_QUERIES;
    s.active = (int32_t *)(s.total + MAX_QUERIES);
    return s;
}

static int32_t num_queries(const struct attention *a, struct block block) {
    return block.rows * (a->heads / a->kv_heads);
}

static void clear_total(const struct attention *a, struct block block, struct scratch *s) {
    memset(s->total_weighted, 0, sizeof(float) * (size_t)num_queries(a, block) * a->v_width);
    for (int32_t i = 0; i < num_queries(a, block); i++)
        s->total[i] = (struct softmax){-INFINITY, 0};
}

/* Adds one query's result of a span to those of the spans before it. */
static void add_span(const struct attention *a, struct softmax span, const float *weighted, struct softmax *total,
                     float *total_weighted) {
    if (span.sum == 0)
        return;
    const float largest = span.largest > total->largest ? span.largest : total->largest;
    const float old = total->sum == 0 ? 0 : expf(total->largest - largest), new = expf(span.largest - largest);
    *total = (struct softmax){largest, total->sum * old + span.sum * new};
    for (int32_t d = 0; d < a->v_width; d++)
        total_weighted[d] = total_weighted[d] * old + weighted[d] * new;
}

/* Writes one query's result: its weighted values over the sum, the head's sink counted. */
static void write_query(const struct attention *a, struct block block, int32_t query, struct softmax softmax,
                        const float *weighted) {
    const int32_t head = find_head(a, block, query), row = find_row(a, block, query);
    float *out = a->out + (((size_t)block.stream * a->rows + row) * a->heads + head) * a->v_width, factor = 1;
    if (a->sinks) {
        const float largest = a->sinks[head] > softmax.largest ? a->sinks[head] : softmax.largest;
        factor = softmax.sum == 0 ? 0 : expf(softmax.largest - largest);
        softmax.sum = softmax.sum * factor + expf(a->sinks[head] - largest);
    }
    const float scale = softmax.sum == 0 ? 0 : factor / softmax.sum;
    for (int32_t d = 0; d < a->v_width; d++)
        out[d] = weighted[d] * scale;
}

static struct block find_block(const struct job *job, int32_t number) {
    const struct attention *a = &job->attention;
    const int32_t first = number % job->row_blocks * job->block_rows, pair = number / job->row_blocks;
    const int32_t left = a->rows - first;
    return (struct block){pair / a->kv_heads, pair % a->kv_heads, first, left < job->block_rows ? left : job->block_rows};
}

static void compute_span(const struct job *job, struct block block, int32_t span, struct scratch *s) {
    const int32_t first = span * job->span, end = first + job->span, cells = job->attention.cells;
    state.kernel(&job->attention, block, first, end < cells ? end : cells, s);
}

static void compute_block(const struct job *job, struct block block, struct scratch *s) {
    const struct attention *a = &job->attention;
    clear_total(a, block, s);
    for (int32_t span = 0; span < job->num_spans; span++) {
        compute_span(job, block, span, s);
        for (int32_t i = 0; i < num_queries(a, block); i++)
            add_span(a, s->softmax[i], s->weighted + i * a->v_width, s->total + i, s->total_weighted + i * a->v_width);
    }
    for (int32_t i = 0; i < num_queries(a, block); i++)
        write_query(a, block, i, s->total[i], s->total_weighted + i * a->v_width);
}

/* The stored result of one query of a span: largest score, sum, weighted values. */
static float *find_partial(const struct job *job, int32_t block, int32_t span, int32_t query) {
    const struct attention *a = &job->attention;
    const size_t queries = (size_t)job->block_rows * (a->heads / a->kv_heads);
    return job->wrapped->partials + (((size_t)block * job->num_spans + span) * queries + query) * (2 + a->v_width);
}

/* Adds the stored spans of a block up, in order. */
static void merge_spans(const struct job *job, int32_t number, struct scratch *s) {
    const struct attention *a = &job->attention;
    const struct block block = find_block(job, number);
    clear_total(a, block, s);
    for (int32_t i = 0; i < num_queries(a, block); i++) {
        for (int32_t span = 0; span < job->num_spans; span++) {
            const float *partial = find_partial(job, number, span, i);
            const struct softmax softmax = {partial[0], partial[1]};
            add_span(a, softmax, partial + 2, s->total + i, s->total_weighted + i * a->v_width);
        }
        write_query(a, block, i, s->total[i], s->total_weighted + i * a->v_width);
    }
}

/* Computes and stores one span of a block; the thread that finishes the block's last span merges them. */
static void compute_part(struct job *job, int32_t number, int32_t span, struct scratch *s) {
    const struct attention *a = &job->attention;
    const struct block block = find_block(job, number);
    compute_span(job, block, span, s);
    for (int32_t i = 0; i < num_queries(a, block); i++) {
        float *partial = find_partial(job, number, span, i);
        partial[0] = s->softmax[i].largest;
        partial[1] = s->softmax[i].sum;
        memcpy(partial + 2, s->weighted + i * a->v_width, sizeof(float) * a->v_width);
    }
    if (atomic_fetch_sub(job->left + number, 1) == 1)
        merge_spans(job, number, s);
}

static void run(struct tensor *node, int ith, int nth, void *data) {
    (void)node, (void)nth;
    struct job *job = data;
    struct scratch scratch = take_scratch(job->wrapped, ith, &job->attention);
    for (int32_t item; (item = atomic_fetch_add(&job->next, 1)) < job->num_items;)
        if (job->splits_spans)
            compute_part(job, item / job->num_spans, item % job->num_spans, &scratch);
        else
            compute_block(job, find_block(job, item), &scratch);
}

static bool is_readable(const struct tensor *t) {
    switch (t->type) {
    case F32:
    case F16:
    case BF16:
        return t->ne[0] % 16 == 0;
    case Q8_0:
    case Q4_0:
        return t->ne[0] % 32 == 0;
    default:
        return false;
    }
}

static bool is_handled(const struct tensor *node) {
    if (node->op != state.attention_op)
        return false;
    const struct tensor *q = node->src[0], *k = node->src[1], *v = node->src[2], *mask = node->src[3];
    float max_bias;
    memcpy(&max_bias, node->op_params + 1, 4);
    return q->type == F32 && q->nb[0] == 4 &&
           max_bias == 0 && is_readable(k) && is_readable(v) && k->ne[0] <= MAX_WIDTH && v->ne[0] <= MAX_WIDTH &&
           k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3] && k->ne[3] == q->ne[3] && q->ne[2] % k->ne[2] == 0 &&
           q->ne[2] / k->ne[2] <= MAX_GROUP && (!mask || mask->type == F16);
}

static struct attention read_attention(const struct tensor *node) {
    const struct tensor *q = node->src[0], *k = node->src[1], *v = node->src[2], *mask = node->src[3];
    struct attention a = {
        .rows = q->ne[1], .heads = q->ne[2], .kv_heads = k->ne[2], .cells = k->ne[1], .streams = q->ne[3],
        .k_width = k->ne[0], .v_width = v->ne[0], .k_type = k->type, .v_type = v->type,
        .q = q->data, .k = k->data, .v = v->data,
        .q_row = q->nb[1], .q_head = q->nb[2], .q_stream = q->nb[3],
        .k_cell = k->nb[1], .k_head = k->nb[2], .k_stream = k->nb[3],
        .v_cell = v->nb[1], .v_head = v->nb[2], .v_stream = v->nb[3],
        .mask_heads = 1, .mask_streams = 1,
        .sinks = node->src[4] ? node->src[4]->data : NULL, .out = node->data,
    };
    memcpy(&a.scale, node->op_params, 4);
    memcpy(&a.softcap, node->op_params + 2, 4);
    if (a.softcap != 0)
        a.scale /= a.softcap;
    if (mask) {
        a.mask = mask->data;
        a.mask_row = mask->nb[1], a.mask_head = mask->nb[2], a.mask_stream = mask->nb[3];
        a.mask_heads = mask->ne[2], a.mask_streams = mask->ne[3];
    }
    return a;
}

/* Makes room for n elements; false where the system has none. */
static bool reserve(void *array, size_t *size, size_t n, size_t bytes) {
    if (n <= *size)
        return true;
    void *fresh = malloc(n * bytes);
    if (!fresh)
        return false;
    free(*(void **)array);
    *(void **)array = fresh;
    *size = n;
    return true;
}

/* Spans depend on the number of cells alone, so that a row's result does not depend on the rows beside it. */
static int32_t span_cells(int32_t cells) {
    const int32_t span = (cells + MAX_SPANS - 1) / MAX_SPANS;
    return span <= MIN_SPAN ? MIN_SPAN : (span + TILE - 1) / TILE * TILE;
}

/* Fills the job in, but for what lies in the wrapped backend's arrays. */
static struct job plan_job(struct wrapped *w, struct tensor *node) {
    struct job job = {.attention = read_attention(node), .wrapped = w, .node = node};
    const struct attention *a = &job.attention;
    const int32_t most = MAX_QUERIES / (a->heads / a->kv_heads);
    job.block_rows = a->rows < most ? a->rows : most;
    job.row_blocks = (a->rows + job.block_rows - 1) / job.block_rows;
    job.num_blocks = a->streams * a->kv_heads * job.row_blocks;
    job.span = span_cells(a->cells);
    job.num_spans = (a->cells + job.span - 1) / job.span;
    job.splits_spans = job.num_spans > 1 && job.num_blocks < ENOUGH_BLOCKS;
    job.num_items = job.splits_spans ? job.num_blocks * job.num_spans : job.num_blocks;
    return job;
}

static size_t partial_floats(const struct job *job) {
    const struct attention *a = &job->attention;
    const size_t queries = (size_t)job->block_rows * (a->heads / a->kv_heads);
    return job->splits_spans ? (size_t)job->num_items * queries * (2 + a->v_width) : 0;
}

/* Turns the node into a custom operation. */
static void start_job(struct job *job, _Atomic int32_t *left) {
    job->left = left;
    for (int32_t i = 0; i < job->num_blocks; i++)
        atomic_store(left + i, job->num_spans);
    memcpy(job->op_params, job->node->op_params, sizeof job->op_params);
    struct custom custom = {run, ALL_THREADS, job};
    memcpy(job->node->op_params, &custom, sizeof custom);
    job->node->op = state.ggml.custom_op;
}

static void finish_job(struct job *job) {
    job->node->op = state.attention_op;
    memcpy(job->node->op_params, job->op_params, sizeof job->op_params);
}

/* Plans the attentions of a graph. Returns their number; -1 where the system has no memory for it. */
static int32_t plan_jobs(struct wrapped *w, void *graph) {
    const int32_t nodes = state.ggml.num_nodes(graph);
    size_t num_jobs = 0, left = 0, partials = 0;
    for (int32_t i = 0; i < nodes; i++)
        num_jobs += is_handled(state.ggml.node(graph, i));
    if (!reserve(&w->jobs, &w->num_jobs, num_jobs, sizeof *w->jobs))
        return -1;
    struct job *job = w->jobs;
    for (int32_t i = 0; i < nodes; i++) {
        struct tensor *node = state.ggml.node(graph, i);
        if (!is_handled(node))
            continue;
        *job = plan_job(w, node);
        left += job->num_blocks;
        partials = partial_floats(job) > partials ? partial_floats(job) : partials;
        job++;
    }
    if (!reserve(&w->left, &w->num_left, left, sizeof *w->left) ||
        !reserve(&w->partials, &w->num_partials, partials, sizeof *w->partials))
        return -1;
    return (int32_t)num_jobs;
}

static struct wrapped *find_wrapped(struct backend *backend) {
    while (atomic_flag_test_and_set(&state.lock))
        ;
    struct wrapped *w = state.wrapped;
    while (w && w->backend != backend)
        w = w->next;
    atomic_flag_clear(&state.lock);
    return w;
}

static int32_t compute(struct backend *backend, void *graph) {
    struct wrapped *w = state.kernel ? find_wrapped(backend) : NULL;
    const int32_t num_jobs = w ? plan_jobs(w, graph) : 0;
    _Atomic int32_t *left = num_jobs > 0 ? w->left : NULL;
    for (int32_t i = 0; i < num_jobs; left += w->jobs[i++].num_blocks)
        start_job(w->jobs + i, left);
    const int32_t num_products = w ? products_start(&w->products, graph, &state.ggml) : 0;
    const int32_t status = state.compute(backend, graph);
    if (w)
        products_finish(&w->products, num_products);
    for (int32_t i = 0; i < num_jobs; i++)
        finish_job(w->jobs + i);
    return status;
}

static void release(struct backend *backend) {
    while (atomic_flag_test_and_set(&state.lock))
        ;
    struct wrapped **link = &state.wrapped;
    while (*link && (*link)->backend != backend)
        link = &(*link)->next;
    struct wrapped *w = *link;
    if (w)
        *link = w->next;
    atomic_flag_clear(&state.lock);
    if (w) {
        for (int i = 0; i < MAX_THREADS; i++)
            free(w->scratch[i]);
        free(w->jobs);
        free(w->left);
        free(w->partials);
        products_free(&w->products);
        free(w);
    }
    state.release(backend);
}

static struct backend *init(struct device *device, const char *parameters) {
    struct backend *backend = state.init(device, parameters);
    struct wrapped *w = backend && backend->device == device ? calloc(1, sizeof *w) : NULL;
    if (!w)
        return backend;
    w->backend = backend;
    state.compute = backend->compute;
    state.release = backend->release;
    backend->compute = compute;
    backend->release = release;
    while (atomic_flag_test_and_set(&state.lock))
        ;
    w->next = state.wrapped;
    state.wrapped = w;
    atomic_flag_clear(&state.lock);
    return backend;
}

/* Wraps the CPU's device once in a process. False where this processor has no kernel, or the device is not laid out
 * as expected. */
bool attention_install(struct device *device, const int32_t *registry, void *num_nodes, void *node,
                       int32_t attention_op, int32_t custom_op) {
    if (state.init)
        return true;
    span_kernel *kernel = find_kernel(0);
    if (!kernel || !device || device->registry != registry || *registry != INTERFACE_VERSION || device->type(device))
        return false;
    state.ggml.num_nodes = (int32_t (*)(void *))num_nodes;
    state.ggml.node = (struct tensor * (*)(void *, int32_t)) node;
    state.attention_op = attention_op;
    state.ggml.custom_op = custom_op;
    state.kernel = kernel;
    state.init = device->init;
    device->init = init;
    return true;
}

/* Whether this processor has a kernel. */
bool attention_supported(void) {
    return find_kernel(0) != NULL;
}

/* Selects a kernel, for comparisons in tests: -1 leaves everything to llama.cpp, 0 is the widest, 1 the next. False if
 * there is none. */
bool attention_select(int32_t number) {
    state.kernel = number < 0 ? NULL : find_kernel(number);
    return number < 0 || state.kernel;
}
