// Rows are any length: whole vectors, then one partial one.

template <class T>
struct IsBF16 {
    static constexpr bool value = false;
};
template <>
struct IsBF16<BF16> {
    static constexpr bool value = true;
};

template <class T>
static inline Vec round_to(Vec x) {
    if constexpr (sizeof(T) == sizeof(float)) return x;
#if TENON_LEVEL_NUMBER >= 1
    if constexpr (IsBF16<T>::value) return vround_to(T{}, x);
#endif
    T values[W];
    vstore(values, x);
    return vload(values);
}

template <class F>
static inline void with_type(int type, F&& f) {
    switch (type) {
        case 0: return f(float{});
        case 1: return f(BF16{});
        default: return f(F16{});
    }
}

template <class T>
static inline Vec load_at(const T* p, int64_t i, int64_t n) {
    return i + W <= n ? vload(p + i) : vload_part(p + i, static_cast<int>(n - i));
}
template <class T>
static inline void store_at(T* p, Vec x, int64_t i, int64_t n) {
    if (i + W <= n)
        vstore(p + i, x);
    else
        vstore_part(p + i, x, static_cast<int>(n - i));
}

// Of values value_at(i) in vectors, with two sums side by side: a sum waits for the one before it.
template <class ValueAt>
static inline float sum_of_squares(int64_t n, const ValueAt& value_at) {
    Vec even = vzero(), odd = vzero();
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
        const Vec first = value_at(i), second = value_at(i + W);
        even = vfma(first, first, even);
        odd = vfma(second, second, odd);
    }
    if (i < n) {
        const Vec value = value_at(i);
        even = vfma(value, value, even);
    }
    if (i + W < n) {
        const Vec value = value_at(i + W);
        odd = vfma(value, value, odd);
    }
    return vsum(even + odd);
}

static void rms_norm(const RMSNormParams& p, int64_t begin, int64_t end) {
    with_type(p.type, [&](auto t) {
        using T = decltype(t);
        const T* weight = static_cast<const T*>(p.weight);
        const int64_t n = p.hidden;
        for (int64_t row = begin; row < end; ++row) {
            const T* x = static_cast<const T*>(p.x) + row * n;
            T* y = static_cast<T*>(p.y) + row * n;
            float squares;
            if (p.residual != nullptr) {
                const T* residual = static_cast<const T*>(p.residual) + row * n;
                T* total = static_cast<T*>(p.total) + row * n;
                squares = sum_of_squares(n, [&](int64_t i) {
                    const Vec sum = round_to<T>(load_at(x, i, n) + load_at(residual, i, n));
                    store_at(total, sum, i, n);
                    return sum;
                });
                x = total;
            } else {
                squares = sum_of_squares(n, [&](int64_t i) { return load_at(x, i, n); });
            }
            const Vec scale = vset(1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + p.eps));
            if (p.offset != 0) {
                const Vec offset = vset(p.offset);
                for (int64_t i = 0; i < n; i += W) store_at(y, load_at(x, i, n) * scale * (load_at(weight, i, n) + offset), i, n);
            } else {
                for (int64_t i = 0; i < n; i += W) store_at(y, round_to<T>(load_at(x, i, n) * scale) * load_at(weight, i, n), i, n);
            }
        }
    });
}

struct Silu {
    static Vec of(Vec x) { return x / (vset(1.0f) + vexp(vzero() - x)); }
};
struct GeluTanh {  // x (1 + tanh u) / 2 = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
    static Vec of(Vec x) {
        const Vec cubic = x * x * x;
        const Vec twice = vset(1.5957691216057308f) * vfma(vset(0.044715f), cubic, x);
        return x / (vset(1.0f) + vexp(vzero() - twice));
    }
};
struct Gelu {  // x (1 + erf(x / sqrt 2)) / 2
    static Vec of(Vec x) {
        float values[W];
        vstore(values, x);
        for (int i = 0; i < W; ++i) values[i] = 0.5f * values[i] * ::erfcf(-values[i] * 0.70710678118654752f);
        return vload(values);
    }
};
struct Relu {
    static Vec of(Vec x) { return vmax(x, vzero()); }
};

template <class T, class Activation>
static void activate(const ActivationMulParams& p, int64_t begin, int64_t end) {
    const int64_t n = p.width;
    for (int64_t row = begin; row < end; ++row) {
        const T* gate = static_cast<const T*>(p.x) + row * 2 * n;
        T* y = static_cast<T*>(p.y) + row * n;
        for (int64_t i = 0; i < n; i += W)
            store_at(y, round_to<T>(Activation::of(load_at(gate, i, n))) * load_at(gate + n, i, n), i, n);
    }
}

static void activation_mul(const ActivationMulParams& p, int64_t begin, int64_t end) {
    with_type(p.type, [&](auto t) {
        using T = decltype(t);
        switch (p.activation) {
            case 0: return activate<T, Silu>(p, begin, end);
            case 1: return activate<T, Gelu>(p, begin, end);
            case 2: return activate<T, GeluTanh>(p, begin, end);
            default: return activate<T, Relu>(p, begin, end);
        }
    });
}

static void widen(const void* row, int type, float* wide, int64_t n) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        for (int64_t i = 0; i < n; i += W) store_at(wide, load_at(static_cast<const T*>(row), i, n), i, n);
    });
}

static void divide(float* row, float divisor, int64_t n) {
    const Vec by = vset(divisor);
    for (int64_t i = 0; i < n; i += W) store_at(row, load_at(row, i, n) / by, i, n);
}

template <class T>
static int64_t next_of(const T* row, int64_t from, int64_t n, float bar) {
    const Vec wanted = vset(bar);
    for (; from + W <= n; from += W)
        if (vany_at_least(vload(row + from), wanted)) break;
    for (; from < n; ++from)
        if (to_float(row[from]) >= bar) return from;
    return n;
}

static int64_t next_at_least(const float* row, int64_t from, int64_t n, float bar) {
    return next_of(row, from, n, bar);
}

// The greatest of n values; a NaN gives way to what is there. Four at a time: a maximum waits for the one before it.
template <class T>
static float top_of(const T* row, int64_t n) {
    Vec top[4];
    for (Vec& one : top) one = vset(-__builtin_inff());
    int64_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W)
        for (int v = 0; v < 4; ++v) top[v] = vmax(vload(row + i + v * W), top[v]);
    float found = vtop(vmax(vmax(top[0], top[1]), vmax(top[2], top[3])));
    for (; i < n; ++i) found = to_float(row[i]) > found ? to_float(row[i]) : found;
    return found;
}

// In pieces, so that the greatest is looked for again in one of them alone.
template <class T>
static int64_t best_of(const T* row, int64_t n) {
    constexpr int64_t PIECE = 2048;
    float found = -__builtin_inff();
    int64_t piece = 0;
    for (int64_t i = 0; i < n; i += PIECE) {
        const float top = top_of(row + i, n - i < PIECE ? n - i : PIECE);
        if (top > found) {
            found = top;
            piece = i;
        }
    }
    const int64_t index = next_of(row, piece, n, found);
    return index < n ? index : 0;
}

static int64_t best(const void* row, int type, int64_t n) {
    int64_t found = 0;
    with_type(type, [&](auto t) { found = best_of(static_cast<const decltype(t)*>(row), n); });
    return found;
}

static float sum_exp(const float* row, float shift, int64_t n) {
    const Vec by = vset(shift);
    Vec sum = vzero();
    int64_t i = 0;
    for (; i + W <= n; i += W) sum = sum + vexp(vload(row + i) - by);
    if (i < n) sum = sum + vexp(vload_part(row + i, static_cast<int>(n - i), -__builtin_inff()) - by);
    return vsum(sum);
}

static void add_up(const uint8_t* first, int64_t stride, int count, void* y, int type, int64_t begin, int64_t end) {
    with_type(type, [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = begin; i < end; i += W) {
            Vec sum = load_at(reinterpret_cast<const T*>(first), i, end);
            for (int k = 1; k < count; ++k) sum = sum + load_at(reinterpret_cast<const T*>(first + k * stride), i, end);
            store_at(static_cast<T*>(y), sum, i, end);
        }
    });
}
