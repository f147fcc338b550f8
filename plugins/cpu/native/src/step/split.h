// Work split over the pool where it is worth waking others.
#pragma once

#include "threads.h"

namespace tenon {

// body(begin, end) over chunks of [0, n), or here alone where n is at most `alone`.
template <class Body>
void split(int64_t n, int64_t alone, Body&& body) {
    const int threads = n <= alone ? 1 : num_threads();
    if (threads == 1) return body(int64_t{0}, n);
    parallel_for(n, threads, [&](int64_t begin, int64_t end, int) { body(begin, end); });
}

}  // namespace tenon
