/* Draws a request's tokens among the few that its filters can leave: llama.cpp would copy the whole vocabulary for each
 * token, and sort as much of it as needed. */
#include <stdlib.h>

#include "native_step.h"

static int by_logit(const void *left, const void *right) {
    const struct candidate *a = left, *b = right;
    if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return a->token < b->token ? -1 : a->token > b->token;
}

static int by_token(const void *left, const void *right) {
    const struct candidate *a = left, *b = right;
    return a->token < b->token ? -1 : a->token > b->token;
}

struct best { /* a heap of the `count` largest numbers offered, earlier ones first if equal; the least is at its root */
    struct candidate *heap;
    int32_t count, found;
};

static void sift_down(struct best *b, int32_t at) {
    const struct candidate candidate = b->heap[at];
    for (int32_t child; (child = 2 * at + 1) < b->found; at = child) {
        if (child + 1 < b->found && by_logit(b->heap + child, b->heap + child + 1) < 0) child++;
        if (by_logit(&candidate, b->heap + child) > 0) break;
        b->heap[at] = b->heap[child];
    }
    b->heap[at] = candidate;
}

static void add_largest(struct best *b, const float *x, int32_t from, int32_t end) {
    for (int32_t i = from; i < end; i++) {
        const bool is_full = b->found == b->count;
        if (!(is_full ? x[i] > b->heap[0].logit : x[i] >= -INFINITY)) continue;
        b->heap[is_full ? 0 : b->found++] = (struct candidate){i, x[i], 0};
        if (is_full) sift_down(b, 0);
        else if (b->found == b->count)
            for (int32_t at = b->found / 2; at--;) sift_down(b, at);
    }
}

/* Put the `count` most likely tokens into out, and return how many there are (NaN does not count); if it is `count`,
 * the least is first. maxima: of x's blocks. Only blocks whose maxima are among the `count` largest can contain any. */
static int32_t most_likely(const float *x, int32_t n, int32_t count, const float *maxima, struct candidate *out) {
    const int32_t num_blocks = (n + BLOCK - 1) / BLOCK;
    struct best blocks = {out, count, 0}, tokens = {out, count, 0};
    float least = -INFINITY;
    if (num_blocks > count) {
        add_largest(&blocks, maxima, 0, num_blocks);
        least = out[0].logit;
    }
    for (int32_t block = 0; block < num_blocks; block++) {
        const float limit = tokens.found == count && out[0].logit > least ? out[0].logit : least;
        if (maxima[block] >= limit) add_largest(&tokens, x, block * BLOCK, block * BLOCK + block_size(block, n));
    }
    return tokens.found;
}

typedef int32_t four_ints __attribute__((vector_size(16)));

/* Return exp of each, with a relative error of some 2e-7; results below 1e-37 are negligible. */
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

/* Sum probability mass by distance from the top logit, in steps; the last step takes all the rest. */
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

/* Put the most likely tokens that make up top_p of the whole vocabulary into out [2 n], those of the last step sorted;
 * return their number. */
static int32_t nucleus(const float *x, int32_t n, float top_p, float top, const float *maxima, struct candidate *out) {
    double masses[STEPS] = {0}, total = 0, sum = 0;
    spread_mass(x, n, top, masses);
    for (int32_t step = 0; step < STEPS; step++) total += masses[step];
    int32_t last = 0, found = 0, num_last = 0;
    for (; last < STEPS - 1 && sum + masses[last] < top_p * total; last++) sum += masses[last];
    for (int32_t block = 0; block * BLOCK < n; block++) {
        if (!(step_below(top, maxima[block]) <= last)) continue;
        for (int32_t i = block * BLOCK; i < block * BLOCK + block_size(block, n); i++) {
            if (!(x[i] > -INFINITY) || step_below(top, x[i]) > last) continue;
            const struct candidate one = {i, x[i], 0};
            if (step_below(top, x[i]) < last) out[found++] = one;
            else out[n + num_last++] = one;
        }
    }
    qsort(out + n, num_last, sizeof *out, by_logit);
    for (int32_t i = 0; i < num_last && (sum < top_p * total || !found); i++) {
        sum += expf(out[n + i].logit - top);
        out[found++] = out[n + i];
    }
    return found;
}

/* Put all tokens that min_p may leave into out; return their number. llama.cpp then applies min_p itself. */
static int32_t above_min_p(const float *x, int32_t n, float min_p, float top, const float *maxima, struct candidate *out) {
    const float least = top + logf(min_p) - 1e-3f;
    int32_t found = 0;
    for (int32_t block = 0; block * BLOCK < n; block++) {
        if (!(maxima[block] >= least)) continue;
        for (int32_t i = block * BLOCK; i < block * BLOCK + block_size(block, n); i++)
            if (x[i] >= least) out[found++] = (struct candidate){i, x[i], 0};
    }
    return found;
}

/* Return the index of the first largest number, leaving out NaN; -1 if all are NaN. */
static int32_t largest_number(const float *x, int32_t n) {
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (best < 0 ? x[i] == x[i] : x[i] > x[best]) best = i;
    return best;
}

/* Put the candidates of a row x [n] into d->candidates; return their number. With a rank: the most likely tokens, and all
 * touched ones, whose logits the sampler changes before it ranks; sorted by token, because of equals it may take the
 * first. With rank 0 none may be touched, and the order is arbitrary. At least one, or none if all are NaN. */
int32_t native_candidates(const struct draw *d, const float *x, int32_t n, int32_t n_touched, const int32_t *touched, float *maxima) {
    struct candidate *out = d->candidates;
    find_block_maxima(x, n, maxima);
    int32_t found;
    if (d->rank) {
        const int32_t count = d->rank + n_touched < n ? d->rank + n_touched : n; /* enough if the touched ones drop out */
        found = most_likely(x, n, count, maxima, out);
        const struct candidate least = out[0];
        for (int32_t i = 0; i < n_touched && found >= count; i++) {
            const struct candidate one = {touched[i], x[touched[i]], 0};
            if (one.logit >= -INFINITY && by_logit(&least, &one) < 0) out[found++] = one;
        }
        qsort(out, found, sizeof *out, by_token);
    } else {
        const float top = x[first_largest(x, n, maxima)];
        found = d->top_p < 1 ? nucleus(x, n, d->top_p, top, maxima, out) : above_min_p(x, n, d->min_p, top, maxima, out);
    }
    if (!found) { /* infinite logits have no probabilities */
        const int32_t token = largest_number(x, n);
        if (token >= 0) out[found++] = (struct candidate){token, x[token], 0};
    }
    return found;
}

/* Copy x [n] to out, with NaN for tokens whose bit is not set; return out. */
static const float *mask_logits(float *out, const float *x, int32_t n, const uint8_t *mask, int32_t mask_bytes) {
    for (int32_t from = 0; from < n; from += 8) {
        const int32_t size = n - from < 8 ? n - from : 8;
        const uint8_t bits = from / 8 < mask_bytes ? mask[from / 8] : 0;
        if (bits == 255) memcpy(out + from, x + from, sizeof *x * size);
        else for (int32_t i = 0; i < size; i++) out[from + i] = bits >> i & 1 ? x[from + i] : NAN;
    }
    return out;
}

/* Draw a token at an output row of the last decode, among those whose bits are set in mask (NULL: all), and let the
 * sampler accept it. touched: distinct tokens whose logits the sampler changes. */
int32_t native_draw(struct target *t, struct draw *d, int32_t row, int32_t n_touched, const int32_t *touched,
                 const uint8_t *mask, int32_t mask_bytes) {
    const float *logits = t->context ? t->api->logits_row(t->context, row) : NULL;
    if (!logits) return UNKNOWN;
    if (mask) logits = mask_logits(d->masked_logits, logits, t->n_vocab, mask, mask_bytes);
    int32_t found = native_candidates(d, logits, t->n_vocab, n_touched, touched, t->block_maxima);
    if (!found && mask) return NONE_FITS;
    if (!found) d->candidates[found++] = (struct candidate){0, 0, 0}; /* all are NaN: token 0, as in native_best_token */
    struct candidates candidates = {d->candidates, (size_t)found, -1, false};
    const double started_at = now();
    t->api->apply(d->sampler, &candidates);
    const bool was_drawn = candidates.selected >= 0 && (size_t)candidates.selected < candidates.size;
    const int32_t token = was_drawn ? candidates.data[candidates.selected].token : UNKNOWN;
    if (was_drawn) t->api->accept(d->sampler, token);
    t->native_s += now() - started_at;
    return token;
}
