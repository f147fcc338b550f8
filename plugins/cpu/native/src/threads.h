// The pool: fork-join over a fixed number of threads, whose work is split as it goes. Idle workers spin, then sleep.
//
// One region runs at a time (the ABI's rule); a region inside a region runs on its own thread alone. A region waits only
// for the workers that have come to it, never for one that the system does not run: whoever is there takes the others'
// work. So a region's function must finish the whole region's work through `Work`, whichever threads come.
//
// The pool may be started anew, with more threads or fewer, between what a caller lays out for each thread and its region:
// so a region says for how many it was laid out.
#pragma once

#include <atomic>
#include <cstdint>

namespace tenon {

using RegionFn = void (*)(void* context, int thread, int threads);

int num_threads();
// Run fn(context, thread, threads) here as thread 0, and once on each worker that comes before thread 0 is through, but for
// those beyond the first `most` threads.
void run_region(int most, RegionFn fn, void* context);
// Restart with a number of threads; false where the system refuses.
bool set_threads(int threads, const int32_t* cores, int spin_us);
// One look of a wait that began `looks` looks ago: spins at first, then yields the core, then sleeps.
void wait_a_little(int looks);

struct Range {
    int64_t begin, end;
};

// Thread `thread`'s share of [0, n): contiguous, sizes differ by one at most.
inline Range share(int64_t n, int thread, int threads) {
    const int64_t each = n / threads, more = n % threads;
    const int64_t begin = each * thread + (thread < more ? thread : more);
    return {begin, begin + each + (thread < more ? 1 : 0)};
}

// The work [0, n) of a region, in chunks of consecutive items. Each thread walks its own share in the order of memory,
// then takes chunks of what the others have left. Results must not depend on who computes a chunk.
class Work {
public:
    // begin_of(i), i = 0..threads: where share i begins; ascending, begin_of(0) = 0, begin_of(threads) = n.
    template <class BeginOf>
    Work(int64_t n, int threads, int64_t chunk, const BeginOf& begin_of)
        : n_(n), chunk_(chunk), shares_(threads < MOST ? threads : MOST) {
        for (int i = 0; i < shares_; ++i) {
            cursors_[i].next.store(begin_of(i * threads / shares_), std::memory_order_relaxed);
            cursors_[i].end = begin_of((i + 1) * threads / shares_);
        }
    }
    Work(int64_t n, int threads, int64_t chunk)
        : Work(n, threads, chunk, [&](int i) { return i < threads ? share(n, i, threads).begin : n; }) {}

    // The next chunk for `thread`; false where none is left to take (others may still be computing theirs).
    bool take(int thread, Range& range) {
        for (int i = 0; i < shares_; ++i) {
            Cursor& cursor = cursors_[(thread + i) % shares_];
            if (cursor.next.load(std::memory_order_relaxed) >= cursor.end) continue;
            const int64_t at = cursor.next.fetch_add(chunk_, std::memory_order_relaxed);
            if (at >= cursor.end) continue;
            range = {at, at + chunk_ < cursor.end ? at + chunk_ : cursor.end};
            return true;
        }
        return false;
    }

    // Where a later part of the region needs all of this work: each chunk is told, and `wait` sees what was written.
    void tell(const Range& range) { done_.fetch_add(range.end - range.begin, std::memory_order_release); }
    void wait() const {
        for (int looks = 0; done_.load(std::memory_order_acquire) < n_; ++looks) wait_a_little(looks);
    }

private:
    static constexpr int MOST = 64;  // shares; more threads than that walk one together
    struct alignas(64) Cursor {  // not set to zero: a region of two threads touches two
        std::atomic<int64_t> next;
        int64_t end;
    };

    const int64_t n_, chunk_;
    const int shares_;
    Cursor cursors_[MOST];
    alignas(64) std::atomic<int64_t> done_{0};
};

// body(thread, threads) on every thread that comes, of `most` at most.
template <class Body>
void parallel(int most, const Body& body) {
    run_region(most, [](void* context, int thread, int threads) { (*static_cast<const Body*>(context))(thread, threads); },
               const_cast<Body*>(&body));
}

// body(begin, end, thread) over chunks of [0, n) on `threads` at most: some four a thread, so that one that lags holds little.
template <class Body>
void parallel_for(int64_t n, int threads, const Body& body) {
    if (threads == 1) {
        if (n > 0) body(int64_t{0}, n, 0);
        return;
    }
    const int64_t chunk = n / (4 * threads);
    Work work(n, threads, chunk > 1 ? chunk : 1);
    parallel(threads, [&](int thread, int) {
        for (Range range; work.take(thread, range);) body(range.begin, range.end, thread);
    });
}

}  // namespace tenon
