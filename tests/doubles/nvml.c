/* A libnvidia-ml.so.1 for the real pynvml to load: one card, or a driver that hangs (NVIDIA_DOUBLE=hang) or dies. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory_t;
enum { OK = 0, NOT_SUPPORTED = 3 };

static int is(const char *what) {
    const char *wanted = getenv("NVIDIA_DOUBLE");
    return wanted && !strcmp(wanted, what);
}

int nvmlInitWithFlags(unsigned flags) {
    if (is("hang")) {
        signal(SIGTERM, SIG_IGN);
        sleep(600);
    }
    if (is("die")) abort();
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { strncpy(text, "550.120", length); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)1; return index ? NOT_SUPPORTED : OK; }
int nvmlDeviceGetName(void *device, char *text, unsigned length) { strncpy(text, "NVIDIA Double", length); return OK; }
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    *memory = (memory_t){.total = 8ull << 30, .free = 5ull << 30, .used = 3ull << 30};
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 8; *minor = 9; return OK; }
