// The KV cache's bytes (attention.inl draws them): tokens written, blocks exchanged, and the fused path from qkv.

template <class KV>
static inline int64_t key_place(int dim, int offset, int d) {  // of a token's dim in its (block, KV head)
    const int64_t tile = offset / TILE * TILE * width_of<KV>(dim);
    if constexpr (IsPaired<KV>::value) return tile + d / 2 * 2 * TILE + offset % TILE * 2 + d % 2;
    return tile + d * TILE + offset % TILE;
}

template <class KV>
static inline int64_t value_place(int dim, int offset, int d) {
    if constexpr (IsPaired<KV>::value) return static_cast<int64_t>(offset / 2) * 2 * dim + d * 2 + offset % 2;
    return offset / TILE * TILE * width_of<KV>(dim) + offset % TILE * static_cast<int64_t>(dim) + d;
}

// A token's scale in a part of a (block, KV head), which begins at its keys or at its values.
static inline float& scale_place(I8* part, int dim, int offset) {
    return reinterpret_cast<float*>(part + offset / TILE * TILE * width_of<I8>(dim) + static_cast<int64_t>(TILE) * dim)[offset % TILE];
}

constexpr int MOST_DIM = 1024;  // of a head

struct CacheShape {
    int64_t stride;
    int block_size, dim;
};

template <class KV>
static inline KV* keys_at(void* cache, const CacheShape& s, int64_t block, int head) {
    return static_cast<KV*>(cache) + block * s.stride + head * 2 * s.block_size * width_of<KV>(s.dim);
}
template <class KV>
static inline KV* values_at(KV* keys, const CacheShape& s) {
    return keys + s.block_size * width_of<KV>(s.dim);
}

// scale = max|x| / 127; codes x / scale, rounded to even. A scale of a value that is not finite is not a number.
template <class T>
static inline float quantize_head(const T* x, int dim, I8* codes) {
    float top = 0, fault = 0;
    for (int d = 0; d < dim; ++d) {
        const float value = to_float(x[d]), size = value < 0 ? -value : value;
        top = size > top ? size : top;
        fault += value - value;
    }
    const bool is_small = top < 1e-30f;  // whose inverse may overflow: all times 2^100, which is exact
    const float by = is_small ? 0x1p100f : 1.0f, inverse = top > 0 && fault == 0 ? 127.0f / (top * by) : 0.0f;
    for (int d = 0; d < dim; ++d) {
        const float scaled = to_float(x[d]) * by * inverse;
        codes[d].code = inverse == 0 ? int8_t{0} : static_cast<int8_t>(__builtin_nearbyintf(scaled));
    }
    return fault == 0 ? top / 127.0f : fault;
}

template <class T, class KV>
static inline void put_key(KV* keys, const CacheShape& s, int offset, const T* key) {
    KV* line = keys + key_place<KV>(s.dim, offset, 0);
    if constexpr (IsScaled<KV>::value) {
        KV codes[MOST_DIM];
        scale_place(keys, s.dim, offset) = quantize_head(key, s.dim, codes);
        for (int d = 0; d < s.dim; ++d) line[d * TILE] = codes[d];
    } else if constexpr (IsPaired<KV>::value) {
        for (int d = 0; d < s.dim; d += 2) {
            from_float(to_float(key[d]), line[d * TILE]);
            from_float(to_float(key[d + 1]), line[d * TILE + 1]);
        }
    } else {
        for (int d = 0; d < s.dim; ++d) from_float(to_float(key[d]), line[d * TILE]);
    }
}

template <class T, class KV>
static inline void put_value(KV* keys, const CacheShape& s, int offset, const T* value) {
    KV* values = values_at(keys, s);
    KV* line = values + value_place<KV>(s.dim, offset, 0);
    if constexpr (IsScaled<KV>::value) {
        scale_place(values, s.dim, offset) = quantize_head(value, s.dim, line);
    } else {
        constexpr int STEP = IsPaired<KV>::value ? 2 : 1;
        for (int d = 0; d < s.dim; ++d) from_float(to_float(value[d]), line[d * STEP]);
    }
}

// Call f(T{}, KV{}) with the types of two numbers.
template <class T, class F>
static inline void with_kv_type(int kv_type, F&& f) {
    switch (kv_type) {
        case 0: return f(T{}, float{});
        case 1: return f(T{}, BF16{});
        case 3: return f(T{}, I8{});
        default: return f(T{}, F16{});
    }
}
template <class F>
static inline void with_types(int type, int kv_type, F&& f) {
    switch (type) {
        case 0: return with_kv_type<float>(kv_type, f);
        case 1: return with_kv_type<BF16>(kv_type, f);
        default: return with_kv_type<F16>(kv_type, f);
    }
}

static void write_kv(const KVWriteParams& p, int64_t begin, int64_t end) {
    const CacheShape shape{p.cache_stride, p.block_size, p.dim};
    with_types(p.type, p.kv_type, [&](auto t, auto kv) {
        using T = decltype(t);
        using KV = decltype(kv);
        for (int64_t token = begin; token < end; ++token) {
            const int32_t slot = p.slots[token];
            for (int head = 0; head < p.kv_heads; ++head) {
                KV* keys = keys_at<KV>(p.cache, shape, slot / p.block_size, head);
                put_key(keys, shape, slot % p.block_size, static_cast<const T*>(p.key) + token * p.key_stride + head * p.dim);
                put_value(keys, shape, slot % p.block_size, static_cast<const T*>(p.value) + token * p.value_stride + head * p.dim);
            }
        }
    });
}

// A token of a head, whose canonical form is in float32.
static void exchange_scaled(I8* keys, const CacheShape& s, int offset, float* key, float* value, bool imports) {
    if (imports) {
        put_key(keys, s, offset, key);
        put_value(keys, s, offset, value);
        return;
    }
    I8* values = values_at(keys, s);
    for (int d = 0; d < s.dim; ++d) {
        key[d] = to_float(keys[key_place<I8>(s.dim, offset, d)]) * scale_place(keys, s.dim, offset);
        value[d] = to_float(values[value_place<I8>(s.dim, offset, d)]) * scale_place(values, s.dim, offset);
    }
}

static void exchange_blocks(const KVExchangeParams& p, int64_t begin, int64_t end) {
    const CacheShape shape{p.cache_stride, p.block_size, p.dim};
    with_kv_type<float>(p.kv_type, [&](float, auto kv) {
        using KV = decltype(kv);
        const int64_t line = static_cast<int64_t>(p.kv_heads) * p.dim, half = p.block_size * line;
        for (int64_t i = begin; i < end; ++i) {
            for (int head = 0; head < p.kv_heads; ++head) {
                KV* keys = keys_at<KV>(p.cache, shape, p.blocks[i], head);
                KV* values = values_at(keys, shape);
                for (int offset = 0; offset < p.block_size; ++offset) {
                    if constexpr (IsScaled<KV>::value) {
                        float* floats = static_cast<float*>(p.canonical) + i * 2 * half + offset * line + head * p.dim;
                        exchange_scaled(keys, shape, offset, floats, floats + half, p.imports != 0);
                        continue;
                    }
                    KV* outside = static_cast<KV*>(p.canonical) + i * 2 * half + offset * line + head * p.dim;
                    for (int d = 0; d < p.dim; ++d) {
                        KV& key = keys[key_place<KV>(p.dim, offset, d)];
                        KV& value = values[value_place<KV>(p.dim, offset, d)];
                        if (p.imports) {
                            key = outside[d];
                            value = outside[half + d];
                        } else {
                            outside[d] = key;
                            outside[half + d] = value;
                        }
                    }
                }
            }
        }
    });
}

template <class T>
static inline float rounded(float x) {
    T y;
    from_float(x, y);
    return to_float(y);
}

// One head's norm, in place: as the reference rounds, to T before the product where there is no offset.
template <class T>
static inline void norm_head(float* head, int dim, const T* weight, float eps, float offset) {
    Vec sum = vzero();
    for (int d = 0; d < dim; d += W) sum = vfma(vload(head + d), vload(head + d), sum);
    const float scale = 1.0f / __builtin_sqrtf(vsum(sum) / static_cast<float>(dim) + eps);
    for (int d = 0; d < dim; ++d) {
        const float scaled = head[d] * scale;
        head[d] = rounded<T>(offset != 0 ? scaled * (to_float(weight[d]) + offset) : rounded<T>(scaled) * to_float(weight[d]));
    }
}

static inline void rotate_head(float* head, const float* cos_sin, int rotary_dim, bool interleaved) {
    const int half = rotary_dim / 2, step = interleaved ? 2 : 1, apart = interleaved ? 1 : half;
    const float* cos = cos_sin;
    const float* sin = cos_sin + half;
    for (int i = 0; i < half; ++i) {
        float& first = head[i * step];
        float& second = head[i * step + apart];
        const float a = first, b = second;
        first = a * cos[i] - b * sin[i];
        second = b * cos[i] + a * sin[i];
    }
}

static inline void rotate_halves(float* head, const float* cos_sin, int half) {
    for (int i = 0; i < half; i += W) {
        const Vec a = vload(head + i), b = vload(head + half + i);
        const Vec cos = vload(cos_sin + i), sin = vload(cos_sin + half + i);
        vstore(head + i, a * cos - b * sin);
        vstore(head + half + i, b * cos + a * sin);
    }
}

// Lines are (token, head of q, k or v).
static void qk_norm_rope_write(const QKNormRopeWriteParams& p, int64_t begin, int64_t end) {
    const CacheShape shape{p.cache_stride, p.block_size, p.dim};
    const int all = p.heads + 2 * p.kv_heads;
    with_types(p.type, p.kv_type, [&](auto t, auto kv) {
        using T = decltype(t);
        using KV = decltype(kv);
        float head[MOST_DIM];
        for (int64_t line = begin; line < end; ++line) {
            const int64_t token = line / all;
            const int index = static_cast<int>(line % all);
            const T* from = static_cast<const T*>(p.qkv) + line * p.dim;
            const int32_t slot = p.slots[token];
            if (index >= p.heads + p.kv_heads) {
                KV* keys = keys_at<KV>(p.cache, shape, slot / p.block_size, index - p.heads - p.kv_heads);
                put_value(keys, shape, slot % p.block_size, from);
                continue;
            }
            for (int d = 0; d < p.dim; d += W) vstore(head + d, vload(from + d));
            const bool is_key = index >= p.heads;
            if (const void* weight = is_key ? p.k_weight : p.q_weight)
                norm_head(head, p.dim, static_cast<const T*>(weight), is_key ? p.k_eps : p.q_eps, is_key ? p.k_offset : p.q_offset);
            if (p.cos_sin != nullptr) {
                const float* angles = p.cos_sin + static_cast<int64_t>(p.positions[token]) * p.rotary_dim;
                if (!p.interleaved && p.rotary_dim / 2 % W == 0)
                    rotate_halves(head, angles, p.rotary_dim / 2);
                else
                    rotate_head(head, angles, p.rotary_dim, p.interleaved != 0);
            }
            if (is_key) {
                KV* keys = keys_at<KV>(p.cache, shape, slot / p.block_size, index - p.heads);
                if constexpr (sizeof(T) < sizeof(float)) {
                    for (int d = 0; d < p.dim; ++d) head[d] = rounded<T>(head[d]);
                }
                put_key(keys, shape, slot % p.block_size, head);
            } else {
                T* to = static_cast<T*>(p.query) + (token * p.heads + index) * p.dim;
                for (int d = 0; d < p.dim; d += W) vstore(to + d, vload(head + d));
            }
        }
    });
}
