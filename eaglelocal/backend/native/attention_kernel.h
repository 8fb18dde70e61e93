/* The arithmetic of attention for one instruction set. attention.c includes this once for each, with
 *   NAME(x)    the function's name for this set
 *   TARGET     the compiler's attribute for it
 *   W          floats in a vector
 *   AT_ONCE    queries that are computed together: as many as the registers hold
 *   load_half  reads W halves (f16) as floats
 *
 * Every query is computed by the same operations in the same order, however many rows are computed with it: a row's
 * result does not depend on what was drafted behind it. */

typedef float NAME(vector) __attribute__((vector_size(4 * W)));
typedef float NAME(loose) __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t NAME(ints) __attribute__((vector_size(4 * W)));

#define VECTOR NAME(vector)
#define LOAD(address) ((VECTOR) * (const NAME(loose) *)(address))
#define STORE(address, value) (*(NAME(loose) *)(address) = (value))
#define KERNEL static inline __attribute__((always_inline)) TARGET

/* The sum of a vector's floats, by halves. */
KERNEL float NAME(sum)(VECTOR v) {
    typedef float four __attribute__((vector_size(16)));
    union {
        VECTOR whole;
        four quarters[W / 4];
    } parts = {v};
    four total = parts.quarters[0];
#if W == 16
    total = (total + parts.quarters[2]) + (parts.quarters[1] + parts.quarters[3]);
#elif W == 8
    total += parts.quarters[1];
#endif
    return (total[0] + total[2]) + (total[1] + total[3]);
}

/* exp(x) for x <= 0, to about 2 ulp (Cephes' polynomial); 0 below -87. */
KERNEL VECTOR NAME(exp)(VECTOR x) {
    const VECTOR magic = (VECTOR){} + 12582912.0f;
    VECTOR n = x * 1.44269504f + magic - magic;
    VECTOR r = x - n * 0.693359375f + n * 2.12194440e-4f;
    VECTOR p = (VECTOR){} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    NAME(ints) power = (__builtin_convertvector(n, NAME(ints)) + 127) << 23;
    VECTOR value = p * (VECTOR)power;
    NAME(ints) keep = x > -87.0f;
    return (VECTOR)((NAME(ints))value & keep);
}

KERNEL void NAME(convert)(int32_t type, const char *source, int32_t n, float *target) {
    switch (type) {
    case F16:
        for (int32_t i = 0; i < n; i += W)
            STORE(target + i, load_half(source + 2 * i));
        break;
    case F32:
        memcpy(target, source, sizeof(float) * (size_t)n);
        break;
    case BF16:
        for (int32_t i = 0; i < n; i++) {
            uint32_t bits = (uint32_t)((const uint16_t *)source)[i] << 16;
            memcpy(target + i, &bits, sizeof bits);
        }
        break;
    case Q8_0:
        for (; n > 0; n -= 32, source += 34, target += 32) {
            float scale = half_to_float(source);
            const int8_t *values = (const int8_t *)source + 2;
            for (int i = 0; i < 32; i++)
                target[i] = scale * values[i];
        }
        break;
    case Q4_0:
        for (; n > 0; n -= 32, source += 18, target += 32) {
            float scale = half_to_float(source);
            const uint8_t *pairs = (const uint8_t *)source + 2;
            for (int i = 0; i < 16; i++) {
                target[i] = scale * ((pairs[i] & 15) - 8);
                target[i + 16] = scale * ((pairs[i] >> 4) - 8);
            }
        }
        break;
    }
}

/* scores[query][cell] for 4 cells and n queries */
KERNEL void NAME(dot)(const int n, const float *const *queries, const float *keys, int32_t width, float **scores) {
    VECTOR sums[4][AT_ONCE];
    for (int c = 0; c < 4; c++)
        for (int i = 0; i < n; i++)
            sums[c][i] = (VECTOR){};
    for (int32_t d = 0; d < width; d += W) {
        VECTOR key[4];
        for (int c = 0; c < 4; c++)
            key[c] = LOAD(keys + c * width + d);
        for (int i = 0; i < n; i++) {
            VECTOR query = LOAD(queries[i] + d);
            for (int c = 0; c < 4; c++)
                sums[c][i] += key[c] * query;
        }
    }
    for (int i = 0; i < n; i++)
        for (int c = 0; c < 4; c++)
            scores[i][c] = NAME(sum)(sums[c][i]);
}

/* weighted[query] += scores[query][cell] * values[cell], in 4 vectors of the width at once */
KERNEL void NAME(mix)(const int n, const int vectors, const float *const *scores, const float *values, int32_t cells,
                      int32_t width, float *const *weighted) {
    VECTOR sums[AT_ONCE][4];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < vectors; j++)
            sums[i][j] = LOAD(weighted[i] + j * W);
    for (int32_t c = 0; c < cells; c++) {
        VECTOR value[4];
        for (int j = 0; j < vectors; j++)
            value[j] = LOAD(values + c * width + j * W);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < vectors; j++)
                sums[i][j] += value[j] * scores[i][c];
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < vectors; j++)
            STORE(weighted[i] + j * W, sums[i][j]);
}

KERNEL void NAME(mix_width)(const int n, const float *const *scores, const float *values, int32_t cells,
                            int32_t width, float *const *weighted) {
    float *part[AT_ONCE];
    int32_t d = 0;
    for (; d + 4 * W <= width; d += 4 * W) {
        for (int i = 0; i < n; i++)
            part[i] = weighted[i] + d;
        NAME(mix)(n, 4, scores, values + d, cells, width, part);
    }
    for (; d < width; d += W) {
        for (int i = 0; i < n; i++)
            part[i] = weighted[i] + d;
        NAME(mix)(n, 1, scores, values + d, cells, width, part);
    }
}

/* The largest of a vector's floats. */
KERNEL float NAME(largest)(VECTOR v) {
    float parts[W], largest;
    STORE(parts, v);
    largest = parts[0];
    for (int i = 1; i < W; i++)
        largest = parts[i] > largest ? parts[i] : largest;
    return largest;
}

/* Scales and masks one query's scores of a tile; cells behind the last get minus infinity. Returns the largest. */
KERNEL float NAME(mask_scores)(const struct attention *a, float *scores, const char *mask, int32_t cells) {
    VECTOR largest = (VECTOR){} - INFINITY;
    if (a->softcap != 0)
        for (int32_t c = 0; c < cells; c++)
            scores[c] = a->softcap * tanhf(scores[c] * a->scale);
    const float scale = a->softcap != 0 ? 1 : a->scale;
    for (int32_t c = cells; c < TILE; c++)
        scores[c] = -INFINITY;
    for (int32_t c = 0; c < TILE; c += W) {
        VECTOR score = LOAD(scores + c) * scale;
        if (mask && c + W <= cells)
            score += load_half(mask + 2 * c);
        else if (mask)
            for (int32_t i = 0; c + i < cells; i++)
                score[i] += half_to_float(mask + 2 * (c + i));
        NAME(ints) higher = score > largest;
        largest = (VECTOR)(((NAME(ints))score & higher) | ((NAME(ints))largest & ~higher));
        STORE(scores + c, score);
    }
    return NAME(largest)(largest);
}

/* Makes one query's scores of a tile exponentials, and counts them. */
KERNEL void NAME(soften)(const struct attention *a, float *scores, const char *mask, int32_t cells,
                         struct softmax *softmax, float *weighted) {
    const float largest = NAME(mask_scores)(a, scores, mask, cells);
    if (largest > softmax->largest) {
        const float shrink = softmax->sum == 0 ? 0 : expf(softmax->largest - largest);
        softmax->sum *= shrink;
        for (int32_t d = 0; d < a->v_width; d += W)
            STORE(weighted + d, LOAD(weighted + d) * shrink);
        softmax->largest = largest;
    }
    VECTOR sums = {};
    for (int32_t c = 0; c < TILE; c += W) {
        VECTOR power = NAME(exp)(LOAD(scores + c) - softmax->largest);
        STORE(scores + c, power);
        sums += power;
    }
    softmax->sum += NAME(sum)(sums);
}

KERNEL void NAME(few_queries)(const int n, const struct attention *a, const int32_t *active, const float *const *q,
                              const char *const *mask, int32_t cells, struct scratch *s) {
    float *scores[AT_ONCE], *weighted[AT_ONCE], *part[AT_ONCE];
    for (int i = 0; i < n; i++) {
        scores[i] = s->scores + active[i] * TILE;
        weighted[i] = s->weighted + (size_t)active[i] * a->v_width;
    }
    for (int32_t c = 0; c < cells; c += 4) {
        for (int i = 0; i < n; i++)
            part[i] = scores[i] + c;
        NAME(dot)(n, q, s->keys + c * a->k_width, a->k_width, part);
    }
    for (int i = 0; i < n; i++)
        NAME(soften)(a, scores[i], mask[i], cells, s->softmax + active[i], weighted[i]);
    NAME(mix_width)(n, (const float *const *)scores, s->values, cells, a->v_width, weighted);
}

TARGET static void NAME(span)(const struct attention *a, struct block block, int32_t first, int32_t end,
                              struct scratch *s) {
    const int32_t group = a->heads / a->kv_heads, queries = block.rows * group;
    const char *k = a->k + block.stream * a->k_stream + block.kv_head * a->k_head;
    const char *v = a->v + block.stream * a->v_stream + block.kv_head * a->v_head;
    const size_t k_bytes = count_bytes(a->k_type, a->k_width), v_bytes = count_bytes(a->v_type, a->v_width);
    memset(s->weighted, 0, sizeof(float) * (size_t)queries * a->v_width);
    for (int32_t i = 0; i < queries; i++)
        s->softmax[i] = (struct softmax){-INFINITY, 0};
    for (int32_t tile = first; tile < end; tile += TILE) {
        const int32_t cells = end - tile < TILE ? end - tile : TILE;
        const int32_t n = find_active(a, block, tile, cells, s->active);
        if (!n)
            continue;
        for (int32_t c = 0; c < cells; c++) {
            prefetch(k + (tile + c + TILE) * a->k_cell, k_bytes);
            prefetch(v + (tile + c + TILE) * a->v_cell, v_bytes);
            NAME(convert)(a->k_type, k + (tile + c) * a->k_cell, a->k_width, s->keys + c * a->k_width);
            NAME(convert)(a->v_type, v + (tile + c) * a->v_cell, a->v_width, s->values + c * a->v_width);
        }
        memset(s->keys + cells * a->k_width, 0, sizeof(float) * (size_t)((4 - cells % 4) % 4) * a->k_width);
        for (int32_t at = 0; at < n; at += AT_ONCE) {
            const int32_t m = n - at < AT_ONCE ? n - at : AT_ONCE;
            const float *q[AT_ONCE];
            const char *mask[AT_ONCE];
            for (int32_t i = 0; i < m; i++) {
                q[i] = find_query(a, block, s->active[at + i]);
                mask[i] = find_mask(a, block, s->active[at + i], tile);
            }
            if (m == AT_ONCE)
                NAME(few_queries)(AT_ONCE, a, s->active + at, q, mask, cells, s);
            else
                for (int32_t i = 0; i < m; i++)
                    NAME(few_queries)(1, a, s->active + at + i, q + i, mask + i, cells, s);
        }
    }
}

#undef VECTOR
#undef LOAD
#undef STORE
#undef KERNEL
