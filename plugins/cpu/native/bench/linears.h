// The linears of Llama-like models, with weights at random.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif

#include "linear/packed.h"
#include "tenon_cpu.h"

struct Shape {
    const char* name;
    int64_t hidden, qkv, inner, layers, vocab;
};
inline const Shape SHAPES[] = {{"smollm2", 576, 960, 1536, 30, 49152}, {"1b", 2048, 2560, 5632, 22, 32000}};

[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "%s\n", what);
    std::exit(2);
}

inline uint32_t state = 1;
inline uint32_t random_bits() { return state = state * 1664525u + 1013904223u; }

// Codes at random; floats near 0.01, so that no sum overflows.
inline std::vector<uint8_t> weights(int32_t type, int64_t bytes) {
    std::vector<uint8_t> made(static_cast<size_t>(bytes));
    for (auto& byte : made) byte = static_cast<uint8_t>(random_bits() >> 24);
    const auto kind = static_cast<tenon::WeightType>(type);
    if (kind == tenon::WeightType::f32 || kind == tenon::WeightType::f16 || kind == tenon::WeightType::bf16) {
        const int size = kind == tenon::WeightType::f32 ? 4 : 2;
        for (size_t i = static_cast<size_t>(size) - 1; i < made.size(); i += static_cast<size_t>(size)) made[i] = static_cast<uint8_t>((made[i] & 0x80) | 0x3c);
    }
    return made;
}

struct Linear {
    void* handle = nullptr;
    uint8_t* packed = nullptr;
    int64_t rows, columns, bytes;
    bool silu;
};

// As the engine holds weights: in pages of 2 MiB, where the system has them.
inline uint8_t* large_pages(int64_t bytes) {
    constexpr int64_t LARGE_PAGE = 2 << 20;
    const auto size = static_cast<size_t>((bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
    void* memory = std::aligned_alloc(LARGE_PAGE, size);
    if (memory == nullptr) fail("no memory");
#ifdef MADV_HUGEPAGE
    madvise(memory, size, MADV_HUGEPAGE);
#endif
    return static_cast<uint8_t*>(memory);
}

inline Linear make(int32_t type, int64_t rows, int64_t columns, bool silu, int32_t precision) {
    const tenon::TypeInfo info = tenon::type_info(type);
    if (columns % info.columns) columns = columns / info.columns * info.columns;  // K types: 576 becomes 512
    Linear made{nullptr, nullptr, rows, columns, tenon_cpu_packed_bytes(type, rows, columns), silu};
    const int64_t stored_bytes = rows * tenon::stored_row_bytes(info, columns);
    const std::vector<uint8_t> stored = weights(type, stored_bytes);
    made.packed = large_pages(made.bytes);
    if (tenon_cpu_pack(type, rows, columns, stored.data(), stored_bytes, made.packed, made.bytes)) fail("packing failed");
    const int64_t half = made.bytes / 2;
    const tenon_linear_part parts[2] = {{made.packed, silu ? half : made.bytes, silu ? rows / 2 : rows, type, 0},
                                        {made.packed + half, half, rows / 2, type, 0}};
    const int32_t epilogue = (silu ? TENON_SILU_MUL : TENON_PLAIN) | precision;
    if (tenon_cpu_linear_new(parts, silu ? 2 : 1, columns, nullptr, epilogue, &made.handle)) fail("no linear");
    return made;
}

// All linears of `layers` layers.
inline std::vector<Linear> make_layers(const Shape& shape, int64_t layers, int32_t type, int32_t precision) {
    std::vector<Linear> linears;
    for (int64_t layer = 0; layer < layers; ++layer) {
        linears.push_back(make(type, shape.qkv, shape.hidden, false, precision));
        linears.push_back(make(type, shape.hidden, shape.hidden, false, precision));
        linears.push_back(make(type, 2 * shape.inner, shape.hidden, true, precision));
        linears.push_back(make(type, shape.hidden, shape.inner, false, precision));
    }
    return linears;
}

inline void free_all(std::vector<Linear>& linears) {
    for (Linear& linear : linears) {
        tenon_cpu_linear_free(linear.handle);
        std::free(linear.packed);
    }
}
