// The library's own checks, small enough to run under the address and thread sanitizers: hostile bytes through every
// weight type and instruction set in buffers of the exact size, refusals, and regions from several threads at once.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "linear/packed.h"
#include "tenon_cpu.h"
#include "threads.h"

bool emulated_tiles_are_right();   // tiles.cpp
bool attention_tiles_are_right();  // attention_tiles.cpp
bool attention_asks_once();  // attention_asks.cpp
bool experts_are_right(int32_t type, int count, int top_k, bool alike);  // moe.cpp
bool attention_is_right(int heads, int kv_heads, int dim, int block_size, bool emulated, bool int8);  // attention.cpp
bool exchanges_are_right(int size, int type, int64_t count, int source);  // exchange.cpp
bool a_lost_rank_is_told();

namespace {

int failures = 0;

void expect(bool is_so, const char* what, int line) {
    if (is_so) return;
    ++failures;
    std::fprintf(stderr, "line %d: not so: %s\n", line, what);
}
#define EXPECT(condition) expect(condition, #condition, __LINE__)

uint32_t state = 1;
uint8_t random_byte() {
    state = state * 1664525u + 1013904223u;
    return static_cast<uint8_t>(state >> 24);
}

// Exactly `size` bytes, 64-aligned, filled at random: one byte further is an error of the sanitizer.
class Bytes {
public:
    explicit Bytes(int64_t size) : size_(size) {
        void* memory = nullptr;
        if (posix_memalign(&memory, 64, static_cast<size_t>(size > 0 ? size : 1)) != 0) std::abort();
        data_ = static_cast<uint8_t*>(memory);
        for (int64_t i = 0; i < size; ++i) data_[i] = random_byte();
    }
    ~Bytes() { std::free(data_); }
    Bytes(const Bytes&) = delete;
    uint8_t* data() { return data_; }
    int64_t size() const { return size_; }

private:
    uint8_t* data_ = nullptr;
    int64_t size_;
};

const int32_t TYPES[] = {0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30};

void random_weights_stay_inside(int32_t type, int64_t rows, int64_t tokens) {
    const tenon::TypeInfo info = tenon::type_info(type);
    const int64_t columns = info.columns == 1 ? 37 : info.columns * 2;
    Bytes stored(rows * tenon::stored_row_bytes(info, columns)), back(stored.size());
    Bytes packed(tenon_cpu_packed_bytes(type, rows, columns));
    EXPECT(tenon_cpu_pack(type, rows, columns, stored.data(), stored.size() - 1, packed.data(), packed.size()) ==
           TENON_BAD_SIZE);
    EXPECT(tenon_cpu_pack(type, rows, columns, stored.data(), stored.size(), packed.data(), packed.size() - 1) ==
           TENON_BAD_SIZE);
    EXPECT(tenon_cpu_pack(type, rows, columns, stored.data(), stored.size(), packed.data(), packed.size()) == TENON_OK);
    EXPECT(tenon_cpu_unpack(type, rows, columns, packed.data(), packed.size(), back.data(), back.size()) == TENON_OK);
    for (int64_t i = 0; i < stored.size(); ++i) {
        if (stored.data()[i] == back.data()[i]) continue;
        EXPECT(!"a byte came back changed");
        break;
    }
    const tenon_linear_part part = {packed.data(), packed.size(), rows, type, 0};
    const tenon_linear_part longer = {packed.data(), packed.size(), rows + 16, type, 0};
    void* linear = nullptr;
    const int32_t fine = tokens == 3 ? 0 : int32_t{TENON_FINE};
    EXPECT(tenon_cpu_linear_new(&longer, 1, columns, nullptr, TENON_PLAIN, &linear) == TENON_BAD_SIZE);
    EXPECT(tenon_cpu_linear_new(&part, 1, columns, nullptr, fine, &linear) == TENON_OK);
    std::vector<float> x(static_cast<size_t>(tokens * columns)), y(static_cast<size_t>(tokens * rows));
    for (float& value : x) value = static_cast<float>(random_byte()) / 64.0f - 2.0f;
    tenon_linear_call call = {linear, x.data(), y.data(), tokens, columns, rows, TENON_F32, TENON_F32};
    EXPECT(tenon_cpu_linear(&call) == TENON_OK);
    call.x_stride = columns - 1;
    EXPECT(tenon_cpu_linear(&call) == (tokens > 1 ? TENON_BAD_ARGUMENT : TENON_OK));
    tenon_cpu_linear_free(linear);

    const int64_t ids[] = {0, rows - 1, rows, -1};
    std::vector<float> found(static_cast<size_t>(4 * columns));
    tenon_embedding_call look = {packed.data(), ids, found.data(), packed.size(), rows, columns,
                                 4,             columns, type, 8, TENON_F32, 1.0f};
    EXPECT(tenon_cpu_embedding(&look) == TENON_OK);
    EXPECT(std::isnan(found[static_cast<size_t>(2 * columns)]) && std::isnan(found[static_cast<size_t>(3 * columns)]));
}

uint16_t random_half() {  // some 0.002 to 0.008, of either sign
    return static_cast<uint16_t>((random_byte() & 0x80) << 8 | (0x1800 + (random_byte() << 3)));
}

// Random codes with scales as models have them, or random floats.
void fill_weights(int32_t type, Bytes& stored) {
    const tenon::TypeInfo info = tenon::type_info(type);
    if (!info.quantized) {
        for (int64_t i = 0; i < stored.size() / info.stored_bytes; ++i) {
            const float value = static_cast<float>(random_byte()) / 128.0f - 1.0f;
            uint32_t bits;
            std::memcpy(&bits, &value, 4);
            const auto high = static_cast<uint16_t>(bits >> 16);
            const uint16_t half = random_half();
            uint8_t* at = stored.data() + i * info.stored_bytes;
            if (type == 0) std::memcpy(at, &value, 4);
            else std::memcpy(at, type == 1 ? &half : &high, 2);
        }
        return;
    }
    const bool has_min = type == 3 || type == 7 || type == 12 || type == 13;
    for (int64_t at = 0; at < stored.size(); at += info.stored_bytes)
        for (int i = 0; i < (has_min ? 2 : 1); ++i) {
            const uint16_t half = random_half();
            std::memcpy(stored.data() + at + (type == 14 ? 208 : 2 * i), &half, 2);
        }
}

// y of the level in use against float64 of the same weights and activations. Allowed: half a step of each activation's
// code, and float32's rounding of the sums.
void products_are_right(int32_t type, int64_t tokens, bool fine, bool bf16) {
    const tenon::TypeInfo info = tenon::type_info(type);
    // bfloat16 tiles take an even number of columns; here with a last part that fills no tile.
    const int64_t rows = 35, columns = info.columns == 1 ? (bf16 ? 702 : 333) : info.columns * (info.columns == 32 ? 5 : 2);
    const int isa = tenon_cpu_isa();
    Bytes stored(rows * tenon::stored_row_bytes(info, columns)), packed(tenon_cpu_packed_bytes(type, rows, columns));
    fill_weights(type, stored);
    EXPECT(tenon_cpu_pack(type, rows, columns, stored.data(), stored.size(), packed.data(), packed.size()) == TENON_OK);
    std::vector<float> weight(static_cast<size_t>(rows * columns)), x(static_cast<size_t>(tokens * columns));
    std::vector<float> y(static_cast<size_t>(tokens * rows));
    std::vector<uint16_t> narrow(x.size());
    std::vector<int32_t> ids(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) ids[static_cast<size_t>(r)] = static_cast<int32_t>(r);
    EXPECT(tenon_cpu_isa_set(0) == TENON_OK);
    const tenon_embedding_call look = {packed.data(), ids.data(), weight.data(), packed.size(), rows, columns,
                                       rows,          columns,    type,          4,             TENON_F32, 1.0f};
    EXPECT(tenon_cpu_embedding(&look) == TENON_OK);
    EXPECT(tenon_cpu_isa_set(isa) == TENON_OK);
    for (size_t i = 0; i < x.size(); ++i) {
        x[i] = (static_cast<float>(random_byte()) / 64.0f - 2.0f) * (random_byte() < 4 ? 30.0f : 1.0f);
        uint32_t bits;
        std::memcpy(&bits, &x[i], 4);
        narrow[i] = static_cast<uint16_t>(bits >> 16);
        bits &= 0xffff0000u;
        if (bf16) std::memcpy(&x[i], &bits, 4);
    }
    const tenon_linear_part part = {packed.data(), packed.size(), rows, type, 0};
    void* linear = nullptr;
    EXPECT(tenon_cpu_linear_new(&part, 1, columns, nullptr, fine ? int32_t{TENON_FINE} : 0, &linear) == TENON_OK);
    const tenon_linear_call call = {linear, bf16 ? static_cast<const void*>(narrow.data()) : x.data(), y.data(), tokens,
                                    columns, rows, bf16 ? TENON_BF16 : TENON_F32, TENON_F32};
    EXPECT(tenon_cpu_linear(&call) == TENON_OK);
    tenon_cpu_linear_free(linear);
    for (int64_t t = 0; t < tokens; ++t)
        for (int64_t r = 0; r < rows; ++r) {
            double exact = 0, allowed = 0, most = 0;
            for (int64_t c = 0; c < columns; ++c) {
                const double w = weight[static_cast<size_t>(r * columns + c)], v = x[static_cast<size_t>(t * columns + c)];
                if (info.quantized && c % 32 == 0) {
                    most = 0;
                    for (int64_t i = c; i < c + 32; ++i) most = std::fmax(most, std::fabs(x[static_cast<size_t>(t * columns + i)]));
                }
                exact += w * v;
                allowed += std::fabs(w) * (info.quantized ? most / (fine ? 32639 : 127) * 0.5001 : 0);
                allowed += (std::fabs(w * v) + std::fabs(most) * 0.05) * 4e-6;
                if (isa == TENON_AMX && info.quantized && !fine && tokens >= 96) allowed += std::fabs(w * v) / 128;  // both in bfloat16
            }
            const double error = std::fabs(exact - static_cast<double>(y[static_cast<size_t>(t * rows + r)]));
            if (error <= allowed) continue;
            std::fprintf(stderr, "type %d, isa %d, %ld tokens, fine %d, bf16 %d: at [%ld, %ld] off by %g, allowed %g\n", type, isa,
                         static_cast<long>(tokens), fine, bf16, static_cast<long>(t), static_cast<long>(r), error, allowed);
            EXPECT(!"a product is right");
            return;
        }
}

// silu(gate) * up in the product's end, of the same bits that the two parts have by themselves.
void gates_are_right(int32_t type, int64_t tokens, bool bf16) {
    const int64_t rows = 35, columns = 576, bytes = tenon_cpu_packed_bytes(type, rows, columns);
    Bytes packed[2] = {Bytes(bytes), Bytes(bytes)};
    std::vector<uint16_t> x(static_cast<size_t>(tokens * columns));
    std::vector<float> wide(x.size()), y[3];
    for (size_t i = 0; i < x.size(); ++i) {
        const float value = static_cast<float>(random_byte()) / 64.0f - 2.0f;
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        x[i] = static_cast<uint16_t>(bits >> 16);
        bits &= 0xffff0000u;
        std::memcpy(&wide[i], &bits, 4);
    }
    tenon_linear_part parts[2];
    for (int i = 0; i < 2; ++i) {
        Bytes stored(rows * tenon::stored_row_bytes(tenon::type_info(type), columns));
        fill_weights(type, stored);
        EXPECT(tenon_cpu_pack(type, rows, columns, stored.data(), stored.size(), packed[i].data(), bytes) == TENON_OK);
        parts[i] = {packed[i].data(), bytes, rows, type, 0};
    }
    for (int i = 0; i < 3; ++i) {
        void* linear = nullptr;
        y[i].resize(static_cast<size_t>(tokens * rows));
        EXPECT(tenon_cpu_linear_new(i < 2 ? parts + i : parts, i < 2 ? 1 : 2, columns, nullptr, i < 2 ? TENON_PLAIN : TENON_SILU_MUL, &linear) == TENON_OK);
        const tenon_linear_call call = {linear, bf16 ? static_cast<const void*>(x.data()) : wide.data(), y[i].data(), tokens,
                                        columns, rows, bf16 ? TENON_BF16 : TENON_F32, TENON_F32};
        EXPECT(tenon_cpu_linear(&call) == TENON_OK);
        tenon_cpu_linear_free(linear);
    }
    for (size_t i = 0; i < y[2].size(); ++i) {
        const double gate = static_cast<double>(y[0][i]), wanted = gate / (1 + std::exp(-gate)) * static_cast<double>(y[1][i]);
        if (std::fabs(wanted - static_cast<double>(y[2][i])) <= 1e-5 * std::fabs(wanted) + 1e-30) continue;
        std::fprintf(stderr, "type %d, %ld tokens, bf16 %d: silu(%g) * %g became %g at %zu\n", type, static_cast<long>(tokens), bf16,
                     gate, static_cast<double>(y[1][i]), static_cast<double>(y[2][i]), i);
        EXPECT(!"a gate is right");
        return;
    }
}

void sizes_that_make_no_sense_are_refused() {
    EXPECT(tenon_cpu_packed_bytes(99, 1, 32) == -TENON_NO_SUCH_TYPE);
    EXPECT(tenon_cpu_packed_bytes(3, 1, 33) == -TENON_BAD_ARGUMENT);
    EXPECT(tenon_cpu_packed_bytes(3, -1, 32) == -TENON_BAD_ARGUMENT);
    EXPECT(tenon_cpu_packed_bytes(3, INT64_MAX / 2, int64_t{1} << 40) == -TENON_BAD_ARGUMENT);
    EXPECT(tenon_cpu_threads_set(0, nullptr, 0) == TENON_BAD_ARGUMENT);
    EXPECT(tenon_cpu_isa_set(tenon_cpu_isa_best() + 1) == TENON_NO_SUCH_ISA);
}

// All work of a region is done once, whichever workers come; what a later part needs is there; sleepers wake up.
void regions_join(int spin_us, int threads) {
    EXPECT(tenon_cpu_threads_set(threads, nullptr, spin_us) == TENON_OK);
    for (int round = 0; round < 200; ++round) {
        constexpr int COUNT = 37;
        int first[COUNT] = {}, second[COUNT] = {};
        tenon::Work ones(COUNT, threads, 1 + round % 5), sums(COUNT, threads, 1);
        tenon::parallel(threads, [&](int thread, int) {
            tenon::Range range;
            for (; ones.take(thread, range); ones.tell(range))
                for (int64_t i = range.begin; i < range.end; ++i) ++first[i];
            ones.wait();
            while (sums.take(thread, range))
                for (const int one : first) second[range.begin] += one;
        });
        for (const int sum : second) EXPECT(sum == COUNT);
        if (round % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // until workers sleep
    }
}

void a_region_inside_a_region_is_its_threads_own() {
    EXPECT(tenon_cpu_threads_set(3, nullptr, 50) == TENON_OK);
    int64_t sums[8] = {};
    tenon::parallel_for(8, 3, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i)
            tenon::parallel_for(100, tenon::num_threads(), [&](int64_t from, int64_t to, int) {
                for (int64_t n = from; n < to; ++n) sums[i] += n;
            });
    });
    for (const int64_t sum : sums) EXPECT(sum == 4950);
}

void callers_take_turns() {
    std::vector<std::thread> callers;
    for (int i = 0; i < 3; ++i) callers.emplace_back([] {
            for (int round = 0; round < 50; ++round) {
                int64_t sums[3] = {0, 0, 0};
                tenon::parallel_for(100, 3, [&](int64_t begin, int64_t end, int thread) {
                    for (int64_t n = begin; n < end; ++n) sums[thread] += n;
                });
                if (sums[0] + sums[1] + sums[2] != 4950) std::abort();
            }
        });
    for (auto& caller : callers) caller.join();
}

// What was laid out for some threads is run by no more, whatever another engine of the process asked for meanwhile.
void a_region_keeps_to_what_it_was_laid_out_for() {
    for (const auto& [before, then] : {std::pair{2, 6}, {6, 2}, {1, 6}, {6, 1}}) {
        EXPECT(tenon_cpu_threads_set(then, nullptr, 2000) == TENON_OK);
        std::atomic<int> came{0}, beyond{0};
        for (int round = 0; round < 20; ++round)
            tenon::parallel(before, [&](int thread, int threads) {
                ++came;
                if (thread >= before || threads > before) ++beyond;
                if (thread == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // others come
            });
        EXPECT(beyond.load() == 0);
        EXPECT(came.load() >= 20);
    }
}

void threads_may_change_under_a_caller() {
    std::atomic<bool> done{false};
    std::thread other([&] {
        for (int threads = 1; !done.load(); threads = threads % 9 + 1) EXPECT(tenon_cpu_threads_set(threads, nullptr, 20) == TENON_OK);
    });
    for (int round = 0; round < 1000; ++round) {
        const int threads = tenon::num_threads();
        std::vector<int64_t> sums(static_cast<size_t>(threads), 0);
        tenon::parallel_for(100, threads, [&](int64_t begin, int64_t end, int thread) {
            for (int64_t n = begin; n < end; ++n) sums.at(static_cast<size_t>(thread)) += n;
        });
        int64_t whole = 0;
        for (const int64_t sum : sums) whole += sum;
        EXPECT(whole == 4950);
    }
    done.store(true);
    other.join();
}

}  // namespace

void attention_is_right_at_shapes(bool emulated, bool int8) {
    for (const int dim : {16, 48, 64, 96, 128})
        if (!emulated || dim % 32 == 0) EXPECT(attention_is_right(9, 3, dim, 32, emulated, int8));  // others take no tiles
    for (const int block_size : {16, 48, 64}) EXPECT(attention_is_right(4, 2, 64, block_size, emulated, int8));
    EXPECT(attention_is_right(2, 2, 160, 32, emulated, int8));
    EXPECT(attention_is_right(71, 1, 32, 64, emulated, int8));
    EXPECT(attention_is_right(16, 2, 64, 32, emulated, int8));
}

int main() {
    sizes_that_make_no_sense_are_refused();
    EXPECT(emulated_tiles_are_right());
    EXPECT(attention_tiles_are_right());
    EXPECT(attention_asks_once());
    attention_is_right_at_shapes(true, false);
    for (const int spin_us : {0, 200})
        for (const int threads : {1, 3, 9, 70}) regions_join(spin_us, threads);
    a_region_inside_a_region_is_its_threads_own();
    callers_take_turns();
    a_region_keeps_to_what_it_was_laid_out_for();
    threads_may_change_under_a_caller();
    for (const int source : {0, 2}) EXPECT(exchanges_are_right(3, 0, 300, source));
    EXPECT(exchanges_are_right(1, 0, 10, -1));
    EXPECT(a_lost_rank_is_told());
    for (int isa = 0; isa <= tenon_cpu_isa_best(); ++isa) {
        EXPECT(tenon_cpu_isa_set(isa) == TENON_OK);
        for (const int32_t type : TYPES)
            for (const int64_t rows : {1, 16, 35})
                for (const int64_t tokens : {1, 3, 21}) random_weights_stay_inside(type, rows, tokens);
        for (const int32_t type : TYPES)
            for (const int64_t tokens : {1, 2, 7, 16, 45, 125})
                for (const int kind : {0, 1, 2, 3}) products_are_right(type, tokens, (kind & 1) != 0, (kind & 2) != 0);
        for (const int32_t type : {3, 30})
            for (const int64_t tokens : {1, 16, 45, 100})
                for (const bool bf16 : {false, true}) gates_are_right(type, tokens, bf16);
        for (const bool int8 : {false, true}) attention_is_right_at_shapes(false, int8);
        for (const int32_t type : {0, 1, 2})
            for (const int64_t count : {1, 61, 128, 700}) EXPECT(exchanges_are_right(3, type, count, -1));
        for (const int32_t type : {0, 3})
            for (const int threads : {1, 3}) {
                EXPECT(tenon_cpu_threads_set(threads, nullptr, 50) == TENON_OK);
                EXPECT(experts_are_right(type, 5, 2, false));
                EXPECT(experts_are_right(type, 40, 8, true));
                for (const bool alike : {false, true}) EXPECT(experts_are_right(type, 3, 3, alike));
            }
    }
    tenon_cpu_threads_set(1, nullptr, 0);
    std::printf("native tests: %s\n", failures ? "failed" : "passed");
    return failures ? 1 : 0;
}
