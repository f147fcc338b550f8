// Times the linears of a Llama-like model, without Python: what a step's products cost at some numbers of tokens, for each
// weight type and instruction set of this machine.
//
//     tenon_cpu_bench [--threads N] [--isa NAME|all] [--types Q4_1,BF16] [--tokens 1,16,128] [--fine] [--shape smollm2|1b]
//     tenon_cpu_bench --attention [--threads N] [--isa NAME|all]
//
// A line: milliseconds of all linears of one step (median of rounds, least; CPU time of all threads), the weights' GB/s, and 10^9 products and sums a second.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif

#include "linear/packed.h"
#include "tenon_cpu.h"

void time_attention(int threads, const char* isa);  // attention.cpp

namespace {

using Clock = std::chrono::steady_clock;

struct Type {
    const char* name;
    int32_t id;
};
const Type TYPES[] = {{"F32", 0},  {"F16", 1},   {"Q4_0", 2},  {"Q4_1", 3},  {"Q5_0", 6},  {"Q5_1", 7},
                      {"Q8_0", 8}, {"Q4_K", 12}, {"Q5_K", 13}, {"Q6_K", 14}, {"BF16", 30}};
const char* const ISAS[] = {"portable", "avx2", "avx512", "avx512_vnni", "amx"};

struct Shape {
    const char* name;
    int64_t hidden, qkv, inner, layers, vocab;
};
const Shape SHAPES[] = {{"smollm2", 576, 960, 1536, 30, 49152}, {"1b", 2048, 2560, 5632, 22, 32000}};

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "%s\n", what);
    std::exit(2);
}

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> words;
    size_t begin = 0;
    for (size_t end; (end = text.find(',', begin)) != std::string::npos; begin = end + 1) words.push_back(text.substr(begin, end - begin));
    words.push_back(text.substr(begin));
    return words;
}

uint32_t state = 1;
uint32_t random_bits() { return state = state * 1664525u + 1013904223u; }

// Codes at random; floats near 0.01, so that no sum overflows.
std::vector<uint8_t> weights(int32_t type, int64_t bytes) {
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
uint8_t* large_pages(int64_t bytes) {
    constexpr int64_t LARGE_PAGE = 2 << 20;
    const auto size = static_cast<size_t>((bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
    void* memory = std::aligned_alloc(LARGE_PAGE, size);
    if (memory == nullptr) fail("no memory");
#ifdef MADV_HUGEPAGE
    madvise(memory, size, MADV_HUGEPAGE);
#endif
    return static_cast<uint8_t*>(memory);
}

Linear make(int32_t type, int64_t rows, int64_t columns, bool silu, bool fine) {
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
    const int32_t epilogue = (silu ? TENON_SILU_MUL : TENON_PLAIN) | (fine ? TENON_FINE : 0);
    if (tenon_cpu_linear_new(parts, silu ? 2 : 1, columns, nullptr, epilogue, &made.handle)) fail("no linear");
    return made;
}

void time_steps(const Shape& shape, const Type& type, const std::vector<int64_t>& counts, bool fine, const char* isa) {
    std::vector<Linear> linears;
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
        linears.push_back(make(type.id, shape.qkv, shape.hidden, false, fine));
        linears.push_back(make(type.id, shape.hidden, shape.hidden, false, fine));
        linears.push_back(make(type.id, 2 * shape.inner, shape.hidden, true, fine));
        linears.push_back(make(type.id, shape.hidden, shape.inner, false, fine));
    }
    int64_t bytes = 0, products = 0;
    for (const Linear& linear : linears) bytes += linear.bytes, products += linear.rows * linear.columns;
    for (const int64_t tokens : counts) {
        const int64_t width = std::max(shape.inner, shape.qkv);
        std::vector<float> x(static_cast<size_t>(tokens * width)), y(static_cast<size_t>(tokens * width));
        std::vector<uint16_t> half(x.size()), half_y(x.size());
        for (float& value : x) value = static_cast<float>(random_bits() >> 8) / 8388608.0f - 1.0f;
        for (size_t i = 0; i < x.size(); ++i) {
            uint32_t bits;
            std::memcpy(&bits, &x[i], 4);
            half[i] = static_cast<uint16_t>(bits >> 16);
        }
        const bool bf16 = type.id == 30;
        std::vector<double> rounds;
        const auto begin = Clock::now();
        const std::clock_t used = std::clock();
        while (rounds.size() < 3 || (rounds.size() < 30 && Clock::now() - begin < std::chrono::milliseconds(400))) {
            const auto start = Clock::now();
            for (const Linear& linear : linears) {
                const int64_t out = linear.silu ? linear.rows / 2 : linear.rows;
                const tenon_linear_call call = {linear.handle,
                                                bf16 ? static_cast<const void*>(half.data()) : x.data(),
                                                bf16 ? static_cast<void*>(half_y.data()) : y.data(),
                                                tokens, linear.columns, out, bf16 ? TENON_BF16 : TENON_F32,
                                                bf16 ? TENON_BF16 : TENON_F32};
                if (tenon_cpu_linear(&call)) fail("a linear failed");
            }
            rounds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
        }
        const double cpu = static_cast<double>(std::clock() - used) / CLOCKS_PER_SEC / static_cast<double>(rounds.size());
        std::sort(rounds.begin(), rounds.end());
        const double seconds = rounds[rounds.size() / 2];
        std::printf("%-11s %-5s%s %5ld tokens  %9.3f ms  least %9.3f  cpu %9.3f  %7.1f GB/s  %8.1f GMAC/s\n", isa, type.name, fine ? " fine" : "     ",
                    static_cast<long>(tokens), seconds * 1e3, rounds[0] * 1e3, cpu * 1e3, static_cast<double>(bytes) / seconds / 1e9,
                    static_cast<double>(products * tokens) / seconds / 1e9);
        std::fflush(stdout);
    }
    for (Linear& linear : linears) {
        tenon_cpu_linear_free(linear.handle);
        std::free(linear.packed);
    }
}

}  // namespace

int main(int count, char** words) {
    int threads = 2;
    bool fine = false, attention = false;
    std::string isa = "auto", types = "Q4_1,Q8_0,Q4_K,BF16", tokens = "1,16,128", shape = "smollm2";
    for (int i = 1; i < count; ++i) {
        const std::string word = words[i];
        if (word == "--fine") fine = true;
        else if (word == "--attention") attention = true;
        else if (i + 1 == count) fail("an option without its value");
        else if (word == "--threads") threads = std::atoi(words[++i]);
        else if (word == "--isa") isa = words[++i];
        else if (word == "--types") types = words[++i];
        else if (word == "--tokens") tokens = words[++i];
        else if (word == "--shape") shape = words[++i];
        else fail("options: --threads --isa --types --tokens --fine --shape --attention");
    }
    if (tenon_cpu_threads_set(threads, nullptr, 200)) fail("no threads");
    std::vector<int64_t> counts;
    for (const auto& word : split(tokens)) counts.push_back(std::max(1L, std::atol(word.c_str())));
    for (int level = tenon_cpu_isa_best(); level >= 0; --level) {
        const bool is_best = level == tenon_cpu_isa_best();
        if (isa == "auto" ? !is_best : isa != "all" && isa != ISAS[level]) continue;
        if (isa == "all" && level == 0 && !is_best) continue;  // the portable level takes minutes
        tenon_cpu_isa_set(level);
        if (attention) {
            time_attention(threads, ISAS[level]);
            continue;
        }
        for (const auto& one : SHAPES)
            for (const auto& name : split(types))
                for (const auto& type : TYPES)
                    if (shape == one.name && name == type.name) time_steps(one, type, counts, fine, ISAS[level]);
    }
    return 0;
}
