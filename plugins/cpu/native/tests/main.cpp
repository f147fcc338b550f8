// The library's own checks, small enough to run under the address and thread sanitizers: hostile bytes through every
// weight type and instruction set in buffers of the exact size, refusals, and regions from several threads at once.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "linear/packed.h"
#include "tenon_cpu.h"
#include "threads.h"

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
    EXPECT(tenon_cpu_linear_new(&longer, 1, columns, nullptr, TENON_PLAIN, &linear) == TENON_BAD_SIZE);
    EXPECT(tenon_cpu_linear_new(&part, 1, columns, nullptr, TENON_PLAIN, &linear) == TENON_OK);
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

void sizes_that_make_no_sense_are_refused() {
    EXPECT(tenon_cpu_packed_bytes(99, 1, 32) == -TENON_NO_SUCH_TYPE);
    EXPECT(tenon_cpu_packed_bytes(3, 1, 33) == -TENON_BAD_ARGUMENT);
    EXPECT(tenon_cpu_packed_bytes(3, -1, 32) == -TENON_BAD_ARGUMENT);
    EXPECT(tenon_cpu_packed_bytes(3, INT64_MAX / 2, int64_t{1} << 40) == -TENON_BAD_ARGUMENT);
    EXPECT(tenon_cpu_threads_set(0, nullptr, 0) == TENON_BAD_ARGUMENT);
    EXPECT(tenon_cpu_isa_set(tenon_cpu_isa_best() + 1) == TENON_NO_SUCH_ISA);
}

// Every thread runs once a region and passes barriers together; workers that sleep wake up.
void regions_join(int spin_us) {
    EXPECT(tenon_cpu_threads_set(3, nullptr, spin_us) == TENON_OK);
    for (int round = 0; round < 200; ++round) {
        int before[3] = {0, 0, 0}, seen[3] = {0, 0, 0};
        tenon::parallel([&](int thread, int threads) {
            before[thread] = 1;
            tenon::barrier();
            for (int i = 0; i < threads; ++i) seen[thread] += before[i];
        });
        EXPECT(seen[0] == 3 && seen[1] == 3 && seen[2] == 3);
    }
}

void callers_take_turns() {
    std::vector<std::thread> callers;
    for (int i = 0; i < 3; ++i) callers.emplace_back([] {
            for (int round = 0; round < 50; ++round) {
                int64_t sums[3] = {0, 0, 0};
                tenon::parallel_for(100, [&](int64_t begin, int64_t end, int thread) {
                    for (int64_t n = begin; n < end; ++n) sums[thread] += n;
                });
                if (sums[0] + sums[1] + sums[2] != 4950) std::abort();
            }
        });
    for (auto& caller : callers) caller.join();
}

}  // namespace

int main() {
    sizes_that_make_no_sense_are_refused();
    for (const int spin_us : {0, 200}) regions_join(spin_us);
    callers_take_turns();
    for (int isa = 0; isa <= tenon_cpu_isa_best(); ++isa) {
        EXPECT(tenon_cpu_isa_set(isa) == TENON_OK);
        for (const int32_t type : TYPES)
            for (const int64_t rows : {1, 16, 35})
                for (const int64_t tokens : {1, 3, 21}) random_weights_stay_inside(type, rows, tokens);
    }
    tenon_cpu_threads_set(1, nullptr, 0);
    std::printf("native tests: %s\n", failures ? "failed" : "passed");
    return failures ? 1 : 0;
}
