/* The driver's virtual memory calls, over host memory: for tests of `pools.c` without a GPU. */
#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GRAIN = 1 << 21, OUT_OF_MEMORY = 2, INVALID = 1 };

size_t fake_limit = (size_t)-1, fake_used = 0, fake_reserved = 0;
int fake_syncs = 0, fake_access_error = 0;
static size_t size_of_handle[1 << 12];

int cuMemGetAllocationGranularity(size_t *grain, const void *kind, int option) {
    (void)kind, (void)option;
    *grain = GRAIN;
    return 0;
}

int cuMemAddressReserve(unsigned long long *address, size_t size, size_t align, unsigned long long hint, unsigned long long flags) {
    (void)align, (void)hint, (void)flags;
    if (size % GRAIN) return INVALID;
    void *found = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return OUT_OF_MEMORY;
    fake_reserved += size;
    *address = (unsigned long long)found;
    return 0;
}

int cuMemAddressFree(unsigned long long address, size_t size) {
    fake_reserved -= size;
    return munmap((void *)address, size) ? INVALID : 0;
}

int cuMemCreate(unsigned long long *handle, size_t size, const void *kind, unsigned long long flags) {
    (void)kind, (void)flags;
    if (fake_used + size > fake_limit) return OUT_OF_MEMORY;
    int file = memfd_create("fake", 0);
    if (file < 0 || ftruncate(file, size)) return OUT_OF_MEMORY;
    size_of_handle[file] = size;
    fake_used += size;
    *handle = file;
    return 0;
}

/* A mapping keeps the memory, as the driver's does. */
int cuMemRelease(unsigned long long handle) { return close((int)handle) ? INVALID : 0; }

int cuMemMap(unsigned long long address, size_t size, size_t offset, unsigned long long handle, unsigned long long flags) {
    (void)flags;
    if (size_of_handle[handle] != size) return INVALID;
    void *found = mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, offset);
    if (found == MAP_FAILED) return INVALID;
    return 0;
}

int cuMemUnmap(unsigned long long address, size_t size) {
    void *found = mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    fake_used -= size;
    return found == MAP_FAILED ? INVALID : 0;
}

int cuMemSetAccess(unsigned long long address, size_t size, const void *access, size_t count) {
    (void)access;
    if (fake_access_error) return fake_access_error;
    return count == 1 && !mprotect((void *)address, size, PROT_READ | PROT_WRITE) ? 0 : INVALID;
}

int cuCtxSynchronize(void) {
    fake_syncs++;
    return 0;
}
