// A linear: parts of any weight types side by side, and the call that multiplies tokens with all of them.
//
// One region a call: activations are quantized or packed for tiles (each thread some tokens, or for few tokens each thread
// all of them, which is sooner than waiting), then threads take runs of units. A unit is one group of 16 rows (SiLU: of the
// gate and of the up part) for one block of tokens; shares of units are equal in bytes of weights, in the order they lie in
// memory.
#include <algorithm>
#include <mutex>
#include <new>
#include <vector>

#include "linear/abi/scratch.h"
#include "linear/kernels.h"
#include "tape.h"
#include "tenon_cpu.h"
#include "threads.h"

namespace tenon {
namespace {

constexpr int64_t BLOCK_BYTES = 192 * 1024;  // of int8 activations that a pass over the weights keeps near
constexpr int64_t PANELS_FROM = 32;          // tokens, from which bfloat16 tiles have them packed
constexpr int64_t PANEL_BYTES = 1 << 20;     // of packed tokens that stay in the second cache
constexpr int64_t PANELS_OF_THREAD = 4;      // at least, where there are enough tokens
constexpr int64_t ALONE = 8192;             // activations that every thread quantizes for itself

struct Unit {
    const uint8_t* weight;
    const uint8_t* up;  // or null
    const float* bias;  // [16], or null
    const float* up_bias;
    int64_t column;  // of y
    int32_t type, up_type;
    int rows;
};

struct Linear {
    int64_t columns = 0, rows = 0;  // rows: columns of y
    bool quantized = false, dense = false;
    bool fine = false;  // activations of quantized parts are int16 codes, not int8
    std::vector<int32_t> types;  // of parts, each once
    std::vector<Unit> units;
    std::vector<int64_t> cost;  // [units + 1], bytes before a unit
    std::vector<float> bias;    // padded to groups
};

std::mutex call_mutex;  // scratch is the process's: two engines in one process take turns
Scratch scratch;

int64_t packed_columns(int64_t columns) { return (columns + BLOCK - 1) / BLOCK * BLOCK; }

struct Room {  // what one call needs of the scratch
    float* values = nullptr;
    int8_t* codes = nullptr;
    float* scales = nullptr;
    float* sums = nullptr;
    int32_t* halves = nullptr;
    FineTaken fine{};
    uint16_t* packed = nullptr;  // of LinearKernels::pack_tokens, block after block
};

Room room(Arena& arena, const Linear& linear, int64_t tokens, bool widen, bool tiled, bool packs) {
    Room r;
    const int64_t all = tokens * linear.columns;
    if (packs) r.packed = arena.take<uint16_t>((tokens + 15) / 16 * 16 * packed_columns(linear.columns));
    if (widen) r.values = arena.take<float>(all);
    if (linear.quantized && linear.fine) {
        r.fine.codes = arena.take<int16_t>(all);
        r.fine.units = arena.take<float>(all / BLOCK);
        r.fine.sums = arena.take<float>(all / BLOCK);
        r.fine.totals = arena.take<int32_t>(all / 16);
        if (tiled) {
            r.fine.high = arena.take<int8_t>(all);
            r.fine.low = arena.take<int8_t>(all);
        }
    } else if (linear.quantized) {
        r.codes = arena.take<int8_t>(all);
        const int64_t scales = (tiled ? (tokens + 15) / 16 * 16 : tokens) * (linear.columns / BLOCK);
        r.scales = arena.take<float>(scales);
        r.sums = arena.take<float>(scales);
        r.halves = arena.take<int32_t>(all / 16);
    }
    return r;
}

struct Own {  // a thread's
    Room room;
    float* out[SEVERAL];  // of groups of weights that are computed at once; a gate and its up are two
    uint8_t* codes;
};

int64_t elements_size(int32_t dtype) { return dtype == TENON_F32 ? 4 : 2; }

int64_t tokens_of_block(int64_t columns) {
    return std::clamp<int64_t>(BLOCK_BYTES / columns / 16 * 16, 16, 256);
}

// Blocks of equal sizes, each of which stays in the second cache in bfloat16, and enough of them for all threads.
int64_t tokens_of_panel(int64_t tokens, int64_t columns, int64_t num_units) {
    const int64_t most = std::max<int64_t>(PANEL_BYTES / 2 / columns / 32 * 32, 32);
    const int64_t blocks = std::max((tokens + most - 1) / most, PANELS_OF_THREAD * num_threads() * 2 / num_units);
    return (tokens + 32 * blocks - 1) / (32 * blocks) * 32;
}

class Call {
public:
    Call(const Linear& linear, const tenon_linear_call& call) : linear_(linear), call_(call), kernels_(linear_kernels()) {
        contiguous_ = call.x_stride == linear.columns || call.tokens == 1;
        // A dense part reads float32 rows one after the other; quantizing reads float32.
        widen_ = call.x_type != TENON_F32 || (linear.dense && !contiguous_);
        if (linear.fine && !linear.dense) widen_ = false;  // fine codes are taken from any type
        for (const int32_t type : linear.types)
            if (type_info(type).quantized) tiled_ = tiled_ && call.tokens >= kernels_.tiles_from(type, linear.fine);
        const bool bf16 = call.x_type == TENON_BF16 && contiguous_ && linear.columns % 2 == 0;
        bf16_tiles_ = bf16 && call.tokens >= kernels_.tiles_from(static_cast<int32_t>(WeightType::bf16), false);
        if (bf16_tiles_ && linear.types.size() == 1 && is_bf16(linear.types[0])) widen_ = false;
        at_once_ = !bf16_tiles_ || kernels_.multiply_pair == nullptr ? 1 : call.tokens > 16 ? 2 : SEVERAL;
        alone_ = call.tokens * linear.columns <= ALONE || (tiled_ && call.tokens <= 16);
        packs_ = at_once_ == 2 && call.tokens >= PANELS_FROM && !alone_;
        if (!packs_ && !widen_ && !linear.quantized) alone_ = true;  // nothing is taken, so nobody waits for it
        const auto num_units = static_cast<int64_t>(linear.units.size());
        block_ = packs_ ? tokens_of_panel(call.tokens, linear.columns, num_units) : std::min(tokens_of_block(linear.columns), call.tokens);
    }

    int run() {
        const int threads = num_threads();
        own_ = static_cast<Own*>(::operator new(sizeof(Own) * static_cast<size_t>(threads), std::nothrow));
        if (own_ == nullptr) return TENON_NO_MEMORY;
        Arena size(nullptr);
        lay(size, threads);
        uint8_t* memory = scratch.get(size.used());
        if (memory != nullptr) {
            Arena arena(memory);
            lay(arena, threads);
            const int64_t blocks = (call_.tokens + block_ - 1) / block_, all = linear_.cost.back() * blocks;
            const int64_t count = blocks * static_cast<int64_t>(linear_.units.size());
            const int64_t each = takes_by(), takes = (call_.tokens + each - 1) / each;
            Work tokens(takes, threads, std::max<int64_t>(1, takes / (4 * threads)));
            while (at_once_ > 1 && count < at_once_ * threads) at_once_ /= 2;  // every thread has something to do
            // Shares begin at pairs: of groups, whose results are whole lines. Chunks are groups that are computed together.
            const int64_t chunk = std::clamp<int64_t>(count / (16 * threads), 1, 16), odd = at_once_ - 1, pairs = at_once_ > 1;
            Work units(count, threads, (chunk + odd) & ~odd,
                       [&](int i) { return i < threads ? first_unit(all * i / threads) & ~pairs : count; });
            parallel(threads, [&](int thread, int) { work(thread, tokens, units); });
        }
        ::operator delete(own_);
        return memory == nullptr ? TENON_NO_MEMORY : TENON_OK;
    }

private:
    // Tokens that one thread takes. Tiles have the scales of sixteen in one line of memory; packed, sixteen are a tile.
    int64_t takes_by() const { return tiled_ || packs_ ? 16 : 1; }

    void lay(Arena& arena, int threads) {
        if (!alone_) shared_ = room(arena, linear_, call_.tokens, widen_, tiled_, packs_);
        for (int i = 0; i < threads; ++i) {
            Own& own = own_[i];
            if (alone_) own.room = room(arena, linear_, call_.tokens, widen_, tiled_, packs_);
            for (int k = 0; k < std::max(at_once_, 2); ++k) own.out[k] = arena.take<float>(std::max<int64_t>(block_, 64) * GROUP);
            own.codes = arena.take<uint8_t>(linear_.quantized ? linear_.columns * GROUP : 0);
        }
    }

    const uint8_t* x_at(int64_t token) const {
        return static_cast<const uint8_t*>(call_.x) + token * call_.x_stride * elements_size(call_.x_type);
    }

    void pack(uint16_t* to, int64_t token) const {
        const int64_t first = token / block_ * block_, tokens = std::min(block_, call_.tokens - first);
        kernels_.pack_tokens(reinterpret_cast<const uint16_t*>(x_at(first)), linear_.columns, tokens, token - first,
                             to + first * packed_columns(linear_.columns));
    }

    void take(const Room& to, int64_t begin, int64_t end) const {
        const int64_t columns = linear_.columns;
        for (int64_t t = begin; to.packed != nullptr && t < end; t += 16) pack(to.packed, t);
        for (int64_t t = begin; t < end; ++t) {
            const int64_t lane = tiled_ ? t % 16 : 0, at = (t - lane) * (columns / BLOCK) + lane;
            if (to.values != nullptr || to.codes != nullptr)
                kernels_.take(x_at(t), call_.x_type, columns, tiled_ ? 16 : 1,
                              to.values ? to.values + t * columns : nullptr,
                              to.codes ? to.codes + t * columns : nullptr, to.codes ? to.scales + at : nullptr,
                              to.codes ? to.sums + at : nullptr,
                              to.codes ? to.halves + t * (columns / 16) : nullptr);
            if (to.fine.codes == nullptr) continue;
            const FineTaken& all = to.fine;
            const FineTaken one = {all.codes + t * BLOCK,  all.units + t, all.sums + t,
                                   all.totals + 2 * t,     all.high ? all.high + t * BLOCK : nullptr,
                                   all.low ? all.low + t * BLOCK : nullptr};
            kernels_.take_fine(x_at(t), call_.x_type, columns, call_.tokens, one);
        }
    }

    void multiply(const Own& own, const Room& from, int64_t first, int64_t tokens, int32_t type, const uint8_t* weight,
                  const Activations& x, float* out) const {
        if (from.fine.codes == nullptr || !type_info(type).quantized)
            return kernels_.multiply(type, weight, x, tokens, out, own.codes);
        const FineTaken& all = from.fine;
        const Fine fine = {all.codes, all.units, all.sums, all.totals, all.high, all.low, linear_.columns, call_.tokens};
        kernels_.multiply_fine(type, weight, fine, first, tokens, out, own.codes);
    }

    void work(int thread, Work& tokens, Work& units) const {
        const Own& own = own_[thread];
        Range range;
        if (!alone_) {
            const int64_t each = takes_by();
            for (; tokens.take(thread, range); tokens.tell(range))
                take(shared_, range.begin * each, std::min(range.end * each, call_.tokens));
            tokens.wait();
        }
        const int64_t each = static_cast<int64_t>(linear_.units.size());
        for (bool is_first = true; units.take(thread, range); is_first = false) {
            if (alone_ && is_first) take(own.room, 0, call_.tokens);
            for (int64_t unit = range.begin; unit < range.end;) {
                const Unit* first = &linear_.units[static_cast<size_t>(unit % each)];
                const int count = together(first, std::min(range.end - unit, each - unit % each));
                compute(own, alone_ ? own.room : shared_, unit / each * block_, first, count);
                unit += count;
            }
        }
    }

    // How many units from `unit` on, of those left, are one product of bfloat16; 1: each group of it is one of its own.
    int together(const Unit* unit, int64_t left) const {
        int groups = 0, count = 0;
        for (; count < left && is_tiled(unit[count]); ++count) {
            groups += unit[count].up != nullptr ? 2 : 1;
            if (groups > at_once_) break;
        }
        return std::max(count, 1);
    }
    bool is_tiled(const Unit& unit) const {
        return at_once_ > 1 && is_bf16(unit.type) && (unit.up == nullptr || is_bf16(unit.up_type));
    }
    static bool is_bf16(int32_t type) { return static_cast<WeightType>(type) == WeightType::bf16; }

    // The first unit, counted over all token blocks, that has `cost` bytes or more before it.
    int64_t first_unit(int64_t cost) const {
        const int64_t each = linear_.cost.back(), block = cost / each;
        const auto at = std::lower_bound(linear_.cost.begin(), linear_.cost.end() - 1, cost - block * each);
        return block * static_cast<int64_t>(linear_.units.size()) + (at - linear_.cost.begin());
    }

    // One block of tokens with units that are computed together.
    void compute(const Own& own, const Room& from, int64_t first, const Unit* units, int count) const {
        const int64_t columns = linear_.columns, tokens = std::min(block_, call_.tokens - first);
        Activations x{};
        x.columns = columns;
        x.values = from.values ? from.values + first * columns : reinterpret_cast<const float*>(x_at(first));
        if (from.codes != nullptr) {
            x.codes = from.codes + first * columns;
            x.scales = from.scales + first * (columns / BLOCK);
            x.sums = from.sums + first * (columns / BLOCK);
            x.halves = from.halves + first * (columns / 16);
        }
        if (bf16_tiles_) x.bf16 = reinterpret_cast<const uint16_t*>(x_at(first));
        x.tiled = tiled_;
        const uint8_t* groups[SEVERAL];
        int32_t types[SEVERAL];
        int num_groups = 0;
        for (int i = 0; i < count; ++i) {
            groups[num_groups] = units[i].weight;
            types[num_groups++] = units[i].type;
            if (units[i].up == nullptr) continue;
            groups[num_groups] = units[i].up;
            types[num_groups++] = units[i].up_type;
        }
        if (!is_tiled(*units) || num_groups == 1)
            for (int g = 0; g < num_groups; ++g) multiply(own, from, first, tokens, types[g], groups[g], x, own.out[g]);
        else if (packs_) return multiply_panel(own, from, first, tokens, units, groups);
        else if (at_once_ > 2) kernels_.multiply_several(groups, num_groups, x, tokens, own.out);
        else kernels_.multiply_pair(groups[0], groups[1], x, tokens, own.out[0], own.out[1]);
        float* const* out = own.out;
        for (int i = 0; i < count; ++i) {
            const float* gate = *out++;
            finish(units[i], gate, units[i].up ? *out++ : nullptr, first, tokens);
        }
    }

    void multiply_panel(const Own& own, const Room& from, int64_t first, int64_t tokens, const Unit* units,
                        const uint8_t* const* groups) const {
        Panel panel{{groups[0], groups[1]}, from.packed + first * packed_columns(linear_.columns), linear_.columns, tokens, {own.out[0], own.out[1]}, {},
                    units->up != nullptr, call_.y_type, call_.y_stride};
        for (int i = 0; i < (panel.is_gated ? 1 : 2); ++i)
            panel.ends[i] = {units[i].bias, units[i].up_bias, y_at(first, units[i]), units[i].rows};
        kernels_.multiply_panel(panel);
    }

    uint8_t* y_at(int64_t token, const Unit& unit) const {
        return static_cast<uint8_t*>(call_.y) + (token * call_.y_stride + unit.column) * elements_size(call_.y_type);
    }

    void finish(const Unit& unit, const float* out, const float* up, int64_t first, int64_t tokens) const {
        kernels_.finish(out, up, unit.bias, unit.up_bias, tokens, unit.rows, y_at(first, unit), call_.y_type, call_.y_stride);
    }

    const Linear& linear_;
    const tenon_linear_call& call_;
    const LinearKernels& kernels_;
    bool contiguous_, widen_, alone_, bf16_tiles_, packs_, tiled_ = linear_.quantized;
    int at_once_;  // groups of bfloat16: a power of two
    int64_t block_;
    Room shared_;
    Own* own_ = nullptr;
};

int check_part(const tenon_linear_part& part, int64_t columns) {
    const int64_t need = tenon_cpu_packed_bytes(part.type, part.rows, columns);
    if (need < 0) return static_cast<int>(-need);
    if (part.packed == nullptr || reinterpret_cast<uintptr_t>(part.packed) % 64 != 0) return TENON_BAD_ARGUMENT;
    return part.packed_bytes < need ? TENON_BAD_SIZE : TENON_OK;
}

void add_part(Linear& linear, const tenon_linear_part& part, const float* bias, int64_t column, bool second) {
    const TypeInfo info = type_info(part.type);
    (info.quantized ? linear.quantized : linear.dense) = true;
    if (std::find(linear.types.begin(), linear.types.end(), part.type) == linear.types.end()) linear.types.push_back(part.type);
    const int64_t bytes = packed_group_bytes(part.type, info, linear.columns);
    for (int64_t g = 0; g < num_groups(part.rows); ++g) {
        const uint8_t* weight = static_cast<const uint8_t*>(part.packed) + g * bytes;
        const float* own_bias = bias == nullptr ? nullptr : bias + g * GROUP;
        if (second) {
            Unit& unit = linear.units[static_cast<size_t>(g)];
            unit.up = weight;
            unit.up_type = part.type;
            unit.up_bias = own_bias;
        } else {
            const int rows = static_cast<int>(std::min<int64_t>(GROUP, part.rows - g * GROUP));
            linear.units.push_back({weight, nullptr, own_bias, nullptr, column + g * GROUP, part.type, 0, rows});
        }
    }
}

void build(Linear& linear, const tenon_linear_part* parts, int32_t count, const float* bias, bool silu_mul) {
    int64_t padded = 0;
    for (int i = 0; i < count; ++i) padded += num_groups(parts[i].rows) * GROUP;
    if (bias != nullptr) linear.bias.assign(static_cast<size_t>(padded), 0.0f);
    float* own_bias = bias == nullptr ? nullptr : linear.bias.data();
    for (int i = 0; i < count; ++i) {
        const bool second = silu_mul && i == 1;
        if (bias != nullptr) {
            std::copy(bias, bias + parts[i].rows, own_bias);
            bias += parts[i].rows;
        }
        add_part(linear, parts[i], own_bias, linear.rows, second);
        if (own_bias != nullptr) own_bias += num_groups(parts[i].rows) * GROUP;
        if (!second) linear.rows += parts[i].rows;
    }
    linear.cost.assign(1, 0);
    for (const Unit& unit : linear.units) {
        int64_t bytes = packed_group_bytes(unit.type, type_info(unit.type), linear.columns);
        if (unit.up != nullptr) bytes += packed_group_bytes(unit.up_type, type_info(unit.up_type), linear.columns);
        linear.cost.push_back(linear.cost.back() + bytes);
    }
}

bool is_dtype(int32_t type) { return type == TENON_F32 || type == TENON_BF16 || type == TENON_F16; }

int run_linear(const tenon_linear_call& call) {
    const auto* linear = static_cast<const Linear*>(call.linear);
    if (linear == nullptr || call.tokens < 0 || call.tokens > (int64_t{1} << 31)) return TENON_BAD_ARGUMENT;
    if (!is_dtype(call.x_type) || !is_dtype(call.y_type)) return TENON_NO_SUCH_TYPE;
    if (call.tokens == 0) return TENON_OK;
    if (call.x == nullptr || call.y == nullptr) return TENON_BAD_ARGUMENT;
    if (call.tokens > 1 && (call.x_stride < linear->columns || call.y_stride < linear->rows)) return TENON_BAD_ARGUMENT;
    std::lock_guard<std::mutex> lock(call_mutex);
    return Call(*linear, call).run();
}

int run_embedding(const tenon_embedding_call& call) {
    const int64_t need = tenon_cpu_packed_bytes(call.type, call.rows, call.columns);
    if (need < 0) return static_cast<int>(-need);
    if (call.packed_bytes < need) return TENON_BAD_SIZE;
    if (!is_dtype(call.y_type)) return TENON_NO_SUCH_TYPE;
    if (call.tokens == 0) return TENON_OK;
    if (call.tokens < 0 || call.packed == nullptr || call.ids == nullptr || call.y == nullptr ||
        call.y_stride < call.columns || (call.id_bytes != 4 && call.id_bytes != 8))
        return TENON_BAD_ARGUMENT;
    std::lock_guard<std::mutex> lock(call_mutex);
    const LinearKernels& kernels = linear_kernels();
    const int threads = num_threads();
    const int64_t each = (call.columns + 15) / 16 * 16;
    auto* rows = reinterpret_cast<float*>(scratch.get(each * 4 * threads));
    if (rows == nullptr) return TENON_NO_MEMORY;
    parallel_for(call.tokens, threads, [&](int64_t begin, int64_t end, int thread) {
        float* values = rows + each * thread;
        for (int64_t t = begin; t < end; ++t) {
            const int64_t id = call.id_bytes == 4 ? static_cast<const int32_t*>(call.ids)[t]
                                                  : static_cast<const int64_t*>(call.ids)[t];
            if (id < 0 || id >= call.rows) std::fill(values, values + call.columns, __builtin_nanf(""));
            else kernels.expand(call.type, static_cast<const uint8_t*>(call.packed), call.columns, id, values);
            if (call.scale != 1.0f)
                for (int64_t c = 0; c < call.columns; ++c) values[c] *= call.scale;
            uint8_t* y = static_cast<uint8_t*>(call.y) + t * call.y_stride * elements_size(call.y_type);
            kernels.put_row(values, call.columns, y, call.y_type);
        }
    });
    return TENON_OK;
}

}  // namespace

TENON_KERNEL(tenon_cpu_linear, run_linear, tenon_linear_call)
TENON_KERNEL(tenon_cpu_embedding, run_embedding, tenon_embedding_call)

}  // namespace tenon

extern "C" int tenon_cpu_linear_new(const tenon_linear_part* parts, int32_t count, int64_t columns, const float* bias,
                                    int32_t epilogue, void** linear) {
    if (parts == nullptr || linear == nullptr || count < 1 || count > 1024) return TENON_BAD_ARGUMENT;
    const bool fine = (epilogue & TENON_FINE) != 0;
    epilogue &= ~TENON_FINE;
    if (epilogue != TENON_PLAIN && epilogue != TENON_SILU_MUL) return TENON_BAD_ARGUMENT;
    for (int i = 0; i < count; ++i)
        if (const int status = tenon::check_part(parts[i], columns)) return status;
    if (epilogue == TENON_SILU_MUL && (count != 2 || parts[0].rows != parts[1].rows)) return TENON_BAD_ARGUMENT;
    auto* made = new (std::nothrow) tenon::Linear();
    if (made == nullptr) return TENON_NO_MEMORY;
    made->columns = columns;
    made->fine = fine;
    try {
        tenon::build(*made, parts, count, bias, epilogue == TENON_SILU_MUL);
    } catch (const std::bad_alloc&) {
        delete made;
        return TENON_NO_MEMORY;
    }
    *linear = made;
    return TENON_OK;
}

extern "C" void tenon_cpu_linear_free(void* linear) {
    delete static_cast<tenon::Linear*>(linear);
}
