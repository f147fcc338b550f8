// bfloat16 linears of many tokens as a share of what AMX's products alone reach. A core's rate swings by itself, so each run
// stands between two measurements of that.
#include <algorithm>
#include <chrono>

#include "linears.h"
#include "threads.h"

void tile_products(bool loads, int64_t rounds);  // tile_peak.cpp

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// 10^9 sums and products, each one, a second, of all threads together.
double peak(bool loads) {
    constexpr int64_t ROUNDS = 8000, SHARES = 32;
    const auto start = Clock::now();
    tenon::parallel_for(SHARES, tenon::num_threads(), [&](int64_t begin, int64_t end, int) {
        for (; begin < end; ++begin) tile_products(loads, ROUNDS);
    });
    return static_cast<double>(SHARES * ROUNDS) * 4 * 16 * 16 * 32 * 2 / seconds_since(start) / 1e9;
}

double median(std::vector<double> all) {
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

struct Values {
    std::vector<uint16_t> x, y;
};

double run_step(const std::vector<Linear>& linears, Values& values, int64_t tokens) {
    const auto start = Clock::now();
    for (const Linear& linear : linears) {
        const tenon_linear_call call = {linear.handle, values.x.data(), values.y.data(), tokens, linear.columns,
                                        linear.silu ? linear.rows / 2 : linear.rows, TENON_BF16, TENON_BF16};
        if (tenon_cpu_linear(&call)) fail("a linear failed");
    }
    return seconds_since(start);
}

void measure(const char* title, const std::vector<Linear>& linears, Values& values, int64_t tokens, int rounds) {
    double work = 0;
    for (const Linear& linear : linears) work += 2.0 * static_cast<double>(linear.rows * linear.columns * tokens) / 1e9;
    std::vector<double> seconds, products, loads, shares;
    run_step(linears, values, tokens);
    for (int round = 0; round < rounds; ++round) {
        const double before = peak(false), loads_before = peak(true);
        seconds.push_back(run_step(linears, values, tokens));
        loads.push_back((loads_before + peak(true)) / 2);
        products.push_back((before + peak(false)) / 2);
        shares.push_back(work / seconds.back() / products.back());
    }
    std::printf("%-12s %ld tokens %7.1f GFLOP %9.3f ms  least %9.3f  %6.0f GFLOP/s; products alone %6.0f, with loads %6.0f; share %5.1f%%\n", title, static_cast<long>(tokens), work,
                1e3 * median(seconds), 1e3 * *std::min_element(seconds.begin(), seconds.end()), work / median(seconds), median(products), median(loads), 100 * median(shares));
    std::fflush(stdout);
}

}  // namespace

void measure_share(const Shape& shape, int64_t tokens, int64_t layers, int rounds) {
    if (tenon_cpu_isa_best() != 4) fail("no AMX here");
    std::vector<Linear> all = make_layers(shape, layers, 30, 0);
    Values values;
    values.x.resize(static_cast<size_t>(tokens * std::max(shape.inner, shape.hidden)));
    values.y.resize(static_cast<size_t>(tokens * std::max(shape.inner, shape.qkv)));
    for (auto& value : values.x) value = static_cast<uint16_t>((random_bits() >> 16 & 0x807f) | 0x3f00);
    measure(shape.name, all, values, tokens, rounds);
    const char* const titles[] = {"qkv", "o", "gate and up", "down"};
    for (size_t k = 0; k < 4; ++k) {
        std::vector<Linear> same;
        for (size_t i = k; i < all.size(); i += 4) same.push_back(all[i]);
        measure(titles[k], same, values, tokens, rounds);
    }
    free_all(all);
}
