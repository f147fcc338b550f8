// Attention in bfloat16 against float64, on the instruction set that is set or on emulated tiles: decode rows and prefills, in
// one batch; with a cache in bfloat16, or in int8, of which the truth is what its codes say.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "step/params.h"
#include "tenon_cpu.h"

extern "C" {
int tenon_attention_plan(const void*);
int tenon_attention(const void*);
int tenon_write_kv(const void*);
int tenon_exchange_blocks(const void*);
}

void attend_on_emulated_tiles(const tenon::AttentionParams&);  // attention_tiles.cpp

namespace {

uint32_t state = 1;
uint16_t random_bf16() {  // of either sign, 0.5 to 2
    state = state * 1664525u + 1013904223u;
    return static_cast<uint16_t>((state >> 16 & 0x807f) | (state >> 8 & 0x80 ? 0x3f00 : 0x3f80));
}

double value_of(uint16_t bits) {
    const int exponent = (bits >> 7 & 255) - 134;
    const double size = bits & 0x7fff ? std::ldexp(static_cast<double>((bits & 127) | 128), exponent) : 0;
    return bits & 0x8000 ? -size : size;
}

// A row: `count` queries at the end of `length` tokens, whose keys and values are [length, kv heads, dim].
struct Row {
    int32_t count, length;
    std::vector<double> keys, values;
};

// softmax(scale q k) v of a query that sees `seen` tokens, in float64; out [dim]; sizes [dim]: the same of magnitudes.
void attend(const Row& row, const uint16_t* query, int seen, int kv_heads, int kv_head, int dim, double scale, double* out, double* sizes) {
    std::vector<double> weights(static_cast<size_t>(seen));
    double top = -1e300, total = 0;
    for (int t = 0; t < seen; ++t) {
        double sum = 0;
        for (int d = 0; d < dim; ++d) sum += value_of(query[d]) * row.keys[static_cast<size_t>((t * kv_heads + kv_head) * dim + d)];
        weights[static_cast<size_t>(t)] = scale * sum;
        top = std::fmax(top, scale * sum);
    }
    for (double& weight : weights) total += weight = std::exp(weight - top);
    for (int d = 0; d < dim; ++d) {
        out[d] = sizes[d] = 0;
        for (int t = 0; t < seen; ++t) {
            const double part = weights[static_cast<size_t>(t)] / total * row.values[static_cast<size_t>((t * kv_heads + kv_head) * dim + d)];
            out[d] += part;
            sizes[d] += std::fabs(part);
        }
    }
}

// What an int8 cache holds of a row becomes the truth, where it is within half a step of what was written.
bool read_back(Row& row, void* cache, const int32_t* blocks, int64_t stride, int block_size, int kv_heads, int dim) {
    const int64_t line = static_cast<int64_t>(kv_heads) * dim, count = (row.length + block_size - 1) / block_size;
    std::vector<float> canonical(static_cast<size_t>(count * 2 * block_size * line));
    const tenon::KVExchangeParams exchange = {cache, canonical.data(), blocks, count, stride, block_size, kv_heads, dim, 3, 0, 0};
    if (tenon_exchange_blocks(&exchange) != TENON_OK) return false;
    for (int64_t t = 0; t < row.length; ++t)
        for (int half = 0; half < 2; ++half) {
            std::vector<double>& written = half ? row.values : row.keys;
            for (int64_t c = 0; c < line; ++c) {
                const double found = static_cast<double>(canonical[static_cast<size_t>(((t / block_size * 2 + half) * block_size + t % block_size) * line + c)]);
                double& value = written[static_cast<size_t>(t * line + c)];
                if (!(std::fabs(found - value) <= 2.0 / 127 * 0.501)) return false;  // values reach 2
                value = found;
            }
        }
    return true;
}

}  // namespace

bool attention_is_right(int heads, int kv_heads, int dim, int block_size, bool emulated, bool int8) {
    std::vector<Row> rows = {{1, 70, {}, {}}, {1, 1, {}, {}}, {1, 300, {}, {}}, {50, 50, {}, {}}, {7, 90, {}, {}}};
    const auto count = static_cast<int32_t>(rows.size());
    const int64_t line = static_cast<int64_t>(kv_heads) * dim, most = 300 / block_size + 1;  // most: blocks of a row
    const int64_t stride = static_cast<int64_t>(kv_heads) * 2 * block_size * (int8 ? dim + 4 : dim), size = int8 ? 1 : 2;
    const int kv_type = int8 ? 3 : 1;
    std::vector<uint16_t> cache(static_cast<size_t>((1 + count * most) * stride * size / 2), int8 ? 0xffff : 0x7fc0);  // not-a-number
    std::vector<int32_t> table(static_cast<size_t>(count * most)), starts = {0}, lengths, names;
    for (int32_t r = 0; r < count; ++r) {
        Row& row = rows[static_cast<size_t>(r)];
        for (int64_t b = 0; b < most; ++b) table[static_cast<size_t>(r * most + b)] = static_cast<int32_t>(1 + (b * count + r));
        std::vector<int32_t> slots;
        for (int t = 0; t < row.length; ++t) slots.push_back(table[static_cast<size_t>(r * most + t / block_size)] * block_size + t % block_size);
        std::vector<uint16_t> written[2];
        for (auto& part : written)
            for (int64_t i = 0; i < row.length * line; ++i) part.push_back(random_bf16());
        const tenon::KVWriteParams write = {written[0].data(), written[1].data(), cache.data(), slots.data(), row.length, line, line,
                                            stride, block_size, kv_heads, dim, 1, kv_type, 0};
        if (tenon_write_kv(&write) != TENON_OK) return false;
        for (const uint16_t value : written[0]) row.keys.push_back(value_of(value));
        for (const uint16_t value : written[1]) row.values.push_back(value_of(value));
        if (int8 && !read_back(row, cache.data(), table.data() + r * most, stride, block_size, kv_heads, dim)) return false;
        starts.push_back(starts.back() + row.count);
        lengths.push_back(row.length);
        names.push_back(r);
    }
    const int32_t tokens = starts.back(), parts = 3, valid[2] = {tokens, count};
    std::vector<int32_t> plan(static_cast<size_t>(tenon::PLAN_HEADER + 8 * count + 4 * (parts + 1)));
    const tenon::AttentionPlanParams wanted = {names.data(), starts.data(), lengths.data(), valid, plan.data(), count, parts, kv_heads,
                                               heads / kv_heads, 0, 1, 0};
    if (tenon_attention_plan(&wanted) != TENON_OK) return false;
    std::vector<uint16_t> query(static_cast<size_t>(tokens * heads * dim)), output(query.size());
    for (auto& value : query) value = random_bf16();
    std::vector<float> partials(static_cast<size_t>(count * kv_heads * tenon::MOST_PARTS * (heads / kv_heads) * (dim + 2)));
    std::vector<int32_t> counters(static_cast<size_t>(count * kv_heads));
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    const tenon::AttentionParams params = {query.data(), output.data(), cache.data(), nullptr, table.data(), plan.data(), partials.data(),
                                           counters.data(), most, tokens, stride, block_size, heads, kv_heads, dim, 0, 1,
                                           1, kv_type, scale, 0.0f};
    if (emulated) attend_on_emulated_tiles(params);
    else if (tenon_attention(&params) != TENON_OK) return false;
    std::vector<double> exact(static_cast<size_t>(dim)), sizes(exact.size());
    for (int32_t r = 0; r < count; ++r)
        for (int q = 0; q < rows[static_cast<size_t>(r)].count; ++q)
            for (int h = 0; h < heads; ++h) {
                const Row& row = rows[static_cast<size_t>(r)];
                const size_t at = static_cast<size_t>(((starts[static_cast<size_t>(r)] + q) * heads + h) * dim);
                attend(row, query.data() + at, row.length - row.count + q + 1, kv_heads, h / (heads / kv_heads), dim, static_cast<double>(scale), exact.data(), sizes.data());
                for (int d = 0; d < dim; ++d) {
                    // half a step of bfloat16 and what scores of up to 2 * 2 * dim / sqrt(dim) lose in float32; with AMX half a step of every weight too
                    const double found = value_of(output[at + static_cast<size_t>(d)]), rounded = emulated || tenon_cpu_isa() == 4 ? sizes[static_cast<size_t>(d)] / 256 : 0;
                    const double allowed = std::fabs(exact[static_cast<size_t>(d)]) / 256 + rounded + 1e-4;
                    if (std::fabs(found - exact[static_cast<size_t>(d)]) <= allowed) continue;
                    std::fprintf(stderr, "isa %d, emulated tiles %d, %d heads of %d: attention of row %d, query %d, head %d at %d is %g, not %g\n", tenon_cpu_isa(), emulated, heads, dim,
                                 r, q, h, d, found, exact[static_cast<size_t>(d)]);
                    return false;
                }
            }
    return true;
}
