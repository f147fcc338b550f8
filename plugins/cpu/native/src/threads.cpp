#include "threads.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tenon {
namespace {

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

using Clock = std::chrono::steady_clock;

// Pure spinning longer than this only keeps whoever is waited for off a core that both share.
constexpr std::chrono::microseconds patience{10};

// Spins until done() holds; after `patience`, yields the core between looks.
template <class Done>
void spin_or_yield(Done&& done) {
    const auto end = Clock::now() + patience;
    for (;;) {
        for (int i = 0; i < 64; ++i) {
            if (done()) return;
            relax();
        }
        if (Clock::now() >= end) break;
    }
    while (!done()) std::this_thread::yield();
}

// Threads and the two ways they wait: for the next region, and for each other within one.
class Pool {
public:
    Pool(int threads, const int32_t* cores, int spin_us) : threads_(threads), spin_(spin_us) {
        for (int i = 1; i < threads; ++i) {
            workers_.emplace_back([this, i] { work(i); });
#if defined(__linux__)
            if (cores != nullptr && cores[i] >= 0 && cores[i] < CPU_SETSIZE) {
                cpu_set_t set;
                CPU_ZERO(&set);
                CPU_SET(cores[i], &set);
                pthread_setaffinity_np(workers_.back().native_handle(), sizeof set, &set);
            }
#endif
        }
    }

    ~Pool() {
        stop_.store(true);
        wake();
        for (auto& worker : workers_) worker.join();
    }

    int threads() const { return threads_; }

    void run(RegionFn fn, void* context) {
        fn_ = fn;
        context_ = context;
        done_.store(0, std::memory_order_relaxed);
        wake();
        fn(context, 0, threads_);
        spin_or_yield([this] { return done_.load(std::memory_order_acquire) == threads_ - 1; });
    }

    void meet() {
        const uint64_t mine = arrived_.fetch_add(1, std::memory_order_acq_rel);
        const uint64_t all = (mine / threads_ + 1) * threads_;
        spin_or_yield([&] { return arrived_.load(std::memory_order_acquire) >= all; });
    }

private:
    void wake() {
        region_.fetch_add(1, std::memory_order_seq_cst);
        if (sleeping_.load(std::memory_order_seq_cst) > 0) {
            std::lock_guard<std::mutex> lock(mutex_);
            condition_.notify_all();
        }
    }

    // The number of the next region after `seen`.
    uint64_t next(uint64_t seen) {
        const auto start = Clock::now();
        for (auto now_is = start; now_is < start + spin_; now_is = Clock::now()) {
            for (int i = 0; i < 64; ++i) {
                const uint64_t now = region_.load(std::memory_order_acquire);
                if (now != seen) return now;
                relax();
            }
            if (now_is > start + patience) std::this_thread::yield();
        }
        std::unique_lock<std::mutex> lock(mutex_);
        sleeping_.fetch_add(1, std::memory_order_seq_cst);
        condition_.wait(lock, [&] { return region_.load(std::memory_order_seq_cst) != seen; });
        sleeping_.fetch_sub(1, std::memory_order_seq_cst);
        return region_.load(std::memory_order_acquire);
    }

    void work(int thread);

    const int threads_;
    const std::chrono::microseconds spin_;
    std::vector<std::thread> workers_;
    RegionFn fn_ = nullptr;
    void* context_ = nullptr;
    std::atomic<bool> stop_{false};
    alignas(64) std::atomic<uint64_t> region_{0};
    alignas(64) std::atomic<int> done_{0};
    alignas(64) std::atomic<uint64_t> arrived_{0};
    alignas(64) std::atomic<int> sleeping_{0};
    std::mutex mutex_;
    std::condition_variable condition_;
};

Pool* pool = nullptr;  // null: one thread
thread_local bool inside = false;
thread_local bool nested = false;  // in a region inside a region, which is one thread's own
std::mutex region_mutex;  // the rule "one region at a time", kept even where callers break it

void Pool::work(int thread) {
    inside = true;
    uint64_t seen = 0;
    for (;;) {
        seen = next(seen);
        if (stop_.load()) return;
        fn_(context_, thread, threads_);
        done_.fetch_add(1, std::memory_order_acq_rel);
    }
}

#if defined(__linux__)
// A forked child has none of the workers: it goes on alone. What the pool held is left where it is.
void forget_pool() {
    pool = nullptr;
    new (&region_mutex) std::mutex;
}
const int at_fork = pthread_atfork(nullptr, nullptr, forget_pool);
#endif

}  // namespace

int num_threads() {
    return pool != nullptr && !inside ? pool->threads() : 1;
}

void run_region(RegionFn fn, void* context) {
    if (inside) {
        const bool before = nested;
        nested = true;
        fn(context, 0, 1);
        nested = before;
        return;
    }
    std::lock_guard<std::mutex> lock(region_mutex);
    if (pool == nullptr) {
        inside = true;
        fn(context, 0, 1);
    } else {
        inside = true;
        pool->run(fn, context);
    }
    inside = false;
}

void barrier() {
    if (pool != nullptr && !nested) pool->meet();
}

bool set_threads(int threads, const int32_t* cores, int spin_us) {
    std::lock_guard<std::mutex> lock(region_mutex);
    delete pool;
    pool = nullptr;
    if (threads <= 1) return true;
    try {
        pool = new Pool(threads, cores, spin_us);
    } catch (const std::system_error&) {
        return false;
    } catch (const std::bad_alloc&) {
        return false;
    }
    return true;
}

}  // namespace tenon
