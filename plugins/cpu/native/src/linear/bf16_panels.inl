// AMX: two groups of bfloat16 weights times a block of many tokens. Included inside namespace tenon::amx after finish.inl and
// bf16_tiles.inl, and by tests/tiles.cpp over tiles of its own.
//
// Tokens are packed once a call into the order in which they are read, part of columns after part, all of it one stream:
//
//     [part][32 tokens][step of 32 columns][2][16 tokens][32]    a last single sixteen: [step][16][32]; beyond the end: 0
//
// A part's weights stay in the first cache while its tokens come from the second, loaded as a stream so that they do not
// throw the weights out; meanwhile the next part's weights come from memory, a few lines a step. A product of tiles keeps its
// unit busy for sixteen cycles and the vector units idle: the end of the tokens before is computed beside it. Sums are added
// in the order of columns, whatever the parts are.
//
// Measured of such loops alone on an Intel Xeon with AMX, one thread, 512 tokens, GFLOP/s: 576 columns, 3072 rows 1,457 with
// streamed tokens, 1,025 to 1,113 without; 1536 columns, 576 rows 1,407 in parts of sixteen steps, 1,363 in one.

constexpr int64_t STEP = 32, TILE = 512;  // columns of a step; values of a tile

// At most so many steps are one part, whose weights are 40 KiB; more are parts of at most the second number.
constexpr int64_t WHOLE_STEPS = 20, PART_STEPS = 18;

struct Parts {
    int64_t steps, count;
    int64_t begin(int64_t i) const { return steps * i / count; }
};

TENON_INLINE Parts parts_of(int64_t columns) {
    const int64_t steps = (columns + STEP - 1) / STEP;
    return {steps, steps <= WHOLE_STEPS ? 1 : (steps + PART_STEPS - 1) / PART_STEPS};
}

// [16, 32] from rows of `columns`; zero beyond `rows` and `taken` columns.
TENON_INLINE void pack_tile(const uint16_t* x, int64_t columns, int64_t rows, int64_t taken, uint16_t* tile) {
    for (int64_t r = 0; r < 16; ++r, x += columns, tile += STEP) {
        if (r < rows && taken >= STEP) {
            std::memcpy(tile, x, 2 * STEP);
            continue;
        }
        std::memset(tile, 0, 2 * STEP);
        if (r < rows) std::memcpy(tile, x, static_cast<size_t>(2 * taken));
    }
}

static void pack_tokens(const uint16_t* x, int64_t columns, int64_t tokens, int64_t first, uint16_t* packed) {
    const Parts parts = parts_of(columns);
    const int64_t padded = (tokens + 15) / 16 * 16, pair = first / 32 * 32, rows = tokens - first < 16 ? tokens - first : 16;
    const int64_t each = pair + 16 < padded ? 2 * TILE : TILE;
    for (int64_t i = 0; i < parts.count; ++i) {
        const int64_t begin = parts.begin(i), end = parts.begin(i + 1);
        uint16_t* tile = packed + STEP * (begin * padded + pair * (end - begin) + first % 32);
        for (int64_t s = begin; s < end; ++s, tile += each)
            pack_tile(x + first * columns + s * STEP, columns, rows, columns - s * STEP, tile);
    }
}

// A row of a group in bfloat16; two of them are a line of memory.
#if TENON_LEVEL_NUMBER == 4
using Narrow = __m256i;
TENON_INLINE Narrow narrow_row(const float* out, const float* up, const Panel::End& end) {
    return (__m256i)_mm512_cvtneps_pbh(ended(out, up, end.bias, end.up_bias, 0));
}
TENON_INLINE void put_narrow(uint16_t* y, Narrow row) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), row); }
TENON_INLINE void put_line(uint16_t* y, Narrow first, Narrow second) {
    _mm512_storeu_si512(y, _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
}
TENON_INLINE void ask_to_write(void* y) { asm volatile("prefetchw (%0)" ::"r"(y)); }
#else
struct Narrow {
    uint16_t values[GROUP];
};
TENON_INLINE Narrow narrow_row(const float* out, const float* up, const Panel::End& end) {
    Narrow row;
    for (int i = 0; i < GROUP; i += W) vstore_bf16(row.values + i, ended(out, up, end.bias, end.up_bias, i));
    return row;
}
TENON_INLINE void put_narrow(uint16_t* y, const Narrow& row) { std::memcpy(y, row.values, sizeof row); }
TENON_INLINE void put_line(uint16_t* y, const Narrow& first, const Narrow& second) {
    put_narrow(y, first);
    put_narrow(y + GROUP, second);
}
TENON_INLINE void ask_to_write(void* y) { __builtin_prefetch(y, 1); }
#endif

// Rows of bfloat16 with all sixteen columns, of a gate and its up or of two groups side by side. Their lines of y are asked
// for as the 32 tokens before them end.
template <bool GATED>
static void end_narrow_rows(const Panel& panel, const float* first, const float* second, int64_t token, int64_t count) {
    const Panel::End left = panel.ends[0], right = panel.ends[1];
    const int64_t stride = panel.y_stride;
    uint16_t* y = static_cast<uint16_t*>(left.y) + token * stride;
    for (int64_t r = 0; r < count; ++r, y += stride, first += GROUP, second += GROUP) {
        if (token + r + 32 < panel.tokens) ask_to_write(y + 32 * stride);
        if (GATED) put_narrow(y, narrow_row(first, second, left));
        else put_line(y, narrow_row(first, nullptr, left), narrow_row(second, nullptr, right));
    }
}

static void end_rows(const Panel& panel, const float* first, const float* second, int64_t token, int64_t count) {
    const Panel::End &left = panel.ends[0], &right = panel.ends[1];
    const bool is_narrow = panel.y_type == 1 && left.rows == GROUP;
    if (is_narrow && panel.is_gated) return end_narrow_rows<true>(panel, first, second, token, count);
    if (is_narrow && right.rows == GROUP && static_cast<uint16_t*>(left.y) + GROUP == right.y)
        return end_narrow_rows<false>(panel, first, second, token, count);
    const int64_t at = token * panel.y_stride * (panel.y_type == 0 ? 4 : 2);
    const float* up = panel.is_gated ? second : nullptr;
    finish(first, up, left.bias, left.up_bias, count, left.rows, static_cast<uint8_t*>(left.y) + at, panel.y_type, panel.y_stride);
    if (panel.is_gated) return;
    finish(second, nullptr, right.bias, nullptr, count, right.rows, static_cast<uint8_t*>(right.y) + at, panel.y_type, panel.y_stride);
}

// The end of up to 32 tokens whose sums are there, a few rows at a time.
struct PanelEnd {
    static constexpr int64_t ROWS = 4;

    const Panel& panel;
    int64_t token = 0, done = 0, count = 0, due = 0;

    void next(int64_t rows) {
        const int64_t at = (token % 64 + done) * GROUP;
        end_rows(panel, panel.out[0] + at, panel.out[1] + at, token + done, rows);
        done += rows;
    }
    // After each of `steps` steps, so that as large a share of the rows has ended.
    void after_step(int64_t steps) {
        for (due += count; due >= ROWS * steps; due -= ROWS * steps)
            if (done + ROWS <= count) next(ROWS);
    }
    void all() {
        if (done < count) next(count - done);
    }
};

// A part's weights and the lines of the next part's that are asked for meanwhile.
struct PanelPart {
    const uint8_t* groups[2];
    const uint8_t* later[2];
    const uint8_t* beyond[2];  // what is asked for once `later` has been
    const uint8_t* last[2];  // a last step of fewer columns, filled up with zeros; or null
    int64_t steps;           // without that one
};

// Into the second cache; any address may be asked for.
TENON_INLINE void ask_lines(const uint8_t* at, int64_t from, int64_t to) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(at);
    for (int64_t i = from; i < to; ++i) __builtin_prefetch(reinterpret_cast<const void*>(address + static_cast<uintptr_t>(64 * i)), 0, 2);
}

template <int T>
TENON_INLINE void add_step(const uint16_t* x, const uint8_t* first, const uint8_t* second) {
    _tile_loadd(6, first, 64);
    _tile_stream_loadd(4, x, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, second, 64);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (T > 1) {
        _tile_stream_loadd(5, x + TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

template <int T>
TENON_INLINE void start_sums(float* const* out, bool is_first) {
    if (is_first) {
        _tile_zero(0);
        _tile_zero(1);
        if constexpr (T > 1) _tile_zero(2);
        if constexpr (T > 1) _tile_zero(3);
        return;
    }
    _tile_loadd(0, out[0], 64);
    _tile_loadd(1, out[1], 64);
    if constexpr (T > 1) _tile_loadd(2, out[0] + 16 * GROUP, 64);
    if constexpr (T > 1) _tile_loadd(3, out[1] + 16 * GROUP, 64);
}

template <int T>
TENON_INLINE void store_sums(float* const* out) {
    _tile_stored(0, out[0], 64);
    _tile_stored(1, out[1], 64);
    if constexpr (T > 1) _tile_stored(2, out[0] + 16 * GROUP, 64);
    if constexpr (T > 1) _tile_stored(3, out[1] + 16 * GROUP, 64);
}

// The products of T sixteens of tokens; of the next weights' tiles, lines [from, to) are asked for.
template <int T>
TENON_INLINE void add_steps(const PanelPart& part, const uint16_t* x, int64_t from, int64_t to, PanelEnd& end) {
    for (int64_t s = 0; s < part.steps; ++s, x += T * TILE) {
        add_step<T>(x, part.groups[0] + 1024 * s, part.groups[1] + 1024 * s);
        ask_lines(part.later[0] + 1024 * s, from, to);
        ask_lines(part.later[1] + 1024 * s, from, to);
        end.after_step(part.steps);
    }
    if (part.last[0] != nullptr) add_step<T>(x, part.last[0], part.last[1]);
}

// One part of all tokens; after the last one they end.
static void multiply_part(const Panel& panel, const PanelPart& part, const uint16_t* x, bool is_first, bool is_last) {
    const int64_t steps = part.steps + (part.last[0] != nullptr), pairs = (panel.tokens + 31) / 32;
    PanelEnd end{panel};
    for (int64_t i = 0; i < pairs; ++i) {
        const int64_t token = 32 * i, left = panel.tokens - token, to = is_last ? token % 64 : token;
        const uint16_t* tokens = x + token * steps * STEP;
        float* const sums[2] = {panel.out[0] + token * GROUP, panel.out[1] + token * GROUP};
        float* const kept[2] = {panel.out[0] + to * GROUP, panel.out[1] + to * GROUP};
        const int64_t line = 16 * i / pairs, until = 16 * (i + 1) / pairs;
        if (left > 16) {
            start_sums<2>(sums, is_first);
            add_steps<2>(part, tokens, line, until, end);
            store_sums<2>(kept);
        } else {
            start_sums<1>(sums, is_first);
            add_steps<1>(part, tokens, line, until, end);
            store_sums<1>(kept);
        }
        end.all();
        if (!is_last) continue;
        end.token = token, end.done = end.due = 0, end.count = left < 32 ? left : 32;
    }
    if (is_last && pairs == 1)  // few tokens wait for memory, which would rest while they end
        for (const uint8_t* beyond : part.beyond) ask_lines(beyond, 0, ASKED_FOR_ENDS / 2 / 64);
    end.all();
}

static void multiply_panel(const Panel& panel) {
    const Parts parts = parts_of(panel.columns);
    const int64_t padded = (panel.tokens + 15) / 16 * 16, rest = panel.columns % STEP, bytes = 32 * panel.columns;
    // Beyond a group's end lies the next that is read: the one behind it, or behind the other of the pair.
    const int64_t skip = panel.groups[1] - panel.groups[0] == bytes ? bytes : 0;
    alignas(64) uint8_t last[2][1024] = {};
    for (int g = 0; g < 2; ++g) std::memcpy(last[g], panel.groups[g] + bytes - 32 * rest, static_cast<size_t>(32 * rest));
    stores_are_done();
    configure_pair(16, 16, 64);
    for (int64_t i = 0; i < parts.count; ++i) {
        const int64_t begin = parts.begin(i), end = parts.begin(i + 1);
        const bool is_last = i + 1 == parts.count, is_short = is_last && rest != 0;
        PanelPart part{};
        part.steps = end - begin - is_short;
        for (int g = 0; g < 2; ++g) {
            part.groups[g] = panel.groups[g] + 1024 * begin;
            part.later[g] = panel.groups[g] + (is_last ? bytes + skip : 1024 * end);
            part.beyond[g] = part.later[g] + (parts.count == 1 ? bytes + skip : 1024 * parts.begin(1));
            part.last[g] = is_short ? last[g] : nullptr;
        }
        multiply_part(panel, part, panel.x + STEP * begin * padded, i == 0, is_last);
    }
    _tile_release();
}
