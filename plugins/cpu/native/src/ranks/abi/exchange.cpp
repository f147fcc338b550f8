// Exchanges between the ranks of one host, through shared memory: a rank writes its part into a slot, counts up, and reads
// all slots once every rank has counted as far.
//
// Slots are used in turns of two. Whoever writes a slot again has seen all others begin the exchange between, so nobody
// still reads what it held. Sums are taken in the order of the ranks by each of them, so that all have the same bits.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "elementwise/elementwise.h"
#include "step/split.h"
#include "tape.h"

namespace tenon {
namespace {

constexpr int64_t LINE = 64;
constexpr int64_t ALONE = 32768;  // bytes that are not worth a second thread
constexpr int SPINS = 20000;      // looks before a core is given away: ranks have cores of their own

using Counter = std::atomic<uint64_t>;
static_assert(Counter::is_always_lock_free, "counters lie in memory of several processes");

Counter& counter(const ExchangeParams& p, int rank) {
    return *reinterpret_cast<Counter*>(static_cast<uint8_t*>(p.shared) + (1 + rank) * LINE);
}

// Whether somebody has said that a rank is gone.
bool is_broken(const ExchangeParams& p) {
    return static_cast<const Counter*>(p.shared)->load(std::memory_order_relaxed) != 0;
}

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Until rank `other` has come to exchange `number`; false where it does not.
bool comes(const ExchangeParams& p, int other, uint64_t number) {
    const Counter& theirs = counter(p, other);
    for (int looks = 0; looks < SPINS; ++looks) {
        if (theirs.load(std::memory_order_acquire) >= number) return true;
        pause();
    }
    const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(p.patience_ms);
    for (int looks = 0; theirs.load(std::memory_order_acquire) < number; ++looks) {
        if (is_broken(p) || std::chrono::steady_clock::now() > limit) return false;
        wait_a_little(looks);
    }
    return true;
}

void copy(uint8_t* to, const uint8_t* from, int64_t bytes) {
    split(bytes, ALONE, [&](int64_t begin, int64_t end) { std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin)); });
}

int run_exchange(const ExchangeParams& p) {
    const bool adds = p.source < 0;
    if (p.count == 0) return TENON_OK;
    if (p.x == nullptr || p.shared == nullptr || p.count < 0 || p.size < 1 || p.rank < 0 || p.rank >= p.size ||
        p.source >= p.size || p.slot_bytes < LINE || p.slot_bytes % LINE != 0)
        return TENON_BAD_ARGUMENT;
    if (p.type > 2 || (adds && p.type < 0)) return TENON_NO_SUCH_TYPE;
    if (is_broken(p)) return TENON_RANK_LOST;
    const int64_t element = p.type < 0 ? 1 : p.type == TENON_F32 ? 4 : 2, most = p.slot_bytes / element;
    uint8_t* const slots = static_cast<uint8_t*>(p.shared) + (1 + p.size) * LINE;
    Counter& own = counter(p, p.rank);
    for (int64_t first = 0; first < p.count; first += most) {
        const int64_t count = std::min(most, p.count - first);
        const uint64_t number = own.load(std::memory_order_relaxed) + 1;
        uint8_t* const turn = slots + static_cast<int64_t>(number & 1) * p.size * p.slot_bytes;
        uint8_t* const x = static_cast<uint8_t*>(p.x) + first * element;
        if (adds || p.source == p.rank) copy(turn + p.rank * p.slot_bytes, x, count * element);
        own.store(number, std::memory_order_release);
        for (int other = 0; other < p.size; ++other)
            if (!comes(p, other, number)) return TENON_RANK_LOST;
        if (adds)
            split(count, ALONE / element, [&](int64_t begin, int64_t end) {
                element_kernels().add_up(turn, p.slot_bytes, p.size, x, p.type, begin, end);
            });
        else if (p.source != p.rank) copy(x, turn + p.source * p.slot_bytes, count * element);
    }
    return TENON_OK;
}

}  // namespace

TENON_KERNEL(tenon_exchange, run_exchange, ExchangeParams)

}  // namespace tenon
