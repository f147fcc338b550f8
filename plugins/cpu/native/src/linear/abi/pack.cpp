// Packing: the bits of a file's rows in the order that kernels read (packed.h), and back. Sizes are checked here.
//
// Each bit has one place in either form, so one walk serves both ways: `Forth` copies stored bits to packed places,
// `Back` the other way round.
#include <cstring>

#include "linear/packed.h"
#include "tenon_cpu.h"
#include "threads.h"

namespace tenon {
namespace {

// `width` bits at shift `from` of each of four bytes, and their place at shift `to` of four others.
inline uint32_t take4(const uint8_t* bytes, int from, int width) {
    uint32_t four;
    std::memcpy(&four, bytes, 4);
    return four >> from & 0x01010101u * ((1u << width) - 1);
}
inline void join4(uint8_t* bytes, uint32_t four, int to) {
    uint32_t all;
    std::memcpy(&all, bytes, 4);
    all |= four << to;
    std::memcpy(bytes, &all, 4);
}

// `width` bits at shift `from` of *stored against `width` bits at shift `to` of *packed; bits4: of four bytes each.
struct Forth {
    static constexpr bool forth = true;
    static void bits(uint8_t* stored, int from, uint8_t* packed, int to, int width) {
        *packed = static_cast<uint8_t>(*packed | (*stored >> from & ((1 << width) - 1)) << to);
    }
    static void bits4(uint8_t* stored, int from, uint8_t* packed, int to, int width) {
        join4(packed, take4(stored, from, width), to);
    }
    static void bytes(uint8_t* stored, uint8_t* packed, size_t count) { std::memcpy(packed, stored, count); }
};
struct Back {
    static constexpr bool forth = false;
    static void bits(uint8_t* stored, int from, uint8_t* packed, int to, int width) {
        *stored = static_cast<uint8_t>(*stored | (*packed >> to & ((1 << width) - 1)) << from);
    }
    static void bits4(uint8_t* stored, int from, uint8_t* packed, int to, int width) {
        join4(stored, take4(packed, to, width), from);
    }
    static void bytes(uint8_t* stored, uint8_t* packed, size_t count) { std::memcpy(stored, packed, count); }
};

// Where column c (0..31) of row `lane` lies in 64 bytes a step.
int step_of(int c) { return c >> 2; }
int byte_of(int c, int lane) { return 4 * lane + (c & 3); }

// Columns c..c+3, which are one step.
template <class Way>
void nibbles(uint8_t* stored, int shift, uint8_t* codes, int c, int lane) {
    const int s = step_of(c);
    Way::bits4(stored, shift, codes + 64 * (s & 3) + byte_of(c, lane), s < 4 ? 0 : 4, 4);
}

// Q4_0, Q4_1, Q5_0, Q5_1: d, maybe m, maybe 32 fifth bits, 16 bytes of nibbles.
template <class Way>
void simple(uint8_t* block, uint8_t* packed, int lane, bool has_min, bool fifth) {
    const int head = has_min ? 4 : 2, meta = 256 + (fifth ? 64 : 0);
    Way::bytes(block, packed + meta + 2 * lane, 2);
    if (has_min) Way::bytes(block + 2, packed + meta + 32 + 2 * lane, 2);
    uint8_t* low = block + head + (fifth ? 4 : 0);
    for (int c = 0; c < 32; c += 4) nibbles<Way>(low + (c & 15), c < 16 ? 0 : 4, packed, c, lane);
    for (int c = 0; c < 32; ++c) {
        if (fifth) Way::bits(block + head + (c >> 3), c & 7, packed + 256 + byte_of(c, lane), step_of(c), 1);
    }
}

template <class Way>
void q8(uint8_t* block, uint8_t* packed, int lane) {
    Way::bytes(block, packed + 512 + 2 * lane, 2);
    for (int s = 0; s < 8; ++s) Way::bytes(block + 2 + 4 * s, packed + 64 * s + 4 * lane, 4);
}

// The 6-bit scale and minimum of group g in 12 bytes: as ggml's get_scale_min_k4, and its inverse bit by bit.
template <class Way>
void k_scales(uint8_t* twelve, int g, uint8_t* scale, uint8_t* minimum) {
    if (g < 4) {
        Way::bits(twelve + g, 0, scale, 0, 6);
        Way::bits(twelve + g + 4, 0, minimum, 0, 6);
    } else {
        Way::bits(twelve + g + 4, 0, scale, 0, 4);
        Way::bits(twelve + g - 4, 6, scale, 4, 2);
        Way::bits(twelve + g + 4, 4, minimum, 0, 4);
        Way::bits(twelve + g, 6, minimum, 4, 2);
    }
}

template <class Way>
void q45_k(uint8_t* block, uint8_t* packed, int lane, bool fifth) {
    const int meta = 256 + (fifth ? 64 : 0), bytes = meta + 32;
    Way::bytes(block, packed + 2 * lane, 2);
    Way::bytes(block + 2, packed + 32 + 2 * lane, 2);
    uint8_t* low = block + 16 + (fifth ? 32 : 0);
    for (int g = 0; g < 8; ++g) {
        uint8_t* part = packed + 64 + g * bytes;
        k_scales<Way>(block + 4, g, part + meta + lane, part + meta + 16 + lane);
        for (int c = 0; c < 32; c += 4) {
            nibbles<Way>(low + 32 * (g >> 1) + c, (g & 1) * 4, part, c, lane);
            if (fifth) Way::bits4(block + 16 + c, g, part + 256 + byte_of(c, lane), step_of(c), 1);
        }
    }
}

template <class Way>
void q6_k(uint8_t* block, uint8_t* packed, int lane) {
    Way::bytes(block + 208, packed + 2 * lane, 2);
    for (int g = 0; g < 8; ++g) {
        uint8_t* part = packed + 32 + g * 416;
        const int half = g >> 2, quarter = g & 3;
        for (int h = 0; h < 2; ++h) Way::bytes(block + 192 + 2 * g + h, part + 384 + 16 * h + lane, 1);
        for (int c = 0; c < 32; c += 4) {
            nibbles<Way>(block + 64 * half + 32 * (quarter & 1) + c, (quarter >> 1) * 4, part, c, lane);
            const int s = step_of(c);
            Way::bits4(block + 128 + 32 * half + c, 2 * quarter, part + 256 + 64 * (s >> 2) + byte_of(c, lane),
                       2 * (s & 3), 2);
        }
    }
}

template <class Way>
void row(int32_t type, const TypeInfo& info, int64_t columns, uint8_t* stored, uint8_t* group, int lane) {
    const int64_t blocks = columns / info.columns;
    for (int64_t b = 0; b < blocks; ++b, stored += info.stored_bytes) {
        uint8_t* packed = group + b * info.packed_bytes;
        switch (static_cast<WeightType>(type)) {
            case WeightType::f32: Way::bytes(stored, packed + 4 * lane, 4); break;
            case WeightType::f16: Way::bytes(stored, packed + 2 * lane, 2); break;
            case WeightType::bf16: Way::bytes(stored, group + 64 * (b >> 1) + 4 * lane + 2 * (b & 1), 2); break;
            case WeightType::q4_0: simple<Way>(stored, packed, lane, false, false); break;
            case WeightType::q4_1: simple<Way>(stored, packed, lane, true, false); break;
            case WeightType::q5_0: simple<Way>(stored, packed, lane, false, true); break;
            case WeightType::q5_1: simple<Way>(stored, packed, lane, true, true); break;
            case WeightType::q8_0: q8<Way>(stored, packed, lane); break;
            case WeightType::q4_k: q45_k<Way>(stored, packed, lane, false); break;
            case WeightType::q5_k: q45_k<Way>(stored, packed, lane, true); break;
            case WeightType::q6_k: q6_k<Way>(stored, packed, lane); break;
        }
    }
}

constexpr int64_t MOST = int64_t{1} << 40;  // rows, columns: far above any model, and no product overflows with 2^20 each

// Bytes of both forms, or a status.
int sizes(int32_t type, int64_t rows, int64_t columns, int64_t* stored, int64_t* packed) {
    const TypeInfo info = type_info(type);
    if (info.columns == 0) return TENON_NO_SUCH_TYPE;
    if (rows <= 0 || columns <= 0 || columns % info.columns != 0) return TENON_BAD_ARGUMENT;
    if (rows > MOST / columns) return TENON_BAD_ARGUMENT;
    *stored = rows * stored_row_bytes(info, columns);
    *packed = num_groups(rows) * packed_group_bytes(type, info, columns);
    return TENON_OK;
}

template <class Way>
int walk(int32_t type, int64_t rows, int64_t columns, uint8_t* stored, int64_t stored_bytes, uint8_t* packed,
         int64_t packed_bytes) {
    int64_t stored_need = 0, packed_need = 0;
    if (const int status = sizes(type, rows, columns, &stored_need, &packed_need)) return status;
    if (stored == nullptr || packed == nullptr) return TENON_BAD_ARGUMENT;
    if (stored_bytes < stored_need || packed_bytes < packed_need) return TENON_BAD_SIZE;
    const TypeInfo info = type_info(type);
    const int64_t row_bytes = stored_row_bytes(info, columns), group_bytes = packed_group_bytes(type, info, columns);
    parallel_for(num_groups(rows), num_threads(), [&](int64_t begin, int64_t end, int) {
        for (int64_t g = begin; g < end; ++g) {
            const int64_t first = g * GROUP, last = first + GROUP < rows ? first + GROUP : rows;
            uint8_t* group = packed + g * group_bytes;
            if (Way::forth) std::memset(group, 0, static_cast<size_t>(group_bytes));
            else std::memset(stored + first * row_bytes, 0, static_cast<size_t>((last - first) * row_bytes));
            for (int64_t r = first; r < last; ++r)
                row<Way>(type, info, columns, stored + r * row_bytes, group, static_cast<int>(r - first));
        }
    });
    return TENON_OK;
}

}  // namespace
}  // namespace tenon

extern "C" {

int64_t tenon_cpu_packed_bytes(int32_t type, int64_t rows, int64_t columns) {
    int64_t stored = 0, packed = 0;
    const int status = tenon::sizes(type, rows, columns, &stored, &packed);
    return status ? -status : packed;
}

int tenon_cpu_pack(int32_t type, int64_t rows, int64_t columns, const void* stored, int64_t stored_bytes,
                   void* packed, int64_t packed_bytes) {
    auto* from = static_cast<uint8_t*>(const_cast<void*>(stored));  // Forth only reads it
    return tenon::walk<tenon::Forth>(type, rows, columns, from, stored_bytes, static_cast<uint8_t*>(packed),
                                     packed_bytes);
}

int tenon_cpu_unpack(int32_t type, int64_t rows, int64_t columns, const void* packed, int64_t packed_bytes,
                     void* stored, int64_t stored_bytes) {
    auto* from = static_cast<uint8_t*>(const_cast<void*>(packed));  // Back only reads it
    return tenon::walk<tenon::Back>(type, rows, columns, static_cast<uint8_t*>(stored), stored_bytes, from,
                                    packed_bytes);
}

}  // extern "C"
