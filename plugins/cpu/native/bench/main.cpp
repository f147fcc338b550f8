// Times the linears of a Llama-like model, without Python: what a step's products cost at some numbers of tokens, for each
// weight type and instruction set of this machine.
//
//     tenon_cpu_bench [--threads N] [--isa NAME|all] [--types Q4_1,BF16] [--tokens 1,16,128] [--fine] [--alike] [--shape smollm2|1b]
//     tenon_cpu_bench --share [--threads N] [--shape smollm2|1b] [--tokens 512] [--layers N] [--rounds N]    bfloat16 with AMX
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

#include "linears.h"
#include "tenon_cpu.h"

void time_attention(int threads, const char* isa);  // attention.cpp
void measure_share(const Shape& shape, int64_t tokens, int64_t layers, int rounds);  // share.cpp

namespace {

using Clock = std::chrono::steady_clock;

struct Type {
    const char* name;
    int32_t id;
};
const Type TYPES[] = {{"F32", 0},  {"F16", 1},   {"Q4_0", 2},  {"Q4_1", 3},  {"Q5_0", 6},  {"Q5_1", 7},
                      {"Q8_0", 8}, {"Q4_K", 12}, {"Q5_K", 13}, {"Q6_K", 14}, {"BF16", 30}};
const char* const ISAS[] = {"portable", "avx2", "avx512", "avx512_vnni", "amx"};

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> words;
    size_t begin = 0;
    for (size_t end; (end = text.find(',', begin)) != std::string::npos; begin = end + 1) words.push_back(text.substr(begin, end - begin));
    words.push_back(text.substr(begin));
    return words;
}

void time_steps(const Shape& shape, const Type& type, const std::vector<int64_t>& counts, int32_t precision, const char* isa) {
    std::vector<Linear> linears = make_layers(shape, shape.layers, type.id, precision);
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
        std::printf("%-11s %-5s%s %5ld tokens  %9.3f ms  least %9.3f  cpu %9.3f  %7.1f GB/s  %8.1f GMAC/s\n", isa, type.name, precision == TENON_FINE ? " fine" : precision ? " alike" : "     ",
                    static_cast<long>(tokens), seconds * 1e3, rounds[0] * 1e3, cpu * 1e3, static_cast<double>(bytes) / seconds / 1e9,
                    static_cast<double>(products * tokens) / seconds / 1e9);
        std::fflush(stdout);
    }
    free_all(linears);
}

}  // namespace

int main(int count, char** words) {
    int threads = 2, rounds = 7;
    int64_t layers = 0;
    bool attention = false, share = false;
    int32_t precision = 0;  // of tenon_precision
    std::string isa = "auto", types = "Q4_1,Q8_0,Q4_K,BF16", tokens, shape = "smollm2";
    for (int i = 1; i < count; ++i) {
        const std::string word = words[i];
        if (word == "--fine") precision |= TENON_FINE;
        else if (word == "--alike") precision |= TENON_ALIKE;
        else if (word == "--attention") attention = true;
        else if (word == "--share") share = true;
        else if (i + 1 == count) fail("an option without its value");
        else if (word == "--threads") threads = std::atoi(words[++i]);
        else if (word == "--isa") isa = words[++i];
        else if (word == "--types") types = words[++i];
        else if (word == "--tokens") tokens = words[++i];
        else if (word == "--layers") layers = std::atol(words[++i]);
        else if (word == "--rounds") rounds = std::atoi(words[++i]);
        else if (word == "--shape") shape = words[++i];
        else fail("options: --threads --isa --types --tokens --fine --alike --shape --attention --share --layers --rounds");
    }
    if (tenon_cpu_threads_set(threads, nullptr, 200)) fail("no threads");
    if (tokens.empty()) tokens = share ? "512" : "1,16,128";
    std::vector<int64_t> counts;
    for (const auto& word : split(tokens)) counts.push_back(std::max(1L, std::atol(word.c_str())));
    if (share) {
        for (const auto& one : SHAPES)
            if (shape == one.name) measure_share(one, counts[0], layers > 0 ? layers : one.layers, rounds);
        return 0;
    }
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
                    if (shape == one.name && name == type.name) time_steps(one, type, counts, precision, ISAS[level]);
    }
    return 0;
}
