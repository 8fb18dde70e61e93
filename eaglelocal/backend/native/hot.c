/* The rows of a step into llama.cpp and its answers out: one call for each time the engine goes there.
 *
 * llama.cpp streams the whole model through the caches, so whatever runs after it runs cold. Each path through
 * Python, ctypes or numpy then costs ten to thirty microseconds, these few lines next to nothing.
 *
 * Knows llama.cpp by the addresses it is given (backend/hot.py mirrors the structs) and includes none of
 * its headers: the staging calls have no public one. Owns no memory, and what it remembers from call to call is in the
 * structs it is given; one thread uses a struct at a time.
 */
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { NO_LOGITS = 1001, NO_STATES = 1002, NO_TAPS = 1003, NOT_CUT = 1004, CLOSED = 1005 }; /* beside llama_decode's own codes */
enum { UNKNOWN = -1, TAKEN = -2, NONE_FITS = -3 };                          /* instead of a token */
enum { ENCODE = 0, DECODE = 1 };                                            /* llama_process_type */

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
};

struct head;

struct target {
    const struct api *api;
    void *context;
    int32_t n_vocab, n_embd, n_taps, nextn_tap; /* nextn_tap: the layer whose rows are had as "nextn" states; or -1 */
    const int32_t *taps;                        /* [n_taps] layers */
    const int32_t **sequences;                  /* [n_batch] scratch */
    int8_t *outputs;                            /* [n_batch] scratch */
    int32_t *owners;                            /* [n_batch] first sequences of the rows of the last decode */
    int32_t *best;      /* [n_batch] their most likely tokens, as far as they were found ahead; TAKEN once read */
    int8_t *is_greedy;  /* [sequences] whose tokens are found ahead */
    int32_t num_rows;   /* of the last decode */
    float *maxima;                              /* [blocks of n_vocab] scratch */
    void *memory;
    struct head *head;                          /* encodes what was decoded; or NULL */
    double native_s;                            /* seconds inside llama.cpp so far */
};

struct head {
    const struct api *api;
    struct target *target; /* whose rows it encodes */
    void *context, *memory, *features, *pairs;
    int32_t width, n_batch; /* n_batch: rows of one call */
    float tap_eps;      /* EAGLE-3.1 fc_norm: of the norm of each tapped row; negative: none */
    const float *gains; /* [width] EAGLE-3.1 norm_output: of the norm of the fed-back state; NULL: none */
    float gain_eps;
    float *row;     /* [taps x n_embd] scratch */
    float *encoded; /* [n_batch of the target x width] states of the rows encoded last */
    float *states;  /* [n_batch x width] what the last draft ended with */
    int32_t num_encoded; /* rows of the target's last decode, all of which were encoded along with it; or 0 */
    int32_t was_asked;   /* for rows of that decode: set from outside */
    double native_s;
};

struct draw { /* how a request's tokens are drawn */
    void *sampler;
    int32_t rank;       /* so many of the most likely are candidates; 0: as many as top_p or min_p leave */
    float top_p, min_p; /* 1: no top_p */
    struct candidate *room; /* [rank + 2 x tokens that may be touched]; without a rank [2 n_vocab] */
    float *fitting;     /* [n_vocab] scratch, for answers that are bound */
};

/* Bytes of the structs above: whoever fills them asks whether they are the same. */
int32_t hot_size(int32_t number) {
    const size_t sizes[] = {sizeof(struct api), sizeof(struct target), sizeof(struct head), sizeof(struct draw)};
    return (int32_t)sizes[number];
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- choices */

enum { BLOCK = 256, LANES = 16 };

typedef float four __attribute__((vector_size(16)));

/* The larger of each pair. Spelled out, for without -ffast-math (logits may be infinite) no compiler finds the one
 * instruction for it, and ranking a large vocabulary then takes four times as long. */
static inline four larger(four a, four b) {
#if defined(__SSE2__)
    return _mm_max_ps(a, b);
#elif defined(__aarch64__)
    return vmaxnmq_f32(a, b); /* of a number and NaN the number, as the others have it for `a` */
#else
    for (int j = 0; j < 4; j++) b[j] = a[j] > b[j] ? a[j] : b[j];
    return b;
#endif
}

static float largest(const float *x, int32_t n) {
    four lanes[LANES / 4], next; /* independent of each other, so that they overlap */
    for (int j = 0; j < LANES; j++) lanes[j / 4][j % 4] = -INFINITY;
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

static int32_t block_size(int32_t block, int32_t n) {
    return n - block * BLOCK < BLOCK ? n - block * BLOCK : BLOCK;
}

/* The first of the largest, by the largest of each block. */
static int32_t first_largest(const float *x, int32_t n, const float *maxima) {
    int32_t best = 0;
    for (int32_t block = 1; block * BLOCK < n; block++)
        if (maxima[block] > maxima[best]) best = block;
    const int32_t end = best * BLOCK + block_size(best, n);
    for (int32_t i = best * BLOCK; i < end; i++)
        if (x[i] == maxima[best]) return i;
    return best * BLOCK; /* all are NaN */
}

static void measure_blocks(const float *x, int32_t n, float *maxima) {
    for (int32_t block = 0; block * BLOCK < n; block++) maxima[block] = largest(x + block * BLOCK, block_size(block, n));
}

/* The `count` most likely tokens, best first, and how sure each is should those before it be wrong: its softmax among
 * itself and those behind it (one over all would cost more than the drafting that it is for), which says nothing of
 * the last; 0 of what cannot be drafted. x [n] is scratch memory and left as it was; one pass, whatever the count. */
void hot_rank(float *x, int32_t n, int32_t count, float *maxima, int32_t *tokens, float *shares) {
    measure_blocks(x, n, maxima);
    for (int32_t k = 0; k < count; k++) {
        const int32_t token = tokens[k] = first_largest(x, n, maxima);
        shares[k] = x[token];
        if (k + 1 == count) break;
        x[token] = -INFINITY;
        maxima[token / BLOCK] = largest(x + token - token % BLOCK, block_size(token / BLOCK, n));
    }
    for (int32_t k = count - 1; k-- > 0;) x[tokens[k]] = shares[k]; /* backwards: of equals at -inf one may be twice */
    for (int32_t k = 0; k < count; k++) {
        float total = 1;
        for (int32_t behind = k + 1; behind < count; behind++) total += expf(shares[behind] - shares[k]);
        shares[k] = shares[k] > -INFINITY ? 1 / total : 0;
    }
}

/* ---- candidates of a draw: the few tokens of a row that its filters can leave, so that llama.cpp need not copy and sort
 * the whole vocabulary for one token */

static int surer_first(const void *left, const void *right) {
    const struct candidate *a = left, *b = right;
    if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return a->token < b->token ? -1 : a->token > b->token;
}

struct best { /* the `count` largest of what was offered, of equals the earlier: a heap, the least of them at its root */
    struct candidate *heap;
    int32_t count, found;
};

static void sink(struct best *b, int32_t at) {
    const struct candidate sinking = b->heap[at];
    for (int32_t below; (below = 2 * at + 1) < b->found; at = below) {
        if (below + 1 < b->found && surer_first(b->heap + below, b->heap + below + 1) < 0) below++;
        if (surer_first(&sinking, b->heap + below) > 0) break;
        b->heap[at] = b->heap[below];
    }
    b->heap[at] = sinking;
}

static void offer(struct best *b, const float *x, int32_t from, int32_t end) {
    for (int32_t i = from; i < end; i++) {
        const bool is_full = b->found == b->count;
        if (!(is_full ? x[i] > b->heap[0].logit : x[i] >= -INFINITY)) continue;
        b->heap[is_full ? 0 : b->found++] = (struct candidate){i, x[i], 0};
        if (is_full) sink(b, 0);
        else if (b->found == b->count)
            for (int32_t at = b->found / 2; at--;) sink(b, at);
    }
}

/* How many of the `count` most likely there are (NaN is none), the least of them first if it is all; maxima are those of
 * x's blocks. Each of those is one of its numbers, so the blocks of the largest hold what is wanted, and few others do. */
static int32_t most_likely(const float *x, int32_t n, int32_t count, const float *maxima, struct candidate *room) {
    const int32_t num_blocks = (n + BLOCK - 1) / BLOCK;
    struct best blocks = {room, count, 0}, rows = {room, count, 0};
    float least = -INFINITY;
    if (num_blocks > count) {
        offer(&blocks, maxima, 0, num_blocks);
        least = room[0].logit;
    }
    for (int32_t block = 0; block < num_blocks; block++)
        if (maxima[block] >= (rows.found == count ? fmaxf(room[0].logit, least) : least))
            offer(&rows, x, block * BLOCK, block * BLOCK + block_size(block, n));
    return rows.found;
}

typedef int32_t four_ints __attribute__((vector_size(16)));

/* exp of each, to some 2e-7 of itself; what is under 1e-37 is as good as nothing. */
static inline four exp4(four x) {
    const four none = {0, 0, 0, 0}, least = none - 87.0f, magic = none + 12582912.0f; /* 1.5 * 2^23: adding it rounds */
    x = larger(x, least);
    const four shifted = x * 1.44269504f + magic, whole = shifted - magic;
    const four rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f; /* ln 2 in two parts (Cody and Waite) */
    four y = rest * (none + 1.9875691500e-4f) + 1.3981999507e-3f; /* the polynomial of Cephes' expf */
    y = y * rest + 8.3334519073e-3f;
    y = y * rest + 4.1665795894e-2f;
    y = y * rest + 1.6666665459e-1f;
    y = y * rest + 5.0000001201e-1f;
    y = y * rest * rest + rest + 1.0f;
    four_ints bits, power;
    memcpy(&bits, &shifted, sizeof bits);
    memcpy(&power, &y, sizeof power);
    power += (bits - 0x4B400000) << 23;
    memcpy(&y, &power, sizeof y);
    return y;
}

enum { STEPS = 1024, STEPS_A_NAT = 32 };

static int32_t step_below(float top, float x) {
    const float steps = (top - x) * STEPS_A_NAT;
    return steps < STEPS ? (int32_t)steps : STEPS - 1;
}

/* Probability mass by how far below the top a logit lies, in steps; the last one is all the rest. */
static void spread_mass(const float *x, int32_t n, float top, double *masses) {
    float weights[BLOCK];
    for (int32_t from = 0; from < n; from += BLOCK) {
        const int32_t size = block_size(from / BLOCK, n);
        four next;
        int32_t i = 0;
        for (; i + 4 <= size; i += 4) {
            memcpy(&next, x + from + i, sizeof next);
            next = exp4(next - top);
            memcpy(weights + i, &next, sizeof next);
        }
        for (; i < size; i++) weights[i] = expf(x[from + i] - top);
        for (i = 0; i < size; i++)
            if (x[from + i] > -INFINITY) masses[step_below(top, x[from + i])] += weights[i];
    }
}

/* The most likely tokens that make up top_p of the whole vocabulary, those of the last step sorted. room [2 n] */
static int32_t nucleus(const float *x, int32_t n, float top_p, float top, const float *maxima, struct candidate *room) {
    double masses[STEPS] = {0}, total = 0, sum = 0;
    spread_mass(x, n, top, masses);
    for (int32_t step = 0; step < STEPS; step++) total += masses[step];
    int32_t last = 0, found = 0, doubtful = 0;
    for (; last < STEPS - 1 && sum + masses[last] < top_p * total; last++) sum += masses[last];
    for (int32_t block = 0; block * BLOCK < n; block++) {
        if (!(step_below(top, maxima[block]) <= last)) continue;
        for (int32_t i = block * BLOCK; i < block * BLOCK + block_size(block, n); i++) {
            if (!(x[i] > -INFINITY) || step_below(top, x[i]) > last) continue;
            const struct candidate one = {i, x[i], 0};
            if (step_below(top, x[i]) < last) room[found++] = one;
            else room[n + doubtful++] = one;
        }
    }
    qsort(room + n, doubtful, sizeof *room, surer_first);
    for (int32_t i = 0; i < doubtful && (sum < top_p * total || !found); i++) {
        sum += expf(room[n + i].logit - top);
        room[found++] = room[n + i];
    }
    return found;
}

/* All that min_p can leave; llama.cpp then applies it. */
static int32_t over_min_p(const float *x, int32_t n, float min_p, float top, const float *maxima, struct candidate *room) {
    const float least = top + logf(min_p) - 1e-3f;
    int32_t found = 0;
    for (int32_t block = 0; block * BLOCK < n; block++) {
        if (!(maxima[block] >= least)) continue;
        for (int32_t i = block * BLOCK; i < block * BLOCK + block_size(block, n); i++)
            if (x[i] >= least) room[found++] = (struct candidate){i, x[i], 0};
    }
    return found;
}

/* How many candidates of a row x [n] are then in d->room, in any order: with a rank the most likely, and all touched
 * tokens, whose logits the sampler changes before it ranks them; without one nothing may be touched. NaN is none. */
int32_t hot_candidates(const struct draw *d, const float *x, int32_t n, int32_t n_touched, const int32_t *touched, float *maxima) {
    struct candidate *room = d->room;
    measure_blocks(x, n, maxima);
    int32_t found;
    if (d->rank) {
        const int32_t count = d->rank + n_touched < n ? d->rank + n_touched : n; /* as if all touched ones fell behind */
        found = most_likely(x, n, count, maxima, room);
        const struct candidate least = room[0];
        for (int32_t i = 0; i < n_touched && found >= count; i++) {
            const struct candidate one = {touched[i], x[touched[i]], 0};
            if (one.logit >= -INFINITY && surer_first(&least, &one) < 0) room[found++] = one;
        }
    } else {
        const float top = x[first_largest(x, n, maxima)];
        found = d->top_p < 1 ? nucleus(x, n, d->top_p, top, maxima, room) : over_min_p(x, n, d->min_p, top, maxima, room);
    }
    return found;
}

/* ---- norms */

static float inverse_rms(const float *x, int32_t n, float eps) {
    float lanes[LANES] = {0};
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += x[i + j] * x[i + j];
    float sum = 0;
    for (; i < n; i++) sum += x[i] * x[i];
    for (int j = 0; j < LANES; j++) sum += lanes[j];
    return 1.0f / sqrtf(sum / (float)n + eps);
}

/* out = x / rms(x), times gains [n] unless they are NULL */
void hot_norm(const float *x, int32_t n, float eps, const float *gains, float *out) {
    const float scale = inverse_rms(x, n, eps);
    for (int32_t i = 0; i < n; i++) out[i] = x[i] * scale * (gains ? gains[i] : 1.0f);
}

/* ---- the target, and the head's encoder behind it */

/* The tapped states of a row of the last decode [n_taps, n_embd]; eps as in struct head. */
int32_t hot_tapped(struct target *t, int32_t row, float eps, float *out) {
    for (int32_t tap = 0; tap < t->n_taps; tap++, out += t->n_embd) {
        const bool by_nextn = t->taps[tap] == t->nextn_tap;
        const float *rows = by_nextn ? t->api->nextn(t->context) : t->api->layer_input(t->context, t->taps[tap]);
        if (!rows) return NO_TAPS;
        rows += (size_t)row * t->n_embd;
        if (eps < 0) memcpy(out, rows, sizeof(float) * t->n_embd);
        else hot_norm(rows, t->n_embd, eps, NULL, out);
    }
    return 0;
}

static int32_t run(struct head *h, int type, void *batch) {
    const int32_t code = h->api->process(h->context, type, batch);
    h->api->synchronize(h->context);
    return code;
}

/* The features of a row as the encoder takes them, in h->row. */
static int32_t gather(struct head *h, int32_t row, const float *kept) {
    const int32_t n_taps = h->target->n_taps, n_embd = h->target->n_embd;
    if (!kept) return hot_tapped(h->target, row, h->tap_eps, h->row);
    kept += (size_t)row * n_taps * n_embd;
    if (h->tap_eps < 0) memcpy(h->row, kept, sizeof(float) * n_taps * n_embd);
    else for (int32_t i = 0; i < n_taps * n_embd; i += n_embd) hot_norm(kept + i, n_embd, h->tap_eps, NULL, h->row + i);
    return 0;
}

/* Rows first to end - 1 of what hot_encode is given, no more than n_batch. */
static int32_t encode_some(struct head *h, int32_t first, int32_t end, const int32_t *rows, const float *kept) {
    const struct api *api = h->api;
    /* llama.cpp puts encoder rows into sequence 0: their positions must follow its cache */
    int32_t position = api->last_position(h->memory, 0) + 1;
    const struct embedding row = {h->row, 1, (size_t)h->target->n_taps * h->target->n_embd};
    api->clear(h->features);
    for (int32_t i = first; i < end; i++, position++) {
        if (gather(h, rows ? rows[i] : i, kept)) return NO_TAPS;
        const double started_at = now();
        api->add_embedding(h->features, 0, row); /* copies the row */
        api->set_position(h->features, i - first, &position);
        api->set_output(h->features, i - first, true);
        h->native_s += now() - started_at;
    }
    const double started_at = now();
    const int32_t code = run(h, ENCODE, h->features);
    h->native_s += now() - started_at;
    if (code) return code;
    const float *states = api->nextn(h->context);
    if (!states) return NO_STATES;
    memcpy(h->encoded + (size_t)first * h->width, states, sizeof(float) * (end - first) * h->width);
    return 0;
}

/* Encode n rows: of the target's last decode, these or (NULL) the first n; or of features that were kept, [n, taps,
 * n_embd]. Their states are then in h->encoded. */
int32_t hot_encode(struct head *h, int32_t n, const int32_t *rows, const float *kept) {
    if (!h->context) return CLOSED;
    h->num_encoded = 0; /* of all rows of the last decode, until it is known otherwise */
    int32_t code = 0;
    for (int32_t first = 0; first < n && !code; first += h->n_batch) {
        const int32_t end = first + h->n_batch < n ? first + h->n_batch : n;
        code = encode_some(h, first, end, rows, kept);
    }
    return code;
}

/* A head that was asked for the rows of the last decode will be asked again: it encodes all in the same call. The few
 * rows that are rejected later cost it next to nothing, another call much. */
static int32_t encode_ahead(struct head *h, int32_t n) {
    const bool was_asked = h->was_asked;
    h->was_asked = false;
    h->num_encoded = 0;
    if (!was_asked) return 0;
    const int32_t code = hot_encode(h, n, NULL, NULL);
    h->num_encoded = code ? 0 : n;
    return code;
}

/* Most likely token of an output row of the last decode; UNKNOWN where there are no logits. */
int32_t hot_best(struct target *t, int32_t row) {
    const float *logits = t->context ? t->api->logits_row(t->context, row) : NULL;
    if (!logits) return UNKNOWN;
    measure_blocks(logits, t->n_vocab, t->maxima);
    return first_largest(logits, t->n_vocab, t->maxima);
}

/* Whose tokens were read after the last decode will have them read after this one. */
static void note_readers(struct target *t) {
    for (int32_t i = 0; i < t->num_rows; i++) t->is_greedy[t->owners[i]] = false;
    for (int32_t i = 0; i < t->num_rows; i++) {
        if (t->best[i] == TAKEN) t->is_greedy[t->owners[i]] = true;
        t->best[i] = UNKNOWN;
    }
    t->num_rows = 0;
}

/* The most likely tokens of those, in the same call: of their first rows, and behind each as far as rows agree. */
static void find_ahead(struct target *t, int32_t n, const int32_t *tokens, const int32_t *positions) {
    for (int32_t i = 0; i < n; i++) {
        const bool follows = i && t->owners[i] == t->owners[i - 1] && positions[i] == positions[i - 1] + 1 && t->outputs[i - 1];
        if (t->outputs[i] && t->is_greedy[t->owners[i]] && (!follows || t->best[i - 1] == tokens[i]))
            t->best[i] = hot_best(t, i);
    }
    t->num_rows = n;
}

/* Cut sequences (cuts are pairs of sequence and first position), then decode n rows: ints are tokens [n], positions
 * [n], outputs [n], numbers of sequences [n], all sequences, cuts. */
int32_t hot_decode(struct target *t, int32_t n, int32_t num_cuts, const int32_t *ints) {
    if (!t->context) return CLOSED;
    const int32_t *outputs = ints + 2 * n, *counts = ints + 3 * n, *sequences = ints + 4 * n;
    note_readers(t);
    for (int32_t i = 0; i < n; sequences += counts[i++]) {
        t->owners[i] = sequences[0];
        t->sequences[i] = sequences;
        t->outputs[i] = outputs[i] != 0;
    }
    const struct rows rows = {n, ints, NULL, ints + n, counts, t->sequences, t->outputs};
    const double started_at = now();
    bool is_cut = true;
    for (const int32_t *cut = sequences; cut < sequences + 2 * num_cuts; cut += 2)
        is_cut &= t->api->remove_cells(t->memory, cut[0], cut[1], -1);
    const int32_t code = is_cut ? t->api->decode(t->context, rows) : NOT_CUT;
    t->api->synchronize(t->context); /* on a GPU the work goes on behind the call */
    t->native_s += now() - started_at;
    if (code) return code;
    find_ahead(t, n, ints, ints + n);
    return t->head ? encode_ahead(t->head, n) : 0;
}

int32_t hot_rank_rows(struct target *t, int32_t n, const int32_t *rows, int32_t ranked, int32_t *tokens, float *shares) {
    for (int32_t i = 0; i < n; i++) {
        float *logits = t->api->logits_row(t->context, rows[i]);
        if (!logits) return NO_LOGITS;
        hot_rank(logits, t->n_vocab, ranked, t->maxima, tokens + i * ranked, shares + i * ranked);
    }
    return 0;
}

/* x [n] with NaN for all whose bit is not set. */
static const float *fitting(float *out, const float *x, int32_t n, const uint8_t *mask, int32_t mask_bytes) {
    for (int32_t from = 0; from < n; from += 8) {
        const int32_t size = n - from < 8 ? n - from : 8;
        const uint8_t bits = from / 8 < mask_bytes ? mask[from / 8] : 0;
        if (bits == 255) memcpy(out + from, x + from, sizeof *x * size);
        else for (int32_t i = 0; i < size; i++) out[from + i] = bits >> i & 1 ? x[from + i] : NAN;
    }
    return out;
}

/* Draw a token of an output row of the last decode, among those whose bits are set in mask (NULL: all), and tell the
 * sampler. touched: different tokens whose logits it changes. */
int32_t hot_draw(struct target *t, struct draw *d, int32_t row, int32_t n_touched, const int32_t *touched,
                 const uint8_t *mask, int32_t mask_bytes) {
    const float *logits = t->context ? t->api->logits_row(t->context, row) : NULL;
    if (!logits) return UNKNOWN;
    if (mask) logits = fitting(d->fitting, logits, t->n_vocab, mask, mask_bytes);
    int32_t found = hot_candidates(d, logits, t->n_vocab, n_touched, touched, t->maxima);
    if (!found && mask) return NONE_FITS;
    if (!found) d->room[found++] = (struct candidate){0, 0, 0}; /* all are NaN; as where the best token is asked for */
    struct candidates candidates = {d->room, (size_t)found, -1, false};
    const double started_at = now();
    t->api->apply(d->sampler, &candidates);
    const bool is_drawn = candidates.selected >= 0 && (size_t)candidates.selected < candidates.size;
    const int32_t token = is_drawn ? candidates.data[candidates.selected].token : UNKNOWN;
    if (is_drawn) t->api->accept(d->sampler, token);
    t->native_s += now() - started_at;
    return token;
}

/* ---- the head's decoder */

static void add_pair(struct head *h, int32_t row, int32_t token, int32_t position, int32_t sequence, const float *state) {
    const struct embedding embedding = {state, 1, (size_t)h->width};
    h->api->add_token(h->pairs, sequence, token);
    h->api->set_embedding(h->pairs, row, embedding); /* copies the state */
    h->api->set_position(h->pairs, row, &position);
}

/* Run the pairs that were added. All are outputs or none: the graph does not select rows, it would give the first. */
static int32_t run_pairs(struct head *h, int32_t n, bool asks) {
    for (int32_t i = 0; i < n; i++) h->api->set_output(h->pairs, i, asks);
    return run(h, DECODE, h->pairs);
}

/* Choices at one row, and the state behind it as the next row reads it. */
static int32_t read_row(struct head *h, int32_t row, int32_t ranked, int32_t *tokens, float *shares, float *fed) {
    float *logits = h->api->logits_row(h->context, row);
    if (!logits) return NO_LOGITS;
    hot_rank(logits, h->target->n_vocab, ranked, h->target->maxima, tokens, shares);
    const float *state = h->api->nextn_row(h->context, row);
    if (!state) return NO_STATES;
    if (h->gains) hot_norm(state, h->width, h->gain_eps, h->gains, fed);
    else memcpy(fed, state, sizeof(float) * h->width);
    return 0;
}

/* Write n pairs (ints: tokens [n], positions [n], sequences [n], output rows [n_out]; states [n, width]) over what the
 * cache held from each sequence's first one on, and rank the choices at the output rows; then go on from each with
 * its best token, `depth` levels in all. tokens and shares are [depth, n_out, ranked]; the states behind the last
 * level are in h->states [n_out, width]. */
int32_t hot_draft(struct head *h, int32_t n, const int32_t *ints, const float *states, int32_t n_out, int32_t depth,
                  int32_t ranked, int32_t *tokens, float *shares) {
    if (!h->context) return CLOSED;
    const int32_t *positions = ints + n, *sequences = ints + 2 * n, *outputs = ints + 3 * n;
    double started_at = now();
    h->api->clear(h->pairs);
    for (int32_t i = 0; i < n; i++) {
        if ((i == 0 || sequences[i] != sequences[i - 1]) &&
            !h->api->remove_cells(h->memory, sequences[i], positions[i], -1)) return NOT_CUT;
        add_pair(h, i, ints[i], positions[i], sequences[i], states + (size_t)i * h->width);
    }
    int32_t code = run_pairs(h, n, n_out > 0);
    h->native_s += now() - started_at;
    for (int32_t level = 0; !code && n_out; level++) {
        for (int32_t i = 0; i < n_out && !code; i++) {
            const int32_t at = (level * n_out + i) * ranked;
            code = read_row(h, level ? i : outputs[i], ranked, tokens + at, shares + at, h->states + (size_t)i * h->width);
        }
        if (code || level + 1 == depth) break;
        started_at = now();
        h->api->clear(h->pairs);
        for (int32_t i = 0; i < n_out; i++)
            add_pair(h, i, tokens[(level * n_out + i) * ranked], positions[outputs[i]] + level + 1,
                     sequences[outputs[i]], h->states + (size_t)i * h->width);
        code = run_pairs(h, n_out, true);
        h->native_s += now() - started_at;
    }
    return code;
}
