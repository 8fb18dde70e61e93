/* Passes the rows of a step to llama.cpp and reads its results: one call each time the engine uses llama.cpp.
 *
 * llama.cpp streams the whole model through the CPU caches, so code that runs after it runs with cold caches. Python,
 * ctypes or numpy would then take many microseconds per call, this code next to nothing.
 *
 * Calls llama.cpp through addresses that it is given (backend/native_step.py mirrors the structs) and includes none
 * of its headers: the staging calls have no public one. Owns no memory; state that is kept between calls is in the
 * structs that are passed in, each of which is used by one thread at a time.
 */
#include "native_step.h"

/* Return the size of a struct of native_step.h: Python checks that its own has the same size. */
int32_t native_size(int32_t number) {
    const size_t sizes[] = {sizeof(struct api), sizeof(struct target), sizeof(struct head), sizeof(struct draw)};
    return (int32_t)sizes[number];
}

/* ---- ranking */

/* Find the `count` most likely tokens, best first, and each one's confidence if those before it are wrong: its softmax
 * among itself and those after it (one over all would cost more than the drafting), which is always 1 for the last; 0
 * for tokens that cannot be drafted. x [n] is modified, but restored; one pass, whatever the count. The logits are
 * x times `scale`. */
static void rank_scaled(float *x, int32_t n, float scale, int32_t count, float *maxima, int32_t *tokens, float *shares) {
    find_block_maxima(x, n, maxima);
    for (int32_t k = 0; k < count; k++) {
        const int32_t token = tokens[k] = first_largest(x, n, maxima);
        shares[k] = x[token];
        if (k + 1 == count) break;
        x[token] = -INFINITY;
        maxima[token / BLOCK] = largest(x + token - token % BLOCK, block_size(token / BLOCK, n));
    }
    for (int32_t k = count - 1; k-- > 0;) x[tokens[k]] = shares[k]; /* backwards: a token at -inf may be there twice */
    for (int32_t k = 0; k < count; k++) {
        float total = 1;
        for (int32_t later = k + 1; later < count; later++) total += expf(scale * (shares[later] - shares[k]));
        shares[k] = shares[k] > -INFINITY ? 1 / total : 0;
    }
}

void native_rank(float *x, int32_t n, int32_t count, float *maxima, int32_t *tokens, float *shares) {
    rank_scaled(x, n, 1, count, maxima, tokens, shares);
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

/* Set out = x / rms(x), times gains [n] unless they are NULL. */
void native_norm(const float *x, int32_t n, float eps, const float *gains, float *out) {
    const float scale = inverse_rms(x, n, eps);
    for (int32_t i = 0; i < n; i++) out[i] = x[i] * scale * (gains ? gains[i] : 1.0f);
}

/* ---- the target, and the head's encoder */

/* Find the addresses of the tapped rows of the last decode, once for all rows: each call waits for every device. */
static int32_t find_tapped_rows(struct target *t) {
    for (int32_t tap = 0; tap < t->n_taps; tap++) {
        if (t->taps[tap] == t->normed_tap) t->tapped[tap] = t->has_normed ? t->api->normed(t->context) : NULL;
        else if (t->taps[tap] == t->nextn_tap) t->tapped[tap] = t->api->nextn(t->context);
        else t->tapped[tap] = t->api->layer_input(t->context, t->taps[tap]);
        if (!t->tapped[tap]) return NO_TAPS;
    }
    return 0;
}

/* Copy the tapped states of a row [n_taps, tap_width], after find_tapped_rows; eps is tap_eps of struct head. */
static void copy_tapped(const struct target *t, int32_t row, float eps, float *out) {
    for (int32_t tap = 0; tap < t->n_taps; tap++, out += t->tap_width) {
        const float *state = t->tapped[tap] + (size_t)row * t->tap_width;
        if (eps < 0) memcpy(out, state, sizeof(float) * t->tap_width);
        else native_norm(state, t->tap_width, eps, NULL, out);
    }
}

/* Copy the tapped states of n rows of the last decode [n, n_taps, tap_width]. */
int32_t native_copy_tapped(struct target *t, int32_t n, const int32_t *rows, float eps, float *out) {
    const int32_t code = find_tapped_rows(t);
    for (int32_t i = 0; i < n && !code; i++) copy_tapped(t, rows[i], eps, out + (size_t)i * t->n_taps * t->tap_width);
    return code;
}

static int32_t run(struct head *h, int type, void *batch) {
    mark_decode(true);
    const int32_t code = h->api->process(h->context, type, batch);
    h->api->synchronize(h->context);
    mark_decode(false);
    return code;
}

/* Put the features of a row into h->row, normed for the encoder: of kept rows, or (NULL) of the target's last decode,
 * after find_tapped_rows. */
static void load_row(struct head *h, int32_t row, const float *kept) {
    const int32_t n_taps = h->target->n_taps, width = h->target->tap_width;
    if (!kept) {
        copy_tapped(h->target, row, h->tap_eps, h->row);
        return;
    }
    kept += (size_t)row * n_taps * width;
    if (h->tap_eps < 0) memcpy(h->row, kept, sizeof(float) * n_taps * width);
    else for (int32_t i = 0; i < n_taps * width; i += width) native_norm(kept + i, width, h->tap_eps, NULL, h->row + i);
}

/* Encode the rows first to end - 1 of native_encode, no more than n_batch. */
static int32_t encode_batch(struct head *h, int32_t first, int32_t end, const int32_t *rows, const float *kept) {
    const struct api *api = h->api;
    /* llama.cpp assigns encoder rows to sequence 0: their positions must follow those in its cache */
    int32_t position = api->last_position(h->memory, 0) + 1;
    const struct embedding row = {h->row, 1, h->row_size};
    api->clear(h->features);
    for (int32_t i = first; i < end; i++, position++) {
        load_row(h, rows ? rows[i] : i, kept);
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

/* Copy the rows of native_encode as states, for a head without encoder: its width is that of a tapped row. */
static void copy_rows(struct head *h, int32_t n, const int32_t *rows, const float *kept) {
    for (int32_t i = 0; i < n; i++) {
        const int32_t row = rows ? rows[i] : i;
        float *out = h->encoded + (size_t)i * h->width;
        if (kept) memcpy(out, kept + (size_t)row * h->width, sizeof(float) * h->width);
        else copy_tapped(h->target, row, -1, out);
    }
}

/* Encode n rows: of the target's last decode those in `rows`, or (NULL) the first n; or `kept` [n, taps, tap_width]. Their
 * states are then in h->encoded. */
int32_t native_encode(struct head *h, int32_t n, const int32_t *rows, const float *kept) {
    if (!h->context) return CLOSED;
    h->num_encoded = 0; /* encode_ahead sets it again */
    int32_t code = kept ? 0 : find_tapped_rows(h->target);
    if (!code && !h->has_encoder) copy_rows(h, n, rows, kept);
    for (int32_t first = 0; h->has_encoder && first < n && !code; first += h->n_batch) {
        const int32_t end = first + h->n_batch < n ? first + h->n_batch : n;
        code = encode_batch(h, first, end, rows, kept);
    }
    return code;
}

/* Encode all rows in the same call, if states of the last decode were read: they will be read again. Another call costs
 * much more than encoding the few rows that are rejected later. */
static int32_t encode_ahead(struct head *h, int32_t n) {
    const bool is_needed = h->were_states_read;
    h->were_states_read = false;
    h->num_encoded = 0;
    if (!is_needed) return 0;
    const int32_t code = native_encode(h, n, NULL, NULL);
    h->num_encoded = code ? 0 : n;
    return code;
}

/* Return the most likely token of an output row of the last decode; UNKNOWN if it has no logits. */
int32_t native_best_token(struct target *t, int32_t row) {
    const float *logits = t->context ? t->api->logits_row(t->context, row) : NULL;
    if (!logits) return UNKNOWN;
    find_block_maxima(logits, t->n_vocab, t->block_maxima);
    return first_largest(logits, t->n_vocab, t->block_maxima);
}

/* Mark the sequences whose best tokens were read after the last decode: they will be read after this one too. */
static void mark_greedy_sequences(struct target *t) {
    for (int32_t i = 0; i < t->num_rows; i++) t->is_greedy[t->row_sequences[i]] = false;
    for (int32_t i = 0; i < t->num_rows; i++) {
        if (t->best_tokens[i] == ALREADY_READ) t->is_greedy[t->row_sequences[i]] = true;
        t->best_tokens[i] = UNKNOWN;
    }
    t->num_rows = 0;
}

/* Find the best tokens of marked sequences in the same call: at their first rows, and further while drafts agree. */
static void find_best_tokens(struct target *t, int32_t n, const int32_t *tokens, const int32_t *positions) {
    for (int32_t i = 0; i < n; i++) {
        const bool follows = i && t->row_sequences[i] == t->row_sequences[i - 1] &&
                             positions[i] == positions[i - 1] + 1 && t->outputs[i - 1];
        if (t->outputs[i] && t->is_greedy[t->row_sequences[i]] && (!follows || t->best_tokens[i - 1] == tokens[i]))
            t->best_tokens[i] = native_best_token(t, i);
    }
    t->num_rows = n;
}

/* Wait for all work of the context. The time since the submission counts as llama.cpp's. */
static void wait_for_device(struct target *t) {
    t->api->synchronize(t->context);
    mark_decode(false);
    t->native_s += now() - t->submitted_at;
}

/* Ask for the states after the output norm where all n rows are outputs; of other rows llama.cpp would compute logits. */
static void ask_for_normed(struct target *t, int32_t n) {
    if (t->normed_tap < 0) return;
    t->has_normed = true;
    for (int32_t i = 0; i < n; i++) t->has_normed &= t->outputs[i];
    t->api->set_normed(t->context, t->has_normed);
}

/* Remove cells (of pairs of sequence and first position), then start to decode n rows. ints: tokens [n], positions [n],
 * outputs [n], numbers of sequences [n], all sequences, removals [num_removals, 2]. On a GPU the work goes on after the
 * return, until native_collect, to which the same ints are passed. */
int32_t native_submit(struct target *t, int32_t n, int32_t num_removals, const int32_t *ints) {
    if (!t->context) return CLOSED;
    const int32_t *outputs = ints + 2 * n, *counts = ints + 3 * n, *sequences = ints + 4 * n;
    mark_greedy_sequences(t);
    for (int32_t i = 0; i < n; sequences += counts[i++]) {
        t->row_sequences[i] = sequences[0];
        t->sequences[i] = sequences;
        t->outputs[i] = outputs[i] != 0;
    }
    ask_for_normed(t, n);
    const struct rows rows = {n, ints, NULL, ints + n, counts, t->sequences, t->outputs};
    t->submitted_at = now();
    mark_decode(true);
    bool are_removed = true;
    for (const int32_t *pair = sequences; pair < sequences + 2 * num_removals; pair += 2)
        are_removed &= t->api->remove_cells(t->memory, pair[0], pair[1], -1);
    const int32_t code = are_removed ? t->api->decode(t->context, rows) : CANNOT_REMOVE;
    if (code) wait_for_device(t);
    return code;
}

/* Wait until the n submitted rows are decoded, and compute what will be read of them. */
int32_t native_collect(struct target *t, int32_t n, const int32_t *ints) {
    if (!t->context) return CLOSED;
    wait_for_device(t);
    find_best_tokens(t, n, ints, ints + n);
    return t->head ? encode_ahead(t->head, n) : 0;
}

/* Submit and collect in one call, where no device computes beside the processor. */
int32_t native_decode(struct target *t, int32_t n, int32_t num_removals, const int32_t *ints) {
    const int32_t code = native_submit(t, n, num_removals, ints);
    return code ? code : native_collect(t, n, ints);
}

int32_t native_rank_rows(struct target *t, int32_t n, const int32_t *rows, int32_t ranked, int32_t *tokens, float *shares) {
    for (int32_t i = 0; i < n; i++) {
        float *logits = t->api->logits_row(t->context, rows[i]);
        if (!logits) return NO_LOGITS;
        native_rank(logits, t->n_vocab, ranked, t->block_maxima, tokens + i * ranked, shares + i * ranked);
    }
    return 0;
}

/* ---- the head's decoder */

static void add_pair(struct head *h, int32_t row, int32_t token, int32_t position, int32_t sequence, const float *state) {
    const struct embedding embedding = {state, 1, (size_t)h->width};
    h->api->add_token(h->pairs, sequence, token);
    h->api->set_embedding(h->pairs, row, embedding); /* copies the state */
    h->api->set_position(h->pairs, row, &position);
}

/* Run the added pairs. All are outputs, or none: the graph does not select rows, and would return the first ones. */
static int32_t run_pairs(struct head *h, int32_t n, bool are_outputs) {
    for (int32_t i = 0; i < n; i++) h->api->set_output(h->pairs, i, are_outputs);
    return run(h, DECODE, h->pairs);
}

/* Run the upper layers on the states after the first layer, of the n pairs that were just run. */
static int32_t run_upper_layers(struct head *h, int32_t n, const int32_t *positions, const int32_t *sequences,
                                int32_t n_out, const int32_t *outputs) {
    const float *states = h->api->nextn(h->context);
    if (!states) return NO_STATES;
    memset(h->row_outputs, false, n);
    for (int32_t i = 0; i < n; i++) h->row_sequences[i] = sequences + i;
    for (int32_t i = 0; i < n_out; i++) h->row_outputs[outputs[i]] = true;
    const struct rows rows = {n, NULL, states, positions, h->counts, h->row_sequences, h->row_outputs};
    mark_decode(true);
    const int32_t code = h->api->decode(h->upper, rows);
    h->api->synchronize(h->upper);
    mark_decode(false);
    return code;
}

/* Rank the tokens at a row of the upper layers. */
static int32_t read_upper_row(struct head *h, int32_t row, int32_t ranked, int32_t *tokens, float *shares) {
    float *logits = h->api->logits_row(h->upper, row);
    if (!logits) return NO_LOGITS;
    native_rank(logits, h->num_ranked_tokens, ranked, h->target->block_maxima, tokens, shares);
    for (int32_t k = 0; k < ranked && h->draft_tokens; k++) tokens[k] = h->draft_tokens[tokens[k]];
    return 0;
}

/* Rank the tokens at one row, and copy the state after it as the next row needs it: after upper layers none does. */
static int32_t read_row(struct head *h, int32_t row, int32_t ranked, int32_t *tokens, float *shares, float *state_out) {
    if (h->upper) return read_upper_row(h, row, ranked, tokens, shares);
    float *logits = h->api->logits_row(h->context, row);
    if (!logits) return NO_LOGITS;
    native_rank(logits, h->target->n_vocab, ranked, h->target->block_maxima, tokens, shares);
    const float *state = h->api->nextn_row(h->context, row);
    if (!state) return NO_STATES;
    if (h->output_gains) native_norm(state, h->width, h->output_eps, h->output_gains, state_out);
    else memcpy(state_out, state, sizeof(float) * h->width);
    return 0;
}

static bool is_end(const struct target *t, int32_t token) {
    for (int32_t i = 0; i < t->num_end_tokens; i++)
        if (t->end_tokens[i] == token) return true;
    return false;
}

/* Return whether each row's best token has at least this share, and is no end token. tokens, shares: [n_out, ranked] */
static bool all_are_confident(const struct target *t, int32_t n_out, int32_t ranked, const int32_t *tokens,
                         const float *shares, float min_share) {
    for (int32_t i = 0; i < n_out; i++)
        if (!(shares[i * ranked] >= min_share) || is_end(t, tokens[i * ranked])) return false;
    return true;
}

/* Add the n pairs of native_draft to an empty batch, and remove each sequence's cells from its first pair on. */
static int32_t begin_pairs(struct head *h, int32_t n, const int32_t *ints, const float *states) {
    const int32_t *positions = ints + n, *sequences = ints + 2 * n;
    void *memory = h->reads_cache ? h->target->memory : h->memory; /* the target removes rejected rows only later */
    h->api->clear(h->pairs);
    for (int32_t i = 0; i < n; i++) {
        if (i == 0 || sequences[i] != sequences[i - 1]) {
            if (!h->api->remove_cells(memory, sequences[i], positions[i], -1)) return CANNOT_REMOVE;
            if (h->upper && !h->api->remove_cells(h->upper_memory, sequences[i], positions[i], -1)) return CANNOT_REMOVE;
        }
        add_pair(h, i, ints[i], positions[i], sequences[i], states + (size_t)i * h->width);
    }
    return 0;
}

/* Write n pairs (ints: tokens [n], positions [n], sequences [n], output rows [n_out]; states [n, width]), replacing
 * each sequence's cells from its first pair on, and rank the tokens at the output rows. Then continue from each with
 * its best token, for `depth` levels in all, and up to `extra_levels` more while all shares are at least `min_share`.
 * tokens and shares are [h->num_levels, n_out, ranked]; the states after the last level are in h->states [n_out, width].
 * A head of several layers drafts one level: no row of it reads the state after another. */
int32_t native_draft(struct head *h, int32_t n, const int32_t *ints, const float *states, int32_t n_out, int32_t depth,
                  int32_t extra_levels, float min_share, int32_t ranked, int32_t *tokens, float *shares) {
    if (!h->context) return CLOSED;
    const int32_t *positions = ints + n, *sequences = ints + 2 * n, *outputs = ints + 3 * n;
    double started_at = now();
    h->num_levels = 0;
    int32_t code = begin_pairs(h, n, ints, states);
    if (!code) code = run_pairs(h, n, n_out > 0 && !h->upper);
    if (!code && h->upper) code = run_upper_layers(h, n, positions, sequences, n_out, outputs);
    h->native_s += now() - started_at;
    bool is_confident = extra_levels > 0;
    for (int32_t level = 0; !code && n_out; level++) {
        const int32_t first = level * n_out * ranked;
        for (int32_t i = 0; i < n_out && !code; i++) {
            const int32_t at = first + i * ranked;
            code = read_row(h, level ? i : outputs[i], ranked, tokens + at, shares + at, h->states + (size_t)i * h->width);
        }
        if (code) break;
        h->num_levels = level + 1;
        is_confident = is_confident && all_are_confident(h->target, n_out, ranked, tokens + first, shares + first, min_share);
        if (h->upper || h->num_levels >= depth + (is_confident ? extra_levels : 0)) break;
        started_at = now();
        h->api->clear(h->pairs);
        for (int32_t i = 0; i < n_out; i++)
            add_pair(h, i, tokens[first + i * ranked], positions[outputs[i]] + (h->reads_cache ? 0 : level + 1),
                     sequences[outputs[i]], h->states + (size_t)i * h->width);
        code = run_pairs(h, n_out, true);
        h->native_s += now() - started_at;
    }
    return code;
}

/* Draft with MTP layers of which each drafts one token: layer `first`, then those after it. Arguments and results are
 * those of native_draft, but the states after all levels are kept: h->states [h->num_levels, n_out, width].
 *
 * Each layer has keys and values of its own, in cells that all share. So every layer computes the n pairs, and the
 * tokens drafted so far after them, each with the state that the layer before gave. Removing the same positions before
 * each puts them in the same cells. Where `first` is 0 the pairs stay, and layers that draft nothing compute them too. */
int32_t native_draft_layers(struct head *h, int32_t n, const int32_t *ints, const float *states, int32_t n_out, int32_t first,
                            int32_t depth, int32_t extra_levels, float min_share, int32_t ranked, int32_t *tokens, float *shares) {
    if (!h->context) return CLOSED;
    const int32_t *positions = ints + n, *sequences = ints + 2 * n, *outputs = ints + 3 * n;
    bool drafts = n_out > 0, is_confident = extra_levels > 0;
    int32_t code = 0;
    h->num_levels = 0;
    for (int32_t layer = first; layer < h->num_layers && !code && (drafts || first == 0); layer++) {
        const double started_at = now();
        const int32_t num_drafted = drafts ? h->num_levels * n_out : 0, at = h->num_levels * n_out;
        const int32_t last = n + num_drafted - n_out; /* the first row of the last level; at level 0 they are `outputs` */
        code = begin_pairs(h, n, ints, states);
        for (int32_t k = 0; k < num_drafted; k++)
            add_pair(h, n + k, tokens[k * ranked], positions[outputs[k % n_out]] + k / n_out + 1,
                     sequences[outputs[k % n_out]], h->states + (size_t)k * h->width);
        h->api->set_nextn_layer(h->context, layer);
        for (int32_t i = 0; i < n + num_drafted; i++) h->api->set_output(h->pairs, i, drafts && !h->selects_outputs);
        for (int32_t i = 0; drafts && i < n_out; i++) h->api->set_output(h->pairs, layer == first ? outputs[i] : last + i, true);
        if (!code) code = run(h, DECODE, h->pairs);
        h->native_s += now() - started_at;
        if (!drafts) continue;
        for (int32_t i = 0; i < n_out && !code; i++)
            code = read_row(h, layer == first ? outputs[i] : last + i, ranked, tokens + (at + i) * ranked,
                            shares + (at + i) * ranked, h->states + (size_t)(at + i) * h->width);
        if (code) break;
        is_confident = is_confident && all_are_confident(h->target, n_out, ranked, tokens + at * ranked, shares + at * ranked, min_share);
        drafts = ++h->num_levels < depth + (is_confident ? extra_levels : 0);
    }
    return code;
}

/* ---- heads that draft in blocks */

/* Remove a sequence's cells from its first row on. Return false if the cache cannot do that. */
static bool remove_from_first(struct head *h, int32_t i, const int32_t *sequences, const int32_t *positions) {
    if (i && sequences[i] == sequences[i - 1]) return true;
    return h->api->remove_cells(h->memory, sequences[i], positions[i], -1);
}

/* Write the rows first to end - 1 of native_write_features, no more than n_batch. */
static int32_t write_batch(struct head *h, int32_t first, int32_t end, const int32_t *positions,
                         const int32_t *sequences, const int32_t *rows, const float *kept) {
    const struct embedding row = {h->row, 1, h->row_size};
    h->api->clear(h->features);
    for (int32_t i = first; i < end; i++) {
        const int32_t position[4] = {positions[i], positions[i], positions[i], 0}; /* four, for M-RoPE */
        load_row(h, rows ? rows[i] : i, kept);
        h->api->add_embedding(h->features, sequences[i], row); /* copies the row */
        h->api->set_position(h->features, i - first, position);
        h->api->set_output(h->features, i - first, false);
    }
    return run(h, DECODE, h->features);
}

/* Write n rows of features into the cache (ints: positions [n], sequences [n]): `rows` of the target's last decode, or
 * kept rows [n, taps, tap_width]. */
int32_t native_write_features(struct head *h, int32_t n, const int32_t *ints, const int32_t *rows, const float *kept) {
    if (!h->context) return CLOSED;
    const int32_t *positions = ints, *sequences = ints + n;
    const double started_at = now();
    int32_t code = kept ? 0 : find_tapped_rows(h->target);
    for (int32_t i = 0; i < n && !code; i++) code = remove_from_first(h, i, sequences, positions) ? 0 : CANNOT_REMOVE;
    for (int32_t first = 0; first < n && !code; first += h->n_batch)
        code = write_batch(h, first, first + h->n_batch < n ? first + h->n_batch : n, positions, sequences, rows, kept);
    h->native_s += now() - started_at;
    return code;
}

/* Rank the candidates of a lattice row: it has `size` tokens and, for each candidate of the row before, a score of each
 * token. Use the scores for candidate *before, and set *before to the best candidate here. */
static void read_lattice(struct head *h, float *row, int32_t size, int32_t *before, int32_t ranked, int32_t *tokens, float *shares) {
    native_rank(row + size + (size_t)*before * size, size, ranked, h->target->block_maxima, tokens, shares);
    *before = tokens[0];
    for (int32_t k = 0; k < ranked; k++) tokens[k] = (int32_t)row[tokens[k]];
}

/* Rank the predictions of all blocks: of each block's `size` rows all but the first num_skipped. They are logits, or
 * with a lattice (of so many candidates per row) "nextn" rows. */
static int32_t read_blocks(struct head *h, int32_t n, int32_t size, int32_t num_skipped, int32_t lattice, int32_t ranked,
                           int32_t *tokens, float *shares) {
    float *rows = lattice ? h->api->nextn(h->context) : NULL;
    if (lattice && !rows) return NO_STATES;
    for (int32_t i = 0; i < n; i++) {
        int32_t before = 0; /* after the root all candidates have the same scores */
        for (int32_t j = num_skipped; j < size; j++) {
            const int32_t row = i * size + j, at = ((j - num_skipped) * n + i) * ranked;
            if (lattice) {
                read_lattice(h, rows + (size_t)row * h->width, lattice, &before, ranked, tokens + at, shares + at);
                continue;
            }
            float *logits = h->api->logits_row(h->context, row);
            if (!logits) return NO_LOGITS;
            native_rank(logits, h->target->n_vocab, ranked, h->target->block_maxima, tokens + at, shares + at);
        }
    }
    return 0;
}

/* Decode one block for each of n roots (ints: tokens [n], positions [n], sequences [n]): the root, followed by masks.
 * Each row predicts a token, except the first num_skipped: the root's, unless it was trained to predict. tokens and
 * shares are [depth, n, ranked]. */
int32_t native_draft_blocks(struct head *h, int32_t n, const int32_t *ints, int32_t mask, int32_t num_skipped, int32_t depth,
                 int32_t lattice, int32_t ranked, int32_t *tokens, float *shares) {
    if (!h->context) return CLOSED;
    const int32_t *positions = ints + n, *sequences = ints + 2 * n, size = num_skipped + depth;
    const double started_at = now();
    h->api->clear(h->pairs);
    for (int32_t i = 0; i < n; i++) {
        if (!h->api->remove_cells(h->memory, sequences[i], positions[i], -1)) return CANNOT_REMOVE;
        for (int32_t j = 0; j < size; j++) {
            const int32_t position[4] = {positions[i] + j, positions[i] + j, positions[i] + j, 0};
            h->api->add_token(h->pairs, sequences[i], j ? mask : ints[i]);
            h->api->set_position(h->pairs, i * size + j, position);
            h->api->set_output(h->pairs, i * size + j, !lattice); /* the graph does not select rows */
        }
    }
    const int32_t code = run(h, DECODE, h->pairs);
    h->native_s += now() - started_at;
    return code ? code : read_blocks(h, n, size, num_skipped, lattice, ranked, tokens, shares);
}

/* ---- heads that draft from one state (Medusa) */

/* Where a row of native_draft_heads is in the wider rows of the graph, which hold one state for each head or layer. */
struct places {
    int32_t state_width, input_width, num_layers;
    bool own_outputs; /* each head has an lm_head, which reads its own part of a row */
};

static float silu(float x) { return x / (1 + expf(-x)); }

/* Replace the states x [depth, n] by x + silu(W x + b), with each head's W and b of this layer. The encoder multiplies
 * by the matrices of all heads and layers, or of all layers, side by side: a row that is zero elsewhere chooses one. */
static int32_t apply_layer(struct head *h, const struct places *p, int32_t layer, int32_t n, int32_t depth, const float *biases) {
    const int32_t width = p->state_width;
    const struct embedding row = {h->row, 1, (size_t)p->input_width};
    h->api->clear(h->features);
    for (int32_t i = 0; i < n * depth; i++) {
        float *part = h->row + (size_t)width * (p->own_outputs ? layer : i / n * p->num_layers + layer);
        memcpy(part, h->states + (size_t)i * width, sizeof(float) * width);
        h->api->add_embedding(h->features, 0, row); /* copies the row */
        h->api->set_position(h->features, i, &i);
        h->api->set_output(h->features, i, true);
        memset(part, 0, sizeof(float) * width);
    }
    const int32_t code = run(h, ENCODE, h->features);
    if (code) return code;
    const float *products = h->api->nextn(h->context);
    if (!products) return NO_STATES;
    for (int32_t i = 0; i < n * depth; i++, products += h->width) {
        const float *product = products + (p->own_outputs ? (size_t)(i / n) * width : 0);
        const float *bias = biases ? biases + ((size_t)(i / n) * p->num_layers + layer) * width : NULL;
        float *x = h->states + (size_t)i * width;
        for (int32_t j = 0; j < width; j++) x[j] += silu(product[j] + (bias ? bias[j] : 0));
    }
    return 0;
}

/* Run the decoder, whose attention and feed-forward add nothing: it norms each row and multiplies it by the lm_head. */
static int32_t decode_states(struct head *h, const struct places *p, int32_t n, int32_t depth) {
    const struct embedding row = {h->row, 1, (size_t)h->width};
    h->api->clear(h->pairs);
    for (int32_t i = 0; i < n * depth; i++) {
        float *part = h->row + (p->own_outputs ? (size_t)(i / n) * p->state_width : 0);
        memcpy(part, h->states + (size_t)i * p->state_width, sizeof(float) * p->state_width);
        h->api->add_token(h->pairs, 0, 0);
        h->api->set_embedding(h->pairs, i, row); /* copies the row */
        h->api->set_position(h->pairs, i, &i);
        memset(part, 0, sizeof(float) * p->state_width);
    }
    return run_pairs(h, n * depth, true);
}

/* Draft `depth` tokens from each of the states [n, state_width], one by each of the first heads. tokens and shares are
 * [depth, n, ranked]. biases [heads, layers, state_width], or NULL. h->row must be zero. */
int32_t native_draft_heads(struct head *h, int32_t n, const float *states, int32_t depth, int32_t num_layers, int32_t state_width,
                 int32_t input_width, const float *biases, int32_t ranked, int32_t *tokens, float *shares) {
    if (!h->context) return CLOSED;
    const struct places places = {state_width, input_width, num_layers, h->width != state_width};
    const double started_at = now();
    if (!h->api->remove_cells(h->memory, 0, 0, -1)) return CANNOT_REMOVE;
    for (int32_t level = 0; level < depth; level++)
        memcpy(h->states + (size_t)level * n * state_width, states, sizeof(float) * n * state_width);
    int32_t code = 0;
    for (int32_t layer = 0; layer < num_layers && !code; layer++) code = apply_layer(h, &places, layer, n, depth, biases);
    if (!code) code = decode_states(h, &places, n, depth);
    h->native_s += now() - started_at;
    for (int32_t i = 0; i < n * depth && !code; i++) {
        float *logits = h->api->logits_row(h->context, i);
        if (!logits) return NO_LOGITS;
        /* undo the norm, which is over all parts of a row */
        const float *x = h->states + (size_t)i * state_width;
        float sum = 0;
        for (int32_t j = 0; j < state_width; j++) sum += x[j] * x[j];
        const float scale = sqrtf(sum / (float)h->width + h->output_eps);
        rank_scaled(logits, h->target->n_vocab, scale, ranked, h->target->block_maxima, tokens + i * ranked, shares + i * ranked);
    }
    return code;
}
