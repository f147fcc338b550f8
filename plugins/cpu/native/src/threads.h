// The pool: fork-join over a fixed number of threads, split statically. Idle workers spin, then sleep.
//
// One region runs at a time (the ABI's rule); a region inside a region runs on its own thread alone.
#pragma once

#include <cstdint>

namespace tenon {

using RegionFn = void (*)(void* context, int thread, int threads);

int num_threads();
// Run fn(context, thread, threads) once on each of the pool's threads, and wait for all.
void run_region(RegionFn fn, void* context);
// Inside a region: wait until all of its threads are here.
void barrier();
// Restart with a number of threads; false where the system refuses.
bool set_threads(int threads, const int32_t* cores, int spin_us);

struct Range {
    int64_t begin, end;
};

// Thread `thread`'s share of [0, n): contiguous, sizes differ by one at most.
inline Range share(int64_t n, int thread, int threads) {
    const int64_t each = n / threads, more = n % threads;
    const int64_t begin = each * thread + (thread < more ? thread : more);
    return {begin, begin + each + (thread < more ? 1 : 0)};
}

// body(thread, threads) on every thread.
template <class Body>
void parallel(const Body& body) {
    run_region([](void* context, int thread, int threads) { (*static_cast<const Body*>(context))(thread, threads); },
               const_cast<Body*>(&body));
}

// body(begin, end, thread) on every thread's share of [0, n).
template <class Body>
void parallel_for(int64_t n, const Body& body) {
    auto run = [&](int thread, int threads) {
        const Range range = share(n, thread, threads);
        if (range.begin < range.end) body(range.begin, range.end, thread);
    };
    parallel(run);
}

}  // namespace tenon
