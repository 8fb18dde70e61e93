/* Moves mapped weights into huge pages while others read them. */
#define _GNU_SOURCE
#include "native_step.h"

#include <math.h>
#include <stdatomic.h>

/* A decode's threads wait for each other, so that each page that is copied beside them takes its time from all. */
static const double BUSY_S = 0.02;      /* between two decodes of an answer passes less */
static const double PAUSES = 50;        /* beside decodes, before a page, as long as this many pages take: 2 % of it */
static const double MIN_PAUSE_S = 0.04; /* a page takes 1 ms; 15 ms where a virtual machine first gets the memory */
static const double MAX_PAUSE_S = 1;

static atomic_bool is_decoding;
static _Atomic double decoded_at; /* end of the last decode */

void mark_decode(bool is_running) {
    if (!is_running) atomic_store(&decoded_at, now());
    atomic_store(&is_decoding, is_running);
}

#ifdef __linux__
#include <errno.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20 };

/* While decodes run and *stop is 0, waits for a multiple of the seconds that the last page took. */
static void give_way(double page_s, const _Atomic int32_t *stop) {
    const struct timespec pause = {0, (long)(MIN_PAUSE_S * 1e9)};
    const double wanted_s = fmin(PAUSES * page_s, MAX_PAUSE_S);
    for (double waited_s = 0; waited_s == 0 || waited_s < wanted_s; waited_s += MIN_PAUSE_S) {
        const bool is_busy = atomic_load(&is_decoding) || now() - atomic_load(&decoded_at) < BUSY_S;
        if (!is_busy || atomic_load(stop)) return;
        nanosleep(&pause, NULL);
    }
}

static char *round_up(char *address) {
    return (char *)(((uintptr_t)address + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
}

/* Copies one huge page's worth of weights to `copy`, and puts that in their place. The system replaces a mapping as one
 * step: who reads meanwhile finds the old page or the new one, and both hold the same. */
static int32_t move_page(char *weights, char *copy) {
    memcpy(copy, weights, HUGE_PAGE);
    if (mprotect(copy, HUGE_PAGE, PROT_READ) ||
        mremap(copy, HUGE_PAGE, HUGE_PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, weights) == MAP_FAILED)
        return errno;
    return 0;
}

/* Moves all whole huge pages of the mapped memory from `first` to `end`, until *stop is set.
 * Returns 0, or an errno; what was not moved stays mapped. */
int32_t weights_move(char *first, char *end, const _Atomic int32_t *stop) {
    char *const begin = round_up(first);
    if (begin + HUGE_PAGE > end)
        return 0;
    const size_t bytes = (size_t)(end - begin) & ~(size_t)(HUGE_PAGE - 1);
    char *const reserved = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        return errno;
    char *const copy = round_up(reserved);
    int32_t error = madvise(copy, bytes, MADV_HUGEPAGE) ? errno : 0;
    size_t moved = 0;
    double page_s = 0;
    while (!error && moved < bytes && !atomic_load(stop)) {
        give_way(page_s, stop);
        const double began_at = now();
        error = move_page(begin + moved, copy + moved);
        page_s = now() - began_at;
        moved += error ? 0 : HUGE_PAGE;
    }
    munmap(reserved, (size_t)(copy - reserved)); /* where pages were moved from, others may lie by now */
    munmap(copy + moved, (size_t)(reserved + bytes + HUGE_PAGE - (copy + moved)));
    return error;
}
#else
int32_t weights_move(char *first, char *end, const _Atomic int32_t *stop) {
    (void)first, (void)end, (void)stop;
    return 0;
}
#endif
