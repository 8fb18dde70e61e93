/* Products of rows with quantized weights, see row_products.c. */
#ifndef ROW_PRODUCTS_H
#define ROW_PRODUCTS_H

#include <stdbool.h>

#include "ggml_graph.h"

struct products { /* the products of a graph that is being computed, and their memory; zeros at first */
    struct product *jobs;
    size_t num_jobs;
    char *rows; /* quantized rows of one product at a time */
    size_t num_bytes;
};

/* Turns the graph's products of rows into custom operations. Returns their number. */
int32_t products_start(struct products *, void *graph, const struct graph_functions *);

/* Turns them back. */
void products_finish(struct products *, int32_t num_jobs);

void products_free(struct products *);

#endif
