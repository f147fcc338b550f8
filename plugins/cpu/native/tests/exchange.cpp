// Ranks that are threads: sums in every type and copies, over more than a slot, again and again; one that does not come.
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "step/params.h"
#include "tenon_cpu.h"

extern "C" TENON_API int tenon_exchange(const tenon::ExchangeParams*);

namespace {

constexpr int64_t SLOT = 256;

std::vector<uint8_t> shared_of(int size) { return std::vector<uint8_t>(128 + size * 64 + 2 * size * SLOT); }
void* aligned(std::vector<uint8_t>& memory) {
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
}

// Small whole numbers, whose sums are exact in every type.
float value(int rank, int64_t i, int round) { return static_cast<float>((rank * 7 + i * 3 + round) % 16); }

uint16_t half_of(float x, int type) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (type == TENON_BF16) return static_cast<uint16_t>(bits >> 16);
    if (x == 0) return 0;
    return static_cast<uint16_t>((((bits >> 23) - 112) << 10) | ((bits >> 13) & 0x3ff));
}

std::vector<uint8_t> bytes_of(int type, int64_t count, const std::vector<float>& values) {
    std::vector<uint8_t> bytes(static_cast<size_t>(count) * (type == TENON_F32 ? 4 : 2));
    for (int64_t i = 0; i < count; ++i) {
        const uint16_t half = half_of(values[static_cast<size_t>(i)], type);
        if (type == TENON_F32) std::memcpy(bytes.data() + 4 * i, &values[static_cast<size_t>(i)], 4);
        else std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
    return bytes;
}

}  // namespace

bool exchanges_are_right(int size, int type, int64_t count, int source) {
    auto memory = shared_of(size);
    std::vector<int> right(static_cast<size_t>(size), 1);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; ++rank)
        ranks.emplace_back([&, rank] {
            for (int round = 0; round < 50; ++round) {
                std::vector<float> own(static_cast<size_t>(count)), want(static_cast<size_t>(count));
                for (int64_t i = 0; i < count; ++i) {
                    own[static_cast<size_t>(i)] = value(rank, i, round);
                    for (int other = 0; other < size; ++other)
                        if (source < 0 || other == source) want[static_cast<size_t>(i)] += value(other, i, round);
                }
                auto x = bytes_of(type, count, own);
                const int as = source < 0 ? type : -1;
                const tenon::ExchangeParams params = {x.data(), aligned(memory), as < 0 ? static_cast<int64_t>(x.size()) : count,
                                                      SLOT, 60000, rank, size, as, source};
                if (tenon_exchange(&params) != TENON_OK || x != bytes_of(type, count, want)) right[static_cast<size_t>(rank)] = 0;
            }
        });
    for (auto& rank : ranks) rank.join();
    for (const int one : right)
        if (!one) return false;
    return true;
}

bool a_lost_rank_is_told() {
    auto memory = shared_of(2);
    float x[4] = {1, 2, 3, 4};
    const tenon::ExchangeParams alone = {x, aligned(memory), 4, SLOT, 20, 0, 2, TENON_F32, -1};
    if (tenon_exchange(&alone) != TENON_RANK_LOST) return false;
    tenon::ExchangeParams broken = alone;  // waits for long, until it is told
    broken.patience_ms = 600000;
    std::thread teller([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        __atomic_store_n(static_cast<uint64_t*>(broken.shared), uint64_t{1}, __ATOMIC_RELAXED);
    });
    const int told = tenon_exchange(&broken);
    teller.join();
    if (told != TENON_RANK_LOST || tenon_exchange(&broken) != TENON_RANK_LOST) return false;
    tenon::ExchangeParams wrong = alone;
    wrong.type = -1;  // bytes have no sum
    if (tenon_exchange(&wrong) != TENON_NO_SUCH_TYPE) return false;
    wrong = alone;
    wrong.slot_bytes = 100;
    return tenon_exchange(&wrong) == TENON_BAD_ARGUMENT;
}
