// What a decode row reads next, asked for in the order of reading, a line for each line that is computed with. Included by
// attention.inl.
//
// Asked for at once, some lines would fill all of a core's line buffers and products would wait behind them, and memory
// would rest while products run: with one line for one line both go on. Each line is asked for once, and none that nobody reads.

constexpr int LINE = 64;  // bytes

// Memory that is read from one end to the other.
struct Run {
    const char* at;
    const char* end;
};

// The runs that follow this one, up to one of nothing.
struct Ahead {
    const char* at;
    const char* end;
    const Run* next;

    bool is_over() const { return at >= end && next->at == nullptr; }
    template <int N>
    inline __attribute__((always_inline)) void ask() {
        for (int i = 0; i < N; ++i) {
            if (at >= end) {
                if (next->at == nullptr) return;
                at = next->at;
                end = next->end;
                ++next;
            }
            __builtin_prefetch(at);
            at += LINE;
        }
    }
    void ask_for(int lines) {
        for (int i = 0; i < lines; ++i) ask<1>();
    }
    void ask_for_all() {
        while (!is_over()) ask<1>();
    }
};

// Runs in the order of reading, of which neighbors are one.
struct Runs {
    Run runs[2 * BLOCK_TILES + 1];
    int count = 0;

    void add(const void* from, int bytes) {
        const char* at = static_cast<const char*>(from);
        if (count > 0 && runs[count - 1].end == at) runs[count - 1].end += bytes;
        else runs[count++] = {at, at + bytes};
    }
    Ahead ahead() {
        runs[count] = {nullptr, nullptr};
        return {nullptr, nullptr, runs};
    }
};

template <class KV>
static constexpr int lines_of(int dim) {  // of a tile
    return TILE * dim * static_cast<int>(sizeof(KV)) / LINE;
}
