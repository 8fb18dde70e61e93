/* The structs of ggml's graphs that a wrapped CPU backend reads and changes, in the checked build of llama.cpp. */
#ifndef GGML_GRAPH_H
#define GGML_GRAPH_H

#include <stddef.h>
#include <stdint.h>

enum { ALL_THREADS = -1 };

struct tensor { /* ggml_tensor */
    int32_t type;
    void *buffer;
    int64_t ne[4];
    size_t nb[4];
    int32_t op;
    int32_t op_params[16];
    int32_t flags;
    struct tensor *src[10];
    struct tensor *view_src;
    size_t view_offs;
    void *data;
    char name[64];
    void *extra; /* of weights in a layout of their own: how they are multiplied */
};

struct custom { /* ggml_custom_op_params: what all threads of the backend run */
    void (*run)(struct tensor *, int ith, int nth, void *job);
    int32_t num_tasks;
    void *job;
};

struct graph_functions { /* of ggml */
    int32_t (*num_nodes)(void *graph);
    struct tensor *(*node)(void *graph, int32_t i);
    int32_t custom_op;
};

#endif
