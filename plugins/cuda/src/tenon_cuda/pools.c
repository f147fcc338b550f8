/* Device memory that can be taken from its addresses and put back, for torch's pluggable allocator.

     torch wants a segment   addresses are reserved, memory is made and mapped to them
     tenon_pools_unmap       the memory is given back; the addresses stay, since captured graphs hold them
     tenon_pools_map         other memory is mapped to the same addresses

   torch calls this with its allocator locked and without Python's lock, which a call into Python would wait for: so it
   is C. A pool is a number; a segment belongs to the pool that its thread was filling. The driver's types are written
   out here (its interface is stable), so that building this takes a C compiler and no CUDA toolkit. */

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

typedef int Result;
typedef unsigned long long Address, Handle;

typedef struct { int type, id; } Location;
typedef struct {
    int type, handle_types;
    Location location;
    void *windows;
    struct { unsigned char compression, direct_rdma; unsigned short usage; unsigned char reserved[4]; } flags;
} Properties;
typedef struct { Location location; int flags; } Access;

enum { PINNED = 1, ON_DEVICE = 1, READ_WRITE = 3, MINIMUM = 0 };
enum { OUT_OF_MEMORY = 2, NOT_FOUND = 500 };

static struct {
    Result (*granularity)(size_t *, const Properties *, int);
    Result (*reserve)(Address *, size_t, size_t, Address, unsigned long long);
    Result (*free)(Address, size_t);
    Result (*create)(Handle *, size_t, const Properties *, unsigned long long);
    Result (*release)(Handle);
    Result (*map)(Address, size_t, size_t, Handle, unsigned long long);
    Result (*unmap)(Address, size_t);
    Result (*set_access)(Address, size_t, const Access *, size_t);
    Result (*synchronize)(void);
} driver;

typedef struct { Address address; size_t size; int device, pool, mapped; } Segment;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Segment *segments;
static size_t count, room;
static __thread int filling = -1;

/* 0, or NOT_FOUND where the driver has no such calls. */
int tenon_pools_open(const char *library) {
    void *found = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!found) return NOT_FOUND;
    const char *names[] = {
        "cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemRelease",
        "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuCtxSynchronize",
    };
    void **calls = (void **)&driver;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(calls[i] = dlsym(found, names[i]))) return NOT_FOUND;
    return 0;
}

static Properties properties(int device) {
    Properties made = {0};
    made.type = PINNED;
    made.location.type = ON_DEVICE;
    made.location.id = device;
    return made;
}

/* Memory for a segment's addresses, which nothing is mapped to. */
static Result fill(Segment *segment) {
    Properties kind = properties(segment->device);
    Access access = {{ON_DEVICE, segment->device}, READ_WRITE};
    Handle memory;
    Result error = driver.create(&memory, segment->size, &kind, 0);
    if (error) return error;
    error = driver.map(segment->address, segment->size, 0, memory, 0);
    driver.release(memory); /* the mapping keeps it */
    if (error) return error;
    error = driver.set_access(segment->address, segment->size, &access, 1);
    if (error) driver.unmap(segment->address, segment->size);
    else segment->mapped = 1;
    return error;
}

static Result empty(Segment *segment) {
    Result error = driver.unmap(segment->address, segment->size);
    if (!error) segment->mapped = 0;
    return error;
}

/* What this thread allocates from now on belongs to `pool`; -1: there is none. */
void tenon_pools_fill(int pool) { filling = pool; }

void *tenon_pools_allocate(size_t size, int device, void *stream) {
    (void)stream;
    Properties kind = properties(device);
    size_t grain;
    if (driver.granularity(&grain, &kind, MINIMUM)) return NULL;
    Segment made = {0, (size + grain - 1) / grain * grain, device, filling, 0};
    if (driver.reserve(&made.address, made.size, 0, 0, 0)) return NULL;
    pthread_mutex_lock(&lock);
    int is_full = count == room;
    if (is_full) {
        Segment *more = realloc(segments, (room + 64) * sizeof *segments);
        if (more) segments = more, room += 64, is_full = 0;
    }
    Result error = is_full ? OUT_OF_MEMORY : fill(&made);
    if (!error) segments[count++] = made;
    pthread_mutex_unlock(&lock);
    if (error) driver.free(made.address, made.size);
    return error ? NULL : (void *)made.address;
}

void tenon_pools_free(void *address, size_t size, int device, void *stream) {
    (void)size, (void)device, (void)stream;
    driver.synchronize(); /* unlike the runtime's, this way of freeing does not wait for the work that reads */
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        Segment segment = segments[i];
        if (segment.address != (Address)address) continue;
        segments[i] = segments[--count];
        if (segment.mapped) empty(&segment);
        driver.free(segment.address, segment.size);
        break;
    }
    pthread_mutex_unlock(&lock);
}

/* The pool's segments: how many, and of the first `most` address and bytes. */
size_t tenon_pools_segments(int pool, Address *addresses, size_t *sizes, size_t most) {
    size_t found = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        if (segments[i].pool != pool) continue;
        if (found < most) addresses[found] = segments[i].address, sizes[found] = segments[i].size;
        found++;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Give the pool's memory back. No work may be under way. 0, or the driver's error. */
int tenon_pools_unmap(int pool) {
    Result error = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count && !error; i++)
        if (segments[i].pool == pool && segments[i].mapped) error = empty(&segments[i]);
    pthread_mutex_unlock(&lock);
    return error;
}

/* Memory for all of the pool, or for none of what had none. 0, or the driver's error. */
int tenon_pools_map(int pool) {
    Result error = 0;
    pthread_mutex_lock(&lock);
    char *before = malloc(count + 1);
    if (!before) error = OUT_OF_MEMORY;
    size_t end = 0;
    for (; end < count && !error; end++) {
        before[end] = (char)segments[end].mapped;
        if (segments[end].pool == pool && !segments[end].mapped) error = fill(&segments[end]);
    }
    for (size_t i = 0; i < end && error; i++)
        if (segments[i].pool == pool && segments[i].mapped && !before[i]) empty(&segments[i]);
    free(before);
    pthread_mutex_unlock(&lock);
    return error;
}
