// One call of a linear: how its tokens are taken and its units computed, and by whom.
//
// Activations are quantized or packed for tiles (each thread some tokens, or for few tokens each thread all of them, which
// is sooner than waiting), then threads take runs of units. A unit is one group of 16 rows (SiLU: of the gate and of the up
// part) for one block of tokens; shares of units are equal in bytes of weights, in the order they lie in memory.
#pragma once

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>

#include "linear/abi/linear.h"
#include "linear/abi/scratch.h"
#include "linear/kernels.h"
#include "tenon_cpu.h"
#include "threads.h"

namespace tenon {

constexpr int64_t BLOCK_BYTES = 192 * 1024;  // of int8 activations that a pass over the weights keeps near
constexpr int64_t PANELS_FROM = 32;          // tokens, from which bfloat16 tiles have them packed
constexpr int64_t PANEL_BYTES = 1 << 20;     // of packed tokens that stay in the second cache
constexpr int64_t PANELS_OF_THREAD = 4;      // at least, where there are enough tokens
constexpr int64_t IN_BF16_FROM = 96;         // tokens, from which quantized weights become bfloat16 for a call
constexpr int64_t ALONE = 8192;             // activations that every thread quantizes for itself

inline std::mutex call_mutex;  // scratch is the process's: two engines in one process take turns
inline Scratch scratch;

inline int64_t packed_columns(int64_t columns) { return (columns + BLOCK - 1) / BLOCK * BLOCK; }

struct Room {  // what one call needs of the scratch
    float* values = nullptr;
    int8_t* codes = nullptr;
    float* scales = nullptr;
    float* sums = nullptr;
    int32_t* halves = nullptr;
    FineTaken fine{};
    uint16_t* narrow = nullptr;  // [tokens, columns] in bfloat16, before they are packed
    uint16_t* packed = nullptr;  // of LinearKernels::pack_tokens, block after block
};

struct Forms {  // of activations, that one call needs
    bool wide, codes, tiled, narrow, packed;
};

inline Room room(Arena& arena, const Linear& linear, int64_t tokens, const Forms& forms) {
    Room r;
    const int64_t all = tokens * linear.columns;
    if (forms.narrow) r.narrow = arena.take<uint16_t>(all);
    if (forms.packed) r.packed = arena.take<uint16_t>((tokens + 15) / 16 * 16 * packed_columns(linear.columns));
    if (forms.wide) r.values = arena.take<float>(all);
    if (forms.codes && linear.fine) {
        r.fine.codes = arena.take<int16_t>(all);
        r.fine.units = arena.take<float>(all / BLOCK);
        r.fine.sums = arena.take<float>(all / BLOCK);
        r.fine.totals = arena.take<int32_t>(all / 16);
        if (forms.tiled) {
            r.fine.high = arena.take<int8_t>(all);
            r.fine.low = arena.take<int8_t>(all);
        }
    } else if (forms.codes) {
        r.codes = arena.take<int8_t>(all);
        const int64_t scales = (forms.tiled ? (tokens + 15) / 16 * 16 : tokens) * (linear.columns / BLOCK);
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
    uint16_t* wide[2];  // groups of quantized weights in bfloat16
};

inline int64_t elements_size(int32_t dtype) { return dtype == TENON_F32 ? 4 : 2; }

inline int64_t tokens_of_block(int64_t columns) {
    return std::clamp<int64_t>(BLOCK_BYTES / columns / 16 * 16, 16, 256);
}

// Blocks of equal sizes, each of which stays in the second cache in bfloat16, and enough of them for all threads.
inline int64_t tokens_of_panel(int64_t tokens, int64_t columns, int64_t num_units, int threads) {
    const int64_t most = std::max<int64_t>(PANEL_BYTES / 2 / columns / 32 * 32, 32);
    const int64_t blocks = std::max((tokens + most - 1) / most, PANELS_OF_THREAD * threads * 2 / num_units);
    return (tokens + 32 * blocks - 1) / (32 * blocks) * 32;
}

class Call {
public:
    // Laid out for so many threads at most.
    Call(const Linear& linear, const tenon_linear_call& call, int threads)
        : linear_(linear), call_(call), kernels_(linear_kernels()), threads_(threads) {
        contiguous_ = call.x_stride == linear.columns || call.tokens == 1;
        // A dense part reads float32 rows one after the other; quantizing reads float32.
        widen_ = call.x_type != TENON_F32 || (linear.dense && !contiguous_);
        if (linear.fine && !linear.dense) widen_ = false;  // fine codes are taken from any type
        in_bf16_ = linear.quantized && !linear.dense && !linear.fine && !linear.alike && call.x_type != TENON_F16 &&
                   kernels_.to_bf16 != nullptr && call.tokens >= IN_BF16_FROM;
        if (in_bf16_) {
            tiled_ = widen_ = alone_ = false;
            bf16_tiles_ = packs_ = true;
            at_once_ = 2;
            block_ = tokens_of_panel(call.tokens, linear.columns, static_cast<int64_t>(linear.units.size()), threads);
            return;
        }
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
        block_ = packs_ ? tokens_of_panel(call.tokens, linear.columns, num_units, threads) : std::min(tokens_of_block(linear.columns), call.tokens);
        while (at_once_ > 1 && count() < at_once_ * threads) at_once_ /= 2;  // every thread has something to do
    }

    // What is done of a call: tokens taken, units computed.
    struct Works {
        explicit Works(const Call& call)
            : tokens(call.takes(), call.threads_, std::max<int64_t>(1, call.takes() / (4 * call.threads_))),
              units(call.count(), call.threads_, call.chunk(), [&](int thread) { return call.first_unit_of(thread); }) {}
        Work tokens, units;
    };

    int run() {
        const int64_t shared = shared_bytes(), own = own_bytes();
        uint8_t* memory = scratch.get(shared + threads_ * own);
        if (memory == nullptr) return TENON_NO_MEMORY;
        lay(memory, memory + shared, own);
        Works works(*this);
        parallel(threads_, [&](int thread, int) { work(thread, works); });
        return TENON_OK;
    }

    // Of what all threads read, and of each thread's own, which it needs while it is in `work` alone. Multiples of 64.
    int64_t shared_bytes() const {
        Arena size(nullptr);
        if (!alone_) lay_room(size);
        return size.used();
    }
    int64_t own_bytes() const {
        Arena size(nullptr);
        lay_own(size);
        return size.used();
    }
    // own: of each thread, own_stride bytes apart.
    void lay(uint8_t* shared, uint8_t* own, int64_t own_stride) {
        Arena arena(shared);
        if (!alone_) shared_ = lay_room(arena);
        own_ = own;
        own_stride_ = own_stride;
    }

    // What of a call is left to do, by one thread of its region.
    void work(int thread, Works& works) const {
        Arena arena(own_ + thread * own_stride_);
        const Own own = lay_own(arena);
        Range range;
        if (!alone_) {
            const int64_t each = takes_by();
            for (; works.tokens.take(thread, range); works.tokens.tell(range))
                take(shared_, range.begin * each, std::min(range.end * each, call_.tokens));
            works.tokens.wait();
        }
        const int64_t each = static_cast<int64_t>(linear_.units.size());
        for (bool is_first = true; works.units.take(thread, range); is_first = false) {
            if (alone_ && is_first) take(own.room, 0, call_.tokens);
            for (int64_t unit = range.begin; unit < range.end;) {
                const Unit* first = &linear_.units[static_cast<size_t>(unit % each)];
                const int count = together(first, std::min(range.end - unit, each - unit % each));
                compute(own, alone_ ? own.room : shared_, unit / each * block_, first, count);
                unit += count;
            }
            works.units.tell(range);
        }
    }

private:
    // Tokens that one thread takes. Tiles have the scales of sixteen in one line of memory; packed, sixteen are a tile.
    int64_t takes_by() const { return tiled_ || packs_ ? 16 : 1; }
    int64_t takes() const { return (call_.tokens + takes_by() - 1) / takes_by(); }
    int64_t blocks() const { return (call_.tokens + block_ - 1) / block_; }
    int64_t count() const { return blocks() * static_cast<int64_t>(linear_.units.size()); }

    // Shares begin at pairs: of groups, whose results are whole lines. Chunks are groups that are computed together.
    int64_t chunk() const {
        const int64_t some = std::clamp<int64_t>(count() / (16 * threads_), 1, 16), odd = at_once_ - 1;
        return (some + odd) & ~odd;
    }
    int64_t first_unit_of(int thread) const {
        const int64_t pairs = at_once_ > 1;
        return thread < threads_ ? first_unit(linear_.cost.back() * blocks() * thread / threads_) & ~pairs : count();
    }

    Room lay_room(Arena& arena) const {
        const bool narrows = in_bf16_ && (call_.x_type != TENON_BF16 || !contiguous_);
        return room(arena, linear_, call_.tokens, {widen_, linear_.quantized && !in_bf16_, tiled_, narrows, packs_});
    }

    Own lay_own(Arena& arena) const {
        Own own;
        if (alone_) own.room = lay_room(arena);
        for (int k = 0; k < std::max(at_once_, 2); ++k) own.out[k] = arena.take<float>(std::max<int64_t>(block_, 64) * GROUP);
        own.codes = arena.take<uint8_t>(linear_.quantized && !in_bf16_ ? linear_.columns * GROUP : 0);
        for (uint16_t*& wide : own.wide) wide = arena.take<uint16_t>(in_bf16_ ? linear_.columns * GROUP : 0);
        return own;
    }

    const uint8_t* x_at(int64_t token) const {
        return static_cast<const uint8_t*>(call_.x) + token * call_.x_stride * elements_size(call_.x_type);
    }

    void narrow(uint16_t* to, int64_t token) const {
        const int64_t columns = linear_.columns;
        if (call_.x_type == TENON_F32) kernels_.put_row(reinterpret_cast<const float*>(x_at(token)), columns, to + token * columns, TENON_BF16);
        else std::memcpy(to + token * columns, x_at(token), static_cast<size_t>(2 * columns));
    }

    void pack(const Room& to, int64_t token) const {
        const int64_t columns = linear_.columns, first = token / block_ * block_, tokens = std::min(block_, call_.tokens - first);
        const uint16_t* x = to.narrow ? to.narrow + first * columns : reinterpret_cast<const uint16_t*>(x_at(first));
        kernels_.pack_tokens(x, columns, tokens, token - first, to.packed + first * packed_columns(columns));
    }

    void take(const Room& to, int64_t begin, int64_t end) const {
        const int64_t columns = linear_.columns;
        for (int64_t t = begin; to.narrow != nullptr && t < end; ++t) narrow(to.narrow, t);
        for (int64_t t = begin; to.packed != nullptr && t < end; t += 16) pack(to, t);
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
        return at_once_ > 1 && (in_bf16_ || (is_bf16(unit.type) && (unit.up == nullptr || is_bf16(unit.up_type))));
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
        if (in_bf16_) return multiply_widened(own, from, first, tokens, units, groups, num_groups);
        if (!is_tiled(*units) || num_groups == 1)
            for (int g = 0; g < num_groups; ++g) multiply(own, from, first, tokens, types[g], groups[g], x, own.out[g]);
        else if (packs_) return multiply_panel(own, from, first, tokens, units, count, groups);
        else if (at_once_ > 2) kernels_.multiply_several(groups, num_groups, x, tokens, own.out);
        else kernels_.multiply_pair(groups[0], groups[1], x, tokens, own.out[0], own.out[1]);
        float* const* out = own.out;
        for (int i = 0; i < count; ++i) {
            const float* gate = *out++;
            finish(units[i], gate, units[i].up ? *out++ : nullptr, first, tokens);
        }
    }

    // Quantized groups, a pair or an odd last one, in bfloat16.
    void multiply_widened(const Own& own, const Room& from, int64_t first, int64_t tokens, const Unit* units,
                          const uint8_t* const* groups, int num_groups) const {
        const uint8_t* wide[2] = {reinterpret_cast<const uint8_t*>(own.wide[0]), reinterpret_cast<const uint8_t*>(own.wide[num_groups - 1])};
        const bool is_gated = units->up != nullptr;
        for (int g = 0; g < num_groups; ++g) {
            const Unit& unit = units[is_gated ? 0 : g];
            kernels_.to_bf16(is_gated && g == 1 ? unit.up_type : unit.type, groups[g], linear_.columns, own.wide[g]);
        }
        multiply_panel(own, from, first, tokens, units, is_gated ? 1 : num_groups, wide);
    }

    // One gated unit, or `count` plain ones of two: what is beside a last one is not kept.
    void multiply_panel(const Own& own, const Room& from, int64_t first, int64_t tokens, const Unit* units, int count,
                        const uint8_t* const* groups) const {
        Panel panel{{groups[0], groups[1]}, from.packed + first * packed_columns(linear_.columns), linear_.columns, tokens, {own.out[0], own.out[1]}, {},
                    units->up != nullptr, call_.y_type, call_.y_stride};
        for (int i = 0; i < count; ++i)
            panel.ends[i] = {units[i].bias, units[i].up_bias, y_at(first, units[i]), units[i].rows};
        if (count == 1) panel.ends[1].y = panel.ends[0].y;  // of no rows
        kernels_.multiply_panel(panel);
    }

    uint8_t* y_at(int64_t token, const Unit& unit) const {
        return static_cast<uint8_t*>(call_.y) + (token * call_.y_stride + unit.column) * elements_size(call_.y_type);
    }

    void finish(const Unit& unit, const float* out, const float* up, int64_t first, int64_t tokens) const {
        kernels_.finish(out, up, unit.bias, unit.up_bias, tokens, unit.rows, y_at(first, unit), call_.y_type, call_.y_stride);
    }

    const Linear& linear_;
    const tenon_linear_call call_;
    const LinearKernels& kernels_;
    const int threads_;
    bool contiguous_, widen_, alone_, bf16_tiles_, packs_, tiled_ = linear_.quantized;
    bool in_bf16_;  // quantized weights, for this call
    int at_once_;  // groups of bfloat16: a power of two
    int64_t block_;
    Room shared_;
    uint8_t* own_ = nullptr;
    int64_t own_stride_ = 0;
};

}  // namespace tenon
