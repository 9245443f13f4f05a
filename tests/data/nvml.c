/* As much of NVML as the rig asks: two cards, the second of which does not tell how busy it is. */
#include <stdio.h>
#include <string.h>

struct memory { unsigned long long total, free, used; };
struct utilization { unsigned int gpu, memory; };
static unsigned long long asked;

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    *device = (char *)0 + 0x700000000000 + index; /* a pointer that does not fit into an int */
    return index < 2 ? 0 : 2;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    return strcmp(uuid, "GPU-second") ? 6 : nvmlDeviceGetHandleByIndex_v2(1, device);
}

static int index_of(void *device) { return (int)((char *)device - ((char *)0 + 0x700000000000)); }

int nvmlDeviceGetName(void *device, char *name, unsigned int length) {
    return snprintf(name, length, "Card %d", index_of(device)) < 0;
}

int nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    return snprintf(version, length, "580.65.06") < 0;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) { /* a peak at the second look */
    memory->total = 24ULL << 30;
    memory->used = index_of(device) ? 1ULL << 30 : (asked++ == 1 ? 6ULL << 30 : 5ULL << 30);
    memory->free = memory->total - memory->used;
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *rates) {
    rates->gpu = asked % 2 ? 80 : 40;
    rates->memory = 7;
    return index_of(device) ? 3 : 0;
}
