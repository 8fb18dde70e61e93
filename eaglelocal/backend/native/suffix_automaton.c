/* A suffix automaton: an index of all substrings of a growing text of tokens, built online (Blumer et al. 1985).
 *
 * backend/suffix_automaton.py explains its states. In C because every token of prompts and answers is added between
 * two steps, which would take many times as long in Python. Owns its memory.
 */
#include <stdlib.h>

#include "native_step.h"

enum { NO_TOKEN = INT32_MIN, MAX_MARKED = 8 }; /* most suffixes that an appended token marks */

struct state {
    int32_t latest, count; /* latest marked position where a substring of it ended; how often it was marked */
    int32_t length, link;  /* of its longest substring; state of the longest suffix that ends at more places, or -1 */
    int32_t token, target; /* the first transition */
    int32_t transitions;          /* the newest of its other transitions; -1: none */
};

struct transition { /* a transition of a state, beyond its first one */
    int32_t state, token, target;
    int32_t next; /* next one of the same state, or -1 */
};

struct automaton {
    struct state *states;
    struct transition *transitions;
    int32_t *table; /* [table_size, a power of two] hash table: index of a transition + 1, by state and token; 0: free */
    int32_t num_states, state_capacity, num_transitions, transition_capacity, table_size;
    int32_t last, num_tokens; /* state of the whole text; tokens in it */
    bool has_failed;          /* out of memory: the automaton must no longer be used */
};

static bool grow(void **memory, int32_t *capacity, size_t size) {
    const int32_t larger = *capacity + *capacity / 2 + 16;
    void *moved = realloc(*memory, size * (size_t)larger);
    if (!moved) return false;
    *memory = moved;
    *capacity = larger;
    return true;
}

static uint32_t hash_slot(const struct automaton *a, int32_t state, int32_t token) {
    const uint64_t mixed = ((uint64_t)(uint32_t)state << 32 | (uint32_t)token) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(mixed >> 33) & (uint32_t)(a->table_size - 1);
}

/* Return the table entry of a transition, or the free one where it belongs. */
static int32_t *find(const struct automaton *a, int32_t state, int32_t token) {
    for (uint32_t at = hash_slot(a, state, token);; at = (at + 1) & (uint32_t)(a->table_size - 1)) {
        const int32_t number = a->table[at];
        if (!number) return a->table + at;
        const struct transition *found = a->transitions + number - 1;
        if (found->state == state && found->token == token) return a->table + at;
    }
}

/* Keep at least half of the table free. False: out of memory. */
static bool grow_table(struct automaton *a) {
    if (2 * a->num_transitions < a->table_size) return true;
    int32_t *larger = calloc((size_t)a->table_size * 2, sizeof *larger);
    if (!larger) return false;
    free(a->table);
    a->table = larger;
    a->table_size *= 2;
    for (int32_t i = 0; i < a->num_transitions; i++) *find(a, a->transitions[i].state, a->transitions[i].token) = i + 1;
    return true;
}

static int32_t step(const struct automaton *a, int32_t state, int32_t token) {
    const struct state *s = a->states + state;
    if (s->token == token) return s->target;
    const int32_t number = s->transitions < 0 ? 0 : *find(a, state, token);
    return number ? a->transitions[number - 1].target : 0;
}

static void add_transition(struct automaton *a, int32_t state, int32_t token, int32_t target) {
    const bool is_full = a->num_transitions == a->transition_capacity;
    if (!grow_table(a) ||
        (is_full && !grow((void **)&a->transitions, &a->transition_capacity, sizeof *a->transitions))) {
        a->has_failed = true;
        return;
    }
    *find(a, state, token) = a->num_transitions + 1;
    a->transitions[a->num_transitions] = (struct transition){state, token, target, a->states[state].transitions};
    a->states[state].transitions = a->num_transitions++;
}

static void set_transition(struct automaton *a, int32_t state, int32_t token, int32_t target) {
    struct state *s = a->states + state;
    if (s->token == token || s->token == NO_TOKEN) {
        s->token = token;
        s->target = target;
        return;
    }
    const int32_t number = s->transitions < 0 ? 0 : *find(a, state, token);
    if (number) a->transitions[number - 1].target = target;
    else add_transition(a, state, token, target);
}

static int32_t add_state(struct automaton *a, struct state state) {
    if (a->num_states == a->state_capacity && !grow((void **)&a->states, &a->state_capacity, sizeof *a->states)) {
        a->has_failed = true;
        return 0;
    }
    a->states[a->num_states] = state;
    return a->num_states++;
}

/* Return the state whose longest substring is that of `here` followed by `token`; splits a state if necessary. */
static int32_t find_exact(struct automaton *a, int32_t here, int32_t token) {
    const int32_t target = step(a, here, token), length = a->states[here].length + 1;
    if (a->states[target].length == length) return target;
    struct state same = a->states[target];
    same.length = length;
    same.transitions = -1;
    const int32_t split = add_state(a, same);
    if (a->has_failed) return 0;
    a->states[target].link = split;
    for (int32_t transition = a->states[target].transitions; transition >= 0; transition = a->transitions[transition].next)
        add_transition(a, split, a->transitions[transition].token, a->transitions[transition].target);
    for (; here >= 0 && step(a, here, token) == target; here = a->states[here].link) set_transition(a, here, token, split);
    return split;
}

/* Mark the longest suffixes as occurring at `end`. Marking all suffixes would not be O(1). */
static void mark(struct automaton *a, int32_t state, int32_t end) {
    for (int32_t i = 0; i < MAX_MARKED && state > 0; i++, state = a->states[state].link) {
        a->states[state].latest = end;
        a->states[state].count++;
    }
}

static void append(struct automaton *a, int32_t token) {
    int32_t here = a->last;
    const int32_t end = a->num_tokens++;
    const struct state whole = {end, 1, a->states[here].length + 1, 0, NO_TOKEN, 0, -1};
    const int32_t new = add_state(a, whole);
    for (; !a->has_failed && here >= 0 && !step(a, here, token); here = a->states[here].link) set_transition(a, here, token, new);
    if (a->has_failed) return;
    if (here >= 0) {
        const int32_t link = find_exact(a, here, token);
        a->states[new].link = link;
    }
    a->last = new;
    mark(a, a->states[new].link, end);
}

void automaton_free(struct automaton *a) {
    if (!a) return;
    free(a->states);
    free(a->transitions);
    free(a->table);
    free(a);
}

/* Return a new automaton; NULL: out of memory. */
struct automaton *automaton_new(void) {
    struct automaton *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    a->table_size = 16;
    a->table = calloc((size_t)a->table_size, sizeof *a->table);
    add_state(a, (struct state){-1, 0, 0, -1, NO_TOKEN, 0, -1});
    if (a->table && !a->has_failed) return a;
    automaton_free(a);
    return NULL;
}

/* Append tokens; return the state of the whole text. -1: out of memory, the automaton must no longer be used. */
int32_t automaton_extend(struct automaton *a, int32_t n, const int32_t *tokens) {
    for (int32_t i = 0; i < n && !a->has_failed; i++) append(a, tokens[i]);
    return a->has_failed ? -1 : a->last;
}

/* Return the state of a substring followed by `token`; 0 if that does not occur. */
int32_t automaton_step(const struct automaton *a, int32_t state, int32_t token) {
    return step(a, state, token);
}

/* Move from a substring (state and length) to the longest suffix that occurs when these tokens follow it. */
void automaton_follow(const struct automaton *a, int32_t n, const int32_t *tokens, int32_t *state, int32_t *length) {
    for (int32_t i = 0; i < n; i++) {
        int32_t found;
        while (!(found = step(a, *state, tokens[i])) && *state) {
            *state = a->states[*state].link;
            *length = a->states[*state].length;
        }
        *length = found ? *length + 1 : 0;
        *state = found;
    }
}

/* Count how often a substring followed by 0, 1 .. n of these tokens was marked [n + 1], 0 if it does not occur. Return
 * the state of the longest. */
int32_t automaton_counts(const struct automaton *a, int32_t state, int32_t n, const int32_t *tokens, int32_t *counts) {
    counts[0] = a->states[state].count;
    for (int32_t i = 0; i < n; i++) {
        state = state ? step(a, state, tokens[i]) : 0;
        counts[i + 1] = a->states[state].count;
    }
    return state;
}

/* Return the latest marked position where a substring ended; -1 for the empty one. */
int32_t automaton_latest(const struct automaton *a, int32_t state) {
    return a->states[state].latest;
}

/* Return the bytes of memory that it takes. */
int64_t automaton_size(const struct automaton *a) {
    return (int64_t)(sizeof *a + sizeof *a->states * (size_t)a->state_capacity +
                     sizeof *a->transitions * (size_t)a->transition_capacity + sizeof *a->table * (size_t)a->table_size);
}
