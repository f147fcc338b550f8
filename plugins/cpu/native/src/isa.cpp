#include "isa.h"

#include <atomic>
#include <cstdint>

#if defined(TENON_X86)
#include <cpuid.h>
#endif
#if defined(TENON_X86) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tenon {
namespace {

#if defined(TENON_X86)
struct Leaf {
    uint32_t a = 0, b = 0, c = 0, d = 0;
};

Leaf leaf(uint32_t number, uint32_t sub = 0) {
    Leaf r;
    if (!__get_cpuid_count(number, sub, &r.a, &r.b, &r.c, &r.d)) return {};
    return r;
}

bool bit(uint32_t word, int index) {
    return (word >> index & 1) != 0;
}

// The register states that the system saves when it switches threads.
uint64_t saved_states() {
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<uint64_t>(high) << 32 | low;
}

// Linux gives a process the tile registers only when it asks.
bool ask_for_tiles() {
#if defined(__linux__)
    constexpr long request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request, tile_data) == 0;
#else
    return false;
#endif
}

Isa detect() {
    const Leaf one = leaf(1), seven = leaf(7), seven_one = leaf(7, 1);
    if (!bit(one.c, 27)) return Isa::portable;  // OSXSAVE
    const uint64_t states = saved_states();
    const bool avx2 = (states & 0x6) == 0x6 && bit(one.c, 28) && bit(one.c, 12) && bit(one.c, 29) && bit(seven.b, 5);
    if (!avx2) return Isa::portable;  // AVX, FMA, F16C, AVX2
    const bool avx512 = (states & 0xe6) == 0xe6 && bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) &&
                        bit(seven.b, 31);  // F, DQ, BW, VL
    if (!avx512) return Isa::avx2;
    if (!bit(seven.c, 11)) return Isa::avx512;  // VNNI
    const bool tiles = (states & 0x60000) == 0x60000 && bit(seven.d, 22) && bit(seven.d, 24) && bit(seven.d, 25);
    if (tiles && bit(seven_one.a, 5) && ask_for_tiles()) return Isa::amx;  // AMX-BF16, -TILE, -INT8; AVX512-BF16
    return Isa::avx512_vnni;
}
#else
Isa detect() {
    return Isa::portable;
}
#endif

std::atomic<int> current{-1};

}  // namespace

Isa best_isa() {
    static const Isa best = detect();
    return best;
}

Isa current_isa() {
    const int isa = current.load(std::memory_order_relaxed);
    return isa < 0 ? best_isa() : static_cast<Isa>(isa);
}

bool set_isa(Isa isa) {
    if (isa < Isa::portable || isa > best_isa()) return false;
    current.store(static_cast<int>(isa), std::memory_order_relaxed);
    return true;
}

}  // namespace tenon
