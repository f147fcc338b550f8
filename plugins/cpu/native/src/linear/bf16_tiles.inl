// AMX: bfloat16 weights and activations, up to 64 tokens at a time. Included inside namespace tenon::amx, after tiles.inl,
// and by tests/tiles.cpp over tiles of its own.
//
// 32 columns a product; sums stay in their tiles until the end, so the order of a sum depends on nothing but the columns.

// Tiles 0..3: sums of up to four times sixteen tokens, 4..6: tokens, 7: weights; the last sixteen may be fewer.
TENON_INLINE void configure_many(int count, int last, int token_bytes) {
    TileConfig config;
    for (int i = 0; i < 7; ++i) {
        config.rows[i] = static_cast<uint8_t>(i % 4 == count - 1 ? last : 16);
        config.column_bytes[i] = static_cast<uint16_t>(i < 4 ? 64 : token_bytes);
    }
    config.rows[7] = static_cast<uint8_t>(token_bytes / 4);
    config.column_bytes[7] = 64;
    load_config(config);
}

// Columns [0, columns), 32 a product (or all of them, where they are fewer), of N times sixteen tokens. A product waits for
// the one before it in the same sum: of four sums, none waits long. The fourth tokens take the tile of the first.
// Sixteen tokens wait for the weights' memory: these ask for what is read next.
template <int N>
TENON_INLINE void add_bf16(const uint16_t* x, int64_t width, const uint8_t* group, int64_t columns) {
    const int64_t stride = width * 2, sixteen = 16 * width;
    for (int64_t c = 0; c < columns; c += 32) {
        if constexpr (N == 1) ask_for(group + 32 * c, DENSE_AHEAD, 1024);
        _tile_loadd(7, group + 32 * c, 64);
        _tile_loadd(4, x + c, stride);
        _tile_dpbf16ps(0, 4, 7);
        if constexpr (N > 1) {
            _tile_loadd(5, x + sixteen + c, stride);
            _tile_dpbf16ps(1, 5, 7);
        }
        if constexpr (N > 2) {
            _tile_loadd(6, x + 2 * sixteen + c, stride);
            _tile_dpbf16ps(2, 6, 7);
        }
        if constexpr (N > 3) {
            _tile_loadd(4, x + 3 * sixteen + c, stride);
            _tile_dpbf16ps(3, 4, 7);
        }
    }
}

template <int N>
TENON_INLINE void put_tiles(float* out) {
    _tile_stored(0, out, 64);
    if constexpr (N > 1) _tile_stored(1, out + 16 * GROUP, 64);
    if constexpr (N > 2) _tile_stored(2, out + 32 * GROUP, 64);
    if constexpr (N > 3) _tile_stored(3, out + 48 * GROUP, 64);
}

// A last part of fewer than 32 columns is a smaller product, for which the tiles are configured anew.
template <int N>
static void multiply_bf16_tokens(const uint8_t* group, const uint16_t* x, int64_t width, int last, float* out) {
    const int64_t whole = width / 32 * 32, rest = width - whole;
    configure_many(N, last, 64);
    _tile_zero(0);
    if constexpr (N > 1) _tile_zero(1);
    if constexpr (N > 2) _tile_zero(2);
    if constexpr (N > 3) _tile_zero(3);
    add_bf16<N>(x, width, group, whole);
    put_tiles<N>(out);
    if (rest == 0) return;
    configure_many(N, last, static_cast<int>(rest * 2));
    _tile_loadd(0, out, 64);
    if constexpr (N > 1) _tile_loadd(1, out + 16 * GROUP, 64);
    if constexpr (N > 2) _tile_loadd(2, out + 32 * GROUP, 64);
    if constexpr (N > 3) _tile_loadd(3, out + 48 * GROUP, 64);
    add_bf16<N>(x + whole, width, group + 32 * whole, rest);
    put_tiles<N>(out);
}

// bfloat16 weights and activations, up to 64 tokens at a time.
static void multiply_bf16_tiles(const uint8_t* group, const Activations& x, int64_t tokens, float* out) {
    const int64_t width = x.columns;
    for (int64_t t = 0; t < tokens;) {
        const int64_t left = tokens - t, whole = left / 16;
        const int count = whole > 3 ? 4 : static_cast<int>(whole > 2 ? 3 : (left + 15) / 16);
        const int64_t taken = left < 16 * count ? left : 16 * count;
        const int last = static_cast<int>(taken - 16 * (count - 1));
        const uint16_t* values = x.bf16 + t * width;
        float* sums = out + t * GROUP;
        if (count == 4) multiply_bf16_tokens<4>(group, values, width, last, sums);
        else if (count == 3) multiply_bf16_tokens<3>(group, values, width, last, sums);
        else if (count == 2) multiply_bf16_tokens<2>(group, values, width, last, sums);
        else multiply_bf16_tokens<1>(group, values, width, last, sums);
        t += taken;
    }
    _tile_release();
}

// Two groups of weights, 32 tokens at a time: each load of tokens or of weights serves two of four sums, where a single
// group's tokens serve one. Columns go in parts whose weights stay in the first cache for all tokens; sums wait in out.

// While results are rounded and stored nothing more would be asked for, and memory would rest: so much is asked for before.
constexpr int ASKED_FOR_ENDS = 4096;

constexpr int64_t PART_COLUMNS = 320;  // at most: 20 KiB of two groups

// Tiles 0, 1: sums of sixteen tokens with either group, 2, 3: of the next sixteen, 4, 5: tokens, 6, 7: groups.
TENON_INLINE void configure_pair(int first, int second, int token_bytes) {
    TileConfig config;
    for (int i = 0; i < 6; ++i) {
        config.rows[i] = static_cast<uint8_t>(i < 2 || i == 4 ? first : second);
        config.column_bytes[i] = static_cast<uint16_t>(i < 4 ? 64 : token_bytes);
    }
    config.rows[6] = config.rows[7] = static_cast<uint8_t>(token_bytes / 4);
    config.column_bytes[6] = config.column_bytes[7] = 64;
    load_config(config);
}

struct Pair {
    const uint8_t* groups[2];
    float* out[2];  // [tokens, 16] each
    int64_t bytes;  // of a group
    int64_t skip;   // from its end to the one that is read after it: none, or another group
};

// Columns [from, to) of T times sixteen tokens, from token t on; 32 a product, or all of them where they are fewer.
template <int T>
TENON_INLINE void add_pair(const Pair& pair, const uint16_t* x, int64_t width, int64_t t, int64_t from, int64_t to) {
    float *first = pair.out[0] + t * GROUP, *second = pair.out[1] + t * GROUP;
    if (from == 0) {
        _tile_zero(0);
        _tile_zero(1);
        if constexpr (T > 1) {
            _tile_zero(2);
            _tile_zero(3);
        }
    } else {
        _tile_loadd(0, first, 64);
        _tile_loadd(1, second, 64);
        if constexpr (T > 1) {
            _tile_loadd(2, first + 16 * GROUP, 64);
            _tile_loadd(3, second + 16 * GROUP, 64);
        }
    }
    const uint16_t* tokens = x + t * width;
    for (int64_t c = from; c < to; c += 32) {
        if (t == 0) {  // later tokens find the groups near
            const int64_t ahead = DENSE_AHEAD + (32 * c + DENSE_AHEAD < pair.bytes ? 0 : pair.skip);
            ask_for(pair.groups[0] + 32 * c, ahead, 1024);
            ask_for(pair.groups[1] + 32 * c, ahead, 1024);
        }
        _tile_loadd(6, pair.groups[0] + 32 * c, 64);
        _tile_loadd(4, tokens + c, width * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, pair.groups[1] + 32 * c, 64);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (T > 1) {
            _tile_loadd(5, tokens + 16 * width + c, width * 2);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, first, 64);
    _tile_stored(1, second, 64);
    if constexpr (T > 1) {
        _tile_stored(2, first + 16 * GROUP, 64);
        _tile_stored(3, second + 16 * GROUP, 64);
    }
}

// Columns [from, to) of all tokens.
static void add_pair_part(const Pair& pair, const Activations& x, int64_t tokens, int64_t from, int64_t to) {
    const int bytes = static_cast<int>(to - from < 32 ? to - from : 32) * 2;
    const int64_t whole = tokens / 32 * 32;
    const int rest = static_cast<int>(tokens - whole);
    if (whole > 0) configure_pair(16, 16, bytes);
    for (int64_t t = 0; t < whole; t += 32) add_pair<2>(pair, x.bf16, x.columns, t, from, to);
    if (rest == 0) return;
    configure_pair(rest < 16 ? rest : 16, rest > 16 ? rest - 16 : 16, bytes);
    if (rest > 16) add_pair<2>(pair, x.bf16, x.columns, whole, from, to);
    else add_pair<1>(pair, x.bf16, x.columns, whole, from, to);
}

static void multiply_pair(const uint8_t* first, const uint8_t* second, const Activations& x, int64_t tokens, float* out,
                          float* second_out) {
    const int64_t bytes = 32 * x.columns;
    const Pair pair = {{first, second}, {out, second_out}, bytes, second - first == bytes ? bytes : 0};
    const int64_t steps = x.columns / 32, parts = (steps * 32 + PART_COLUMNS - 1) / PART_COLUMNS;
    for (int64_t i = 0; i < parts; ++i) add_pair_part(pair, x, tokens, steps * i / parts * 32, steps * (i + 1) / parts * 32);
    if (x.columns % 32 != 0) add_pair_part(pair, x, tokens, steps * 32, x.columns);
    for (const uint8_t* group : pair.groups) ask_for(group + bytes, DENSE_AHEAD + pair.skip, ASKED_FOR_ENDS / 2);
    _tile_release();
}

// Few tokens wait for the weights' memory. A CPU reads ahead along every stream of addresses that it sees, but not far: of
// several groups side by side more is on its way than of one.

// Tiles 0..3: sums of the tokens with each group, 4: tokens, 5..7: groups; the fourth group takes the tile of the first.
TENON_INLINE void configure_several(int tokens, int token_bytes) {
    TileConfig config;
    for (int i = 0; i < 8; ++i) {
        config.rows[i] = static_cast<uint8_t>(i < 5 ? tokens : token_bytes / 4);
        config.column_bytes[i] = static_cast<uint16_t>(i == 4 ? token_bytes : 64);
    }
    load_config(config);
}

// Columns [from, to), 32 a product, or all of them where they are fewer. skip: from the end of a group to the one that is
// read after it.
template <int G>
TENON_INLINE void add_several(const uint8_t* const* groups, const uint16_t* x, int64_t width, int64_t from, int64_t to, int64_t skip) {
    const int64_t stride = width * 2, bytes = 32 * width;
    for (int64_t c = from; c < to; c += 32) {
        const int64_t at = 32 * c, ahead = DENSE_AHEAD + (at + DENSE_AHEAD < bytes ? 0 : skip);
        for (int g = 0; g < G; ++g) ask_for(groups[g] + at, ahead, 1024);
        _tile_loadd(4, x + c, stride);
        _tile_loadd(5, groups[0] + at, 64);
        _tile_dpbf16ps(0, 4, 5);
        if constexpr (G > 1) {
            _tile_loadd(6, groups[1] + at, 64);
            _tile_dpbf16ps(1, 4, 6);
        }
        if constexpr (G > 2) {
            _tile_loadd(7, groups[2] + at, 64);
            _tile_dpbf16ps(2, 4, 7);
        }
        if constexpr (G > 3) {
            _tile_loadd(5, groups[3] + at, 64);
            _tile_dpbf16ps(3, 4, 5);
        }
    }
}

template <int G>
TENON_INLINE void put_several(float* const* out) {
    _tile_stored(0, out[0], 64);
    if constexpr (G > 1) _tile_stored(1, out[1], 64);
    if constexpr (G > 2) _tile_stored(2, out[2], 64);
    if constexpr (G > 3) _tile_stored(3, out[3], 64);
}

// From the end of one of G groups to the one that is read after it: behind all of them, or, where gates and ups take turns,
// behind the others of its part.
TENON_INLINE int64_t skip_of(const uint8_t* const* groups, int count, int64_t bytes) {
    const bool are_gated = count % 2 == 0 && groups[1] - groups[0] != bytes;
    return ((are_gated ? count / 2 : count) - 1) * bytes;
}

template <int G>
static void multiply_groups(const uint8_t* const* groups, const uint16_t* x, int64_t width, int tokens, float* const* out) {
    const int64_t whole = width / 32 * 32, skip = skip_of(groups, G, 32 * width);
    configure_several(tokens, 64);
    _tile_zero(0);
    if constexpr (G > 1) _tile_zero(1);
    if constexpr (G > 2) _tile_zero(2);
    if constexpr (G > 3) _tile_zero(3);
    add_several<G>(groups, x, width, 0, whole, skip);
    put_several<G>(out);
    if (whole == width) return;
    configure_several(tokens, static_cast<int>(width - whole) * 2);
    _tile_loadd(0, out[0], 64);
    if constexpr (G > 1) _tile_loadd(1, out[1], 64);
    if constexpr (G > 2) _tile_loadd(2, out[2], 64);
    if constexpr (G > 3) _tile_loadd(3, out[3], 64);
    add_several<G>(groups, x, width, whole, width, skip);
    put_several<G>(out);
}

static void multiply_several(const uint8_t* const* groups, int count, const Activations& x, int64_t tokens, float* const* out) {
    const int rows = static_cast<int>(tokens);
    if (count == 4) multiply_groups<4>(groups, x.bf16, x.columns, rows, out);
    else if (count == 3) multiply_groups<3>(groups, x.bf16, x.columns, rows, out);
    else if (count == 2) multiply_groups<2>(groups, x.bf16, x.columns, rows, out);
    else multiply_groups<1>(groups, x.bf16, x.columns, rows, out);
    const int64_t bytes = 32 * x.columns, ahead = DENSE_AHEAD + skip_of(groups, count, bytes);
    for (int g = 0; g < count; ++g) ask_for(groups[g] + bytes, ahead, ASKED_FOR_ENDS / SEVERAL);
    _tile_release();
}
