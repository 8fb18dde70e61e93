/* Ends this process when its parent has ended. A native thread watches, because it needs no GIL: a regular expression
 * or a native call that holds the GIL does not stop it. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

enum { POLL_MS = 500, GRACE_MS = 1000 };

struct watched {
    pid_t parent;
    int pipe; /* the end that we read; -1: none */
};

static int is_gone(const struct watched *watched) {
    struct pollfd pipe = {.fd = watched->pipe, .events = 0, .revents = 0};
    const int num_ready = poll(&pipe, 1, POLL_MS); /* returns early when the other end closes; only waits without a pipe */
    return (num_ready > 0 && (pipe.revents & (POLLHUP | POLLERR | POLLNVAL))) || getppid() != watched->parent;
}

static void *watch(void *argument) {
    const struct watched *watched = argument;
    while (!is_gone(watched))
        ;
    poll(NULL, 0, GRACE_MS); /* Python may end the process itself, with a better message */
    kill(getpid(), SIGKILL);
    return NULL;
}

/* Start the watching thread; return 0, or an errno. The thread blocks all signals, so others handle them. */
int32_t end_with_parent(int32_t pipe) {
    struct watched *watched = malloc(sizeof *watched);
    if (!watched)
        return 12; /* ENOMEM */
    *watched = (struct watched){.parent = getppid(), .pipe = pipe};
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread, NULL, watch, watched);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        free(watched);
    else
        pthread_detach(thread);
    return error;
}
