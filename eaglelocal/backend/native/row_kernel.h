/* Products of some rows with weights in Q4_K (groups of eight columns, as llama.cpp repacks them), Q4_1, Q5_K, Q6_K
 * and Q8_0, for one kind of processor: NAME, TARGET, AT_ONCE (rows that share what was unpacked of the weights) and
 * HAS_DOTS (VNNI).
 *
 * Integers are summed up within a block, which no order changes; the floating-point operations on its sums are those of
 * llama.cpp's kernels for one row, in their order. So are all results, to the last bit. */

/* Adds the products of weights [8 columns][4 of a sub-block] with four elements of a row to the columns' sums. */
static ALWAYS TARGET __m256i NAME(add_products)(__m256i sums, __m256i weights, const int8_t *row) {
    int32_t four;
    memcpy(&four, row, 4);
#if HAS_DOTS
    return _mm256_dpbusd_epi32(sums, weights, _mm256_set1_epi32(four));
#else
    return _mm256_add_epi16(sums, _mm256_maddubs_epi16(weights, _mm256_set1_epi32(four))); /* at most 8 * 2 * 15 * 127 */
#endif
}

/* Returns the columns' sums of a sub-block, each times its scale. */
static ALWAYS TARGET __m256i NAME(scale_sums)(__m256i sums, __m256i scales) {
#if HAS_DOTS
    return _mm256_mullo_epi32(sums, scales);
#else
    return _mm256_madd_epi16(sums, _mm256_or_si256(scales, _mm256_slli_epi32(scales, 16)));
#endif
}

/* Adds the products of 16-bit pairs. */
static ALWAYS TARGET __m256i NAME(add_pairs)(__m256i sums, __m256i a, __m256i b) {
#if HAS_DOTS
    return _mm256_dpwssd_epi32(sums, a, b);
#else
    return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
#endif
}

/* Reads the scales and minima of a block's sub-blocks, each with a column in a lane; minima twice, as 16-bit pairs. */
static ALWAYS TARGET void NAME(read_scales)(const struct q4_group *w, __m256i *scales, __m256i *minima) {
    const __m128i low6 = _mm_set1_epi8(0x3f), high2 = _mm_set1_epi8(0x30), low4 = _mm_set1_epi8(0x0f);
    /* of twelve bytes: 0 to 3 low bits of four scales, 4 to 7 of four minima, 8 to 11 of four of both; two bits more of
     * these are on top of the first eight. Columns are taken in the order of the weights: 0 1 4 5 2 3 6 7. */
    const __m128i scale_bytes = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i minimum_bytes = _mm_setr_epi8(4, 5, 12, 13, 6, 7, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1);
    for (int s = 0; s < 8; s++) {
        uint64_t first;
        uint32_t last;
        memcpy(&first, w->scales + 12 * s, 8);
        memcpy(&last, w->scales + 12 * s + 8, 4);
        const __m128i both = _mm_cvtsi64_si128((long long)first), shared = _mm_cvtsi32_si128((int)last);
        const __m128i rest = _mm_unpacklo_epi32(_mm_and_si128(shared, low4), _mm_and_si128(_mm_srli_epi16(shared, 4), low4));
        const __m128i upper = _mm_or_si128(rest, _mm_and_si128(_mm_srli_epi16(both, 2), high2));
        const __m128i all = _mm_unpacklo_epi64(_mm_and_si128(both, low6), upper);
        scales[s] = _mm256_cvtepu8_epi32(_mm_shuffle_epi8(all, scale_bytes));
        const __m256i minimum = _mm256_cvtepu8_epi32(_mm_shuffle_epi8(all, minimum_bytes));
        minima[s] = _mm256_or_si256(minimum, _mm256_slli_epi32(minimum, 16));
    }
}

/* Reads eight halves, one a column, in the order of the weights. */
static ALWAYS TARGET __m256 NAME(read_halves)(const uint16_t *halves, __m256i order) {
    return _mm256_permutevar8x32_ps(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)halves)), order);
}

static ALWAYS TARGET void NAME(multiply_q4)(const int num_rows, int64_t blocks, const struct q4_group *w, const char *rows,
                                            size_t row_bytes, float *out, size_t out_bytes) {
    const __m256i low4 = _mm256_set1_epi8(15), order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7); /* its own inverse */
    __m256 totals[AT_ONCE], total_minima[AT_ONCE];
    for (int r = 0; r < num_rows; r++)
        totals[r] = total_minima[r] = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, w++, rows += sizeof(struct q8_block)) {
        __m256i scales[8], minima[8], sums[AT_ONCE];
        NAME(read_scales)(w, scales, minima);
        for (int r = 0; r < num_rows; r++)
            sums[r] = _mm256_setzero_si256();
        for (int pair = 0; pair < 4; pair++) { /* of sub-blocks, in the low and the high halves of the same bytes */
            __m256i low[AT_ONCE], high[AT_ONCE];
            for (int r = 0; r < num_rows; r++)
                low[r] = high[r] = _mm256_setzero_si256();
            for (int part = 0; part < 4; part++) { /* eight elements of each column */
                const uint8_t *packed = w->qs + 256 * pair + 64 * part;
                __builtin_prefetch(packed + 2 * sizeof *w);
                const __m256i first = _mm256_loadu_si256((const __m256i *)packed);
                const __m256i last = _mm256_loadu_si256((const __m256i *)(packed + 32));
                const __m256 first_low = _mm256_castsi256_ps(_mm256_and_si256(first, low4));
                const __m256 last_low = _mm256_castsi256_ps(_mm256_and_si256(last, low4));
                const __m256 first_high = _mm256_castsi256_ps(_mm256_and_si256(_mm256_srli_epi16(first, 4), low4));
                const __m256 last_high = _mm256_castsi256_ps(_mm256_and_si256(_mm256_srli_epi16(last, 4), low4));
                const __m256i low_0 = _mm256_castps_si256(_mm256_shuffle_ps(first_low, last_low, 0x88));
                const __m256i low_4 = _mm256_castps_si256(_mm256_shuffle_ps(first_low, last_low, 0xdd));
                const __m256i high_0 = _mm256_castps_si256(_mm256_shuffle_ps(first_high, last_high, 0x88));
                const __m256i high_4 = _mm256_castps_si256(_mm256_shuffle_ps(first_high, last_high, 0xdd));
                for (int r = 0; r < num_rows; r++) {
                    const int8_t *row = ((const struct q8_block *)(rows + r * row_bytes))->qs + 64 * pair + 8 * part;
                    low[r] = NAME(add_products)(NAME(add_products)(low[r], low_0, row), low_4, row + 4);
                    high[r] = NAME(add_products)(NAME(add_products)(high[r], high_0, row + 32), high_4, row + 36);
                }
            }
            for (int r = 0; r < num_rows; r++)
                sums[r] = _mm256_add_epi32(sums[r], _mm256_add_epi32(NAME(scale_sums)(low[r], scales[2 * pair]),
                                                                     NAME(scale_sums)(high[r], scales[2 * pair + 1])));
        }
        const __m256 scale = NAME(read_halves)(w->d, order), minimum = NAME(read_halves)(w->dmin, order);
        for (int r = 0; r < num_rows; r++) {
            const struct q8_block *row = (const struct q8_block *)(rows + r * row_bytes);
            __m256i lowest = _mm256_setzero_si256();
            for (int s = 0; s < 8; s++) {
                int32_t two;
                memcpy(&two, row->sums + 2 * s, 4);
                lowest = NAME(add_pairs)(lowest, minima[s], _mm256_set1_epi32(two));
            }
            const __m256 row_scale = _mm256_set1_ps(row->d);
            totals[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r]), _mm256_mul_ps(scale, row_scale), totals[r]);
            total_minima[r] =
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(lowest), _mm256_mul_ps(minimum, row_scale), total_minima[r]);
        }
    }
    for (int r = 0; r < num_rows; r++)
        _mm256_storeu_ps((float *)((char *)out + r * out_bytes),
                         _mm256_sub_ps(_mm256_permutevar8x32_ps(totals[r], order),
                                       _mm256_permutevar8x32_ps(total_minima[r], order)));
}

/* Adds up the eight lanes of each row, as llama.cpp does, and what is to be added to them. */
static ALWAYS TARGET void NAME(store_sums)(const int num_rows, const __m256 *totals, const float *rest, float *out,
                                           size_t out_bytes) {
    for (int r = 0; r < num_rows; r++) {
        __m128 sum = _mm_add_ps(_mm256_extractf128_ps(totals[r], 1), _mm256_castps256_ps128(totals[r]));
        sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
        sum = _mm_add_ss(sum, _mm_movehdup_ps(sum));
        *(float *)((char *)out + r * out_bytes) = rest ? _mm_cvtss_f32(sum) + rest[r] : _mm_cvtss_f32(sum);
    }
}

/* Unpacks a quarter of the weights of half a block: bits 0 to 3 from `low`, bits 4 and 5 from two bits of `high`. */
static ALWAYS TARGET __m256i NAME(join_bits)(__m256i low, __m256i high) {
    return _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)), high);
}

static ALWAYS TARGET void NAME(multiply_q6)(const int num_rows, int64_t blocks, const struct q6_block *w, const char *rows,
                                            size_t row_bytes, float *out, size_t out_bytes) {
    __m256 totals[AT_ONCE];
    for (int r = 0; r < num_rows; r++)
        totals[r] = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, w++, rows += sizeof(struct q8_block)) {
        for (size_t line = 0; line < sizeof *w; line += 64)
            __builtin_prefetch((const char *)w + 1088 + line);
        const __m128i scales = _mm_loadu_si128((const __m128i *)w->scales);
        const __m256i all_scales = _mm256_cvtepi8_epi16(scales);
        __m256i sums[AT_ONCE];
        for (int r = 0; r < num_rows; r++)
            sums[r] = _mm256_setzero_si256();
        for (int half = 0; half < 2; half++) {
            const __m256i first = _mm256_loadu_si256((const __m256i *)(w->ql + 64 * half));
            const __m256i last = _mm256_loadu_si256((const __m256i *)(w->ql + 64 * half + 32));
            const __m256i high = _mm256_loadu_si256((const __m256i *)(w->qh + 32 * half));
            const __m256i two_bits = _mm256_set1_epi8(0x30);
            const __m256i weights[4] = {
                NAME(join_bits)(first, _mm256_and_si256(_mm256_slli_epi16(high, 4), two_bits)),
                NAME(join_bits)(last, _mm256_and_si256(_mm256_slli_epi16(high, 2), two_bits)),
                NAME(join_bits)(_mm256_srli_epi16(first, 4), _mm256_and_si256(high, two_bits)),
                NAME(join_bits)(_mm256_srli_epi16(last, 4), _mm256_and_si256(_mm256_srli_epi16(high, 2), two_bits)),
            };
            for (int part = 0; part < 4; part++) {
                const int at = 8 * half + 2 * part; /* scales of the 16 elements in each half of a vector */
                const __m256i scale = _mm256_set_m128i(_mm_set1_epi16(w->scales[at + 1]), _mm_set1_epi16(w->scales[at]));
                for (int r = 0; r < num_rows; r++) {
                    const int8_t *row = ((const struct q8_block *)(rows + r * row_bytes))->qs + 128 * half + 32 * part;
                    const __m256i products =
                        _mm256_maddubs_epi16(weights[part], _mm256_loadu_si256((const __m256i *)row));
                    sums[r] = NAME(add_pairs)(sums[r], scale, products);
                }
            }
        }
        const float scale = _cvtsh_ss(w->d);
        for (int r = 0; r < num_rows; r++) {
            const struct q8_block *row = (const struct q8_block *)(rows + r * row_bytes);
            const __m256i row_sums = _mm256_loadu_si256((const __m256i *)row->sums);
            const __m256i offset = _mm256_slli_epi32(_mm256_madd_epi16(row_sums, all_scales), 5); /* of 32 a weight */
            const __m256 whole = _mm256_cvtepi32_ps(_mm256_sub_epi32(sums[r], offset));
            totals[r] = _mm256_fmadd_ps(_mm256_set1_ps(row->d * scale), whole, totals[r]);
        }
    }
    NAME(store_sums)(num_rows, totals, NULL, out, out_bytes);
}

static ALWAYS TARGET void NAME(multiply_q5)(const int num_rows, int64_t blocks, const struct q5_block *w, const char *rows,
                                            size_t row_bytes, float *out, size_t out_bytes) {
    const __m256i low4 = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16);
    __m256 totals[AT_ONCE];
    float minima[AT_ONCE];
    for (int r = 0; r < num_rows; r++)
        totals[r] = _mm256_setzero_ps(), minima[r] = 0;
    for (int64_t b = 0; b < blocks; b++, w++, rows += sizeof(struct q8_block)) {
        for (size_t line = 0; line < sizeof *w; line += 64)
            __builtin_prefetch((const char *)w + 1088 + line);
        int16_t scales[8];
        __m256i sums[AT_ONCE];
        for (int s = 0; s < 8; s++)
            scales[s] = (int16_t)(s < 4 ? w->scales[s] & 63 : (w->scales[s + 4] & 15) | w->scales[s - 4] >> 6 << 4);
        uint8_t lowest[8];
        for (int s = 0; s < 8; s++)
            lowest[s] = (uint8_t)(s < 4 ? w->scales[s + 4] & 63 : w->scales[s + 4] >> 4 | w->scales[s] >> 6 << 4);
        const __m128i lowest_16 = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)lowest));
        for (int r = 0; r < num_rows; r++)
            sums[r] = _mm256_setzero_si256();
        const __m256i high = _mm256_loadu_si256((const __m256i *)w->qh);
        for (int pair = 0; pair < 4; pair++) { /* of sub-blocks, in the low and the high halves of the same bytes */
            const __m256i packed = _mm256_loadu_si256((const __m256i *)(w->qs + 32 * pair));
            const __m128i to_low = _mm_cvtsi32_si128(2 * pair), to_high = _mm_cvtsi32_si128(2 * pair + 1);
            const __m256i bits[2] = {
                _mm256_and_si256(_mm256_slli_epi16(_mm256_srl_epi16(high, to_low), 4), fifth),
                _mm256_and_si256(_mm256_slli_epi16(_mm256_srl_epi16(high, to_high), 4), fifth),
            };
            const __m256i weights[2] = {
                _mm256_or_si256(_mm256_and_si256(packed, low4), bits[0]),
                _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(packed, 4), low4), bits[1]),
            };
            for (int half = 0; half < 2; half++) {
                const __m256i scale = _mm256_set1_epi16(scales[2 * pair + half]);
                for (int r = 0; r < num_rows; r++) {
                    const int8_t *row = ((const struct q8_block *)(rows + r * row_bytes))->qs + 64 * pair + 32 * half;
                    const __m256i products = _mm256_maddubs_epi16(weights[half], _mm256_loadu_si256((const __m256i *)row));
                    sums[r] = NAME(add_pairs)(sums[r], scale, products);
                }
            }
        }
        const float scale = _cvtsh_ss(w->d), minimum = _cvtsh_ss(w->dmin);
        for (int r = 0; r < num_rows; r++) {
            const struct q8_block *row = (const struct q8_block *)(rows + r * row_bytes);
            const __m128i row_sums = _mm_hadd_epi16(_mm_loadu_si128((const __m128i *)row->sums),
                                                    _mm_loadu_si128((const __m128i *)(row->sums + 8)));
            __m128i products = _mm_madd_epi16(lowest_16, row_sums);
            products = _mm_add_epi32(products, _mm_shuffle_epi32(products, 0x4e));
            products = _mm_add_epi32(products, _mm_shuffle_epi32(products, 0xb1));
            const float factor = -row->d * minimum;
            minima[r] = __builtin_fmaf(factor, (float)_mm_cvtsi128_si32(products), minima[r]);
            totals[r] = _mm256_fmadd_ps(_mm256_set1_ps(row->d * scale), _mm256_cvtepi32_ps(sums[r]), totals[r]);
        }
    }
    NAME(store_sums)(num_rows, totals, minima, out, out_bytes);
}

/* Reads a block of Q4_1, or of Q8_0. */
static ALWAYS TARGET __m256i NAME(read_short)(const uint16_t *block, const bool has_minimum) {
    if (!has_minimum)
        return _mm256_loadu_si256((const __m256i *)(block + 1));
    const __m128i packed = _mm_loadu_si128((const __m128i *)(block + 2));
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(packed, 4), packed), _mm256_set1_epi8(15));
}

#if HAS_DOTS
#define SUM __m512 /* of two rows */
#define ADD_ROWS(i) \
    if (num_rows > 2 * i) { \
        const __m512i elements = _mm512_loadu_si512(rows + 64 * i), sums = _mm512_dpbusd_epi32(offset, elements, weights); \
        const __m512 factor = _mm512_permutexvar_ps(_mm512_add_epi32(_mm512_set1_epi32(2 * i), second), factors); \
        total##i = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(sums), total##i); \
    }
#else
#define SUM __m256 /* of a row */
#define ADD_ROWS(i) \
    if (num_rows > i) { \
        const __m256i elements = _mm256_load_si256((const __m256i *)(rows + 32 * i)); \
        const __m256i products = _mm256_maddubs_epi16(positive, _mm256_sign_epi8(elements, weights)); \
        const __m256i sums = _mm256_madd_epi16(_mm256_set1_epi16(1), products); \
        const __m256 factor = _mm256_mul_ps(scale, _mm256_broadcast_ss(scales + i)); \
        total##i = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(sums), total##i); \
    }
#endif

/* Multiplies with blocks of 32. The totals are no array, which the compiler would keep in memory. */
static ALWAYS TARGET void NAME(multiply_short)(const int num_rows, int64_t blocks, const char *w, const bool has_minimum,
                                               const char *rows, float *out, size_t out_bytes) {
    const size_t block_bytes = has_minimum ? sizeof(struct q4_1_block) : sizeof(struct q8_0_block);
    SUM total0 = {0}, total1 = {0}, total2 = {0}, total3 = {0};
    float rest[AT_ONCE] = {0};
#if HAS_DOTS
    const __m512i second = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(1), 1);
    const __mmask8 mask = (__mmask8)((1 << num_rows) - 1); /* what lies in the place of other rows is arbitrary */
    __m256 minima = _mm256_setzero_ps(), alone = minima;   /* of all rows; total of a row without others */
#endif
    for (int64_t b = 0; b < blocks; b++, w += block_bytes, rows += AT_ONCE * SHORT_BYTES) {
        const uint16_t *block = (const uint16_t *)w;
        const __m256i read = NAME(read_short)(block, has_minimum);
        const float *scales = (const float *)(rows + AT_ONCE * SHORT_BLOCK);
        int32_t two;
        memcpy(&two, block, sizeof two);
        const __m256 halves = _mm256_cvtph_ps(_mm_set1_epi32(two)); /* the scale and, of Q4_1, the minimum in turn */
        const __m256 scale = _mm256_moveldup_ps(halves), minimum = _mm256_movehdup_ps(halves);
        __builtin_prefetch(w + 1088);
#if HAS_DOTS
        if (num_rows == 1) { /* in half the width, which takes less time */
            const __m256i elements = _mm256_load_si256((const __m256i *)rows), none = _mm256_setzero_si256();
            const __m256i raise = _mm256_set1_epi8((char)RAISED);
            const __m256i offset = _mm256_sub_epi32(none, _mm256_dpbusd_epi32(none, raise, read));
            const __m256i sums = _mm256_dpbusd_epi32(offset, elements, read);
            const __m256 factor = _mm256_mul_ps(scale, _mm256_broadcast_ss(scales));
            alone = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(sums), alone);
            if (has_minimum)
                minima = _mm256_maskz_fmadd_ps(1, minimum, _mm256_broadcast_ss(scales + AT_ONCE), minima);
            continue;
        }
        const __m512i weights = _mm512_broadcast_i64x4(read), raise = _mm512_set1_epi8((char)RAISED);
        const __m512i offset =
            _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_dpbusd_epi32(_mm512_setzero_si512(), raise, weights));
        const __m512 factors = _mm512_castps256_ps512(_mm256_maskz_mul_ps(mask, scale, _mm256_loadu_ps(scales)));
        if (has_minimum)
            minima = _mm256_maskz_fmadd_ps(mask, minimum, _mm256_loadu_ps(scales + AT_ONCE), minima);
#else
        const __m256i weights = read, positive = _mm256_abs_epi8(weights);
        for (int r = 0; has_minimum && r < num_rows; r++)
            rest[r] = __builtin_fmaf(_mm256_cvtss_f32(minimum), scales[AT_ONCE + r], rest[r]);
#endif
        ADD_ROWS(0)
        ADD_ROWS(1)
        ADD_ROWS(2)
        ADD_ROWS(3)
    }
#if HAS_DOTS
    _mm256_storeu_ps(rest, minima);
    const __m512 pairs[] = {total0, total1, total2, total3};
    __m256 totals[AT_ONCE];
    for (int i = 0; i < 4; i++) {
        totals[2 * i] = num_rows == 1 ? alone : _mm512_castps512_ps256(pairs[i]);
        totals[2 * i + 1] = _mm512_extractf32x8_ps(pairs[i], 1);
    }
#else
    const __m256 totals[] = {total0, total1, total2, total3};
#endif
    NAME(store_sums)(num_rows, totals, has_minimum ? rest : NULL, out, out_bytes);
}
#undef SUM
#undef ADD_ROWS

static ALWAYS TARGET void NAME(multiply_q4_1)(const int num_rows, int64_t blocks, const void *w, const char *rows,
                                              size_t row_bytes, float *out, size_t out_bytes) {
    (void)row_bytes;
    NAME(multiply_short)(num_rows, blocks, w, true, rows, out, out_bytes);
}

static ALWAYS TARGET void NAME(multiply_q8_0)(const int num_rows, int64_t blocks, const void *w, const char *rows,
                                              size_t row_bytes, float *out, size_t out_bytes) {
    (void)row_bytes;
    NAME(multiply_short)(num_rows, blocks, w, false, rows, out, out_bytes);
}

#if AT_ONCE > 4
#define MORE_ROWS(kind) \
    MULTIPLY(kind, 5); \
    MULTIPLY(kind, 6); \
    MULTIPLY(kind, 7); \
    MULTIPLY(kind, 8)
#else
#define MORE_ROWS(kind)
#endif
#define MULTIPLY(kind, n) \
    case n: \
        NAME(multiply_##kind)(n, blocks, weights, rows, row_bytes, out, out_bytes); \
        return
/* Multiplies 1 to AT_ONCE quantized rows with a column of weights, or with eight of Q4_K. */
#define KERNEL(kind) \
    static TARGET void NAME(rows_##kind)(int num_rows, int64_t blocks, const void *weights, const char *rows, \
                                         size_t row_bytes, float *out, size_t out_bytes) { \
        switch (num_rows) { \
            MULTIPLY(kind, 1); \
            MULTIPLY(kind, 2); \
            MULTIPLY(kind, 3); \
            MULTIPLY(kind, 4); \
            MORE_ROWS(kind); \
        } \
    }
KERNEL(q4)
KERNEL(q5)
KERNEL(q6)
KERNEL(q8_0)
KERNEL(q4_1)
#undef KERNEL
#undef MULTIPLY
#undef MORE_ROWS
