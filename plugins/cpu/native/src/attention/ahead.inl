// What a decode row reads next, asked for a line for each line that is computed with. Included by attention.inl.
//
// Asked for at once, many lines would fill a core's line buffers, products would wait behind them, and memory would rest while
// products run: with one line for one line both go on. A CPU also reads ahead by itself along every stream of addresses that
// it sees, but not far and not past a page, so two tiles are asked for side by side. Each line is asked for once, and none that
// nobody reads.

constexpr int LINE = 64;  // bytes

// The next bytes of two tiles.
struct Ask {
    const char* first;
    const char* second;
    int first_bytes, second_bytes;

    // A line of either, as the next two lines of the tiles at hand are read, of which `read` bytes have been.
    inline __attribute__((always_inline)) void at(int read) const {
        const unsigned next = static_cast<unsigned>(read) / 2;
        if (static_cast<int>(next) < first_bytes) __builtin_prefetch(first + next);
        if (static_cast<int>(next) < second_bytes) __builtin_prefetch(second + next);
    }
    // The same of BYTES that are read at once: many lines, or part of one.
    template <int BYTES>
    inline __attribute__((always_inline)) void over(int read) const {
        if (BYTES % (2 * LINE) != 0 && read % (2 * LINE) != 0) return;
        at(read);
        if constexpr (BYTES > 2 * LINE) over<BYTES - 2 * LINE>(read + 2 * LINE);
    }
    void all() const {
        for (int read = 0; read / 2 < most(first_bytes, second_bytes); read += 2 * LINE) at(read);
    }
};

// The tiles of half a key block, its keys or its values. As one of the tiles before them is read, a share of them is asked for:
// of tiles 0 and 2 the first halves with tile 0, the second halves with tile 1, then of tiles 1 and 3.
struct Soon {
    const char* tiles[BLOCK_TILES];
    int bytes[BLOCK_TILES];
    int tile_bytes;

    // The shares of `count` tiles from t on, of one, or of two from an even t on.
    Ask share(int t, int count) const {
        constexpr int FAR = BLOCK_TILES / 2;
        const int pair = t / 2, half = tile_bytes / 2, from = t % 2 * half, size = count * half;
        const auto at = [&](int tile) { return bytes[tile] > from ? tiles[tile] + from : nullptr; };
        return {at(pair), at(pair + FAR), least(bytes[pair] - from, size), least(bytes[pair + FAR] - from, size)};
    }
    // The shares of tiles [t, BLOCK_TILES).
    void all_from(int t) const {
        for (; t < BLOCK_TILES; ++t) share(t, 1).all();
    }
};
