#include "threads.h"

#include <algorithm>
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

// Threads, and the gate through which they come to a region.
class Pool {
public:
    // Throws std::system_error where the system has no more threads; those that it began with are then gone.
    Pool(int threads, const int32_t* cores, int spin_us) : threads_(threads), spin_(spin_us) {
        try {
            for (int i = 1; i < threads; ++i) start(i, cores);
        } catch (...) {
            stop();
            throw;
        }
    }

    ~Pool() { stop(); }

    void run(int most, RegionFn fn, void* context) {
        fn_ = fn;
        context_ = context;
        most_ = most;
        left_.store(0, std::memory_order_relaxed);
        open();
        fn(context, 0, std::min(most, threads_));
        const uint64_t came = gate_.fetch_or(CLOSED, std::memory_order_acq_rel) & CAME;
        for (int looks = 0; left_.load(std::memory_order_acquire) != came; ++looks) wait_a_little(looks);
    }

private:
    void start(int thread, const int32_t* cores) {
        workers_.emplace_back([this, thread] { work(thread); });
#if defined(__linux__)
        if (cores != nullptr && cores[thread] >= 0 && cores[thread] < CPU_SETSIZE) {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET(cores[thread], &set);
            pthread_setaffinity_np(workers_.back().native_handle(), sizeof set, &set);
        }
#endif
    }

    void stop() {
        stop_.store(true);
        open();
        for (auto& worker : workers_) worker.join();
    }

    // gate_: the region's number, then whether it is closed, then how many workers came.
    static constexpr uint64_t CAME = 0xffff, CLOSED = 0x10000, NUMBER = 0x20000;

    void open() {
        gate_.store((gate_.load(std::memory_order_relaxed) / NUMBER + 1) * NUMBER, std::memory_order_seq_cst);
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
                const uint64_t now = gate_.load(std::memory_order_acquire) / NUMBER;
                if (now != seen) return now;
                relax();
            }
            if (now_is > start + patience) std::this_thread::yield();
        }
        std::unique_lock<std::mutex> lock(mutex_);
        sleeping_.fetch_add(1, std::memory_order_seq_cst);
        condition_.wait(lock, [&] { return gate_.load(std::memory_order_seq_cst) / NUMBER != seen; });
        sleeping_.fetch_sub(1, std::memory_order_seq_cst);
        return gate_.load(std::memory_order_acquire) / NUMBER;
    }

    // Into region `number`, where it is still open.
    bool enter(uint64_t number) {
        uint64_t gate = gate_.load(std::memory_order_acquire);
        while (gate / NUMBER == number && !(gate & CLOSED))
            if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel, std::memory_order_acquire))
                return true;
        return false;
    }

    void work(int thread);

    const int threads_;
    const std::chrono::microseconds spin_;
    std::vector<std::thread> workers_;
    RegionFn fn_ = nullptr;
    void* context_ = nullptr;
    int most_ = 0;
    std::atomic<bool> stop_{false};
    alignas(64) std::atomic<uint64_t> gate_{0};
    alignas(64) std::atomic<uint64_t> left_{0};  // workers that came and are through
    alignas(64) std::atomic<int> sleeping_{0};
    std::mutex mutex_;
    std::condition_variable condition_;
};

Pool* pool = nullptr;  // null: one thread
std::atomic<int> pool_threads{1};  // for who asks while another starts a pool anew
thread_local bool inside = false;
std::mutex region_mutex;  // the rule "one region at a time", kept even where callers break it

void Pool::work(int thread) {
    inside = true;
    uint64_t seen = 0;
    for (;;) {
        seen = next(seen);
        if (stop_.load()) return;
        if (!enter(seen)) continue;
        if (thread < most_) fn_(context_, thread, std::min(most_, threads_));
        left_.fetch_add(1, std::memory_order_acq_rel);
    }
}

#if defined(__linux__)
// A forked child has none of the workers: it goes on alone. What the pool held is left where it is.
void forget_pool() {
    pool = nullptr;
    pool_threads = 1;
    new (&region_mutex) std::mutex;
}
const int at_fork = pthread_atfork(nullptr, nullptr, forget_pool);
#endif

}  // namespace

int num_threads() {
    return inside ? 1 : pool_threads.load(std::memory_order_relaxed);
}

void run_region(int most, RegionFn fn, void* context) {
    if (inside) return fn(context, 0, 1);
    std::lock_guard<std::mutex> lock(region_mutex);
    if (pool == nullptr) {
        inside = true;
        fn(context, 0, 1);
    } else {
        inside = true;
        pool->run(most, fn, context);
    }
    inside = false;
}

void wait_a_little(int looks) {
    constexpr int SPIN = 400, YIELD = 50;  // some 10 us of looks without a break, then some 50 that give the core away
    if (looks < SPIN) relax();
    else if (looks < SPIN + YIELD) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(50));
}

bool set_threads(int threads, const int32_t* cores, int spin_us) {
    std::lock_guard<std::mutex> lock(region_mutex);
    delete pool;
    pool = nullptr;
    pool_threads = 1;
    if (threads <= 1) return true;
    try {
        pool = new Pool(threads, cores, spin_us);
    } catch (const std::system_error&) {
        return false;
    } catch (const std::bad_alloc&) {
        return false;
    }
    pool_threads = threads;
    return true;
}

}  // namespace tenon
