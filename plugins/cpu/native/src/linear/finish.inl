// The end of a linear: bias, SiLU of a gate times its up, and the output's type; that of a mixture of experts. Included inside namespace tenon::TENON_LEVEL.

TENON_INLINE void put(void* y, int dtype, int64_t at, float value) {
    if (dtype == 0) static_cast<float*>(y)[at] = value;
    else static_cast<uint16_t*>(y)[at] = dtype == 1 ? f32_to_bf16(value) : f32_to_f16(value);
}

// W finished values of a token, from lane i on.
TENON_INLINE vf ended(const float* out, const float* up, const float* bias, const float* up_bias, int i) {
    vf v = vload(out + i);
    if (bias != nullptr) v = vadd(v, vload(bias + i));
    if (up == nullptr) return v;
    vf u = vload(up + i);
    if (up_bias != nullptr) u = vadd(u, vload(up_bias + i));
    const vf one = vset(1.0f), gate = vmax(vset(-1e4f), v);  // vexp ends at e^88; a NaN is the second operand
    return vmul(vdiv(gate, vadd(one, vexp(vsub(vzero(), gate)))), u);
}

TENON_INLINE void end(const float* out, const float* up, const float* bias, const float* up_bias, float* result) {
    for (int i = 0; i < GROUP; i += W) vstore(result + i, ended(out, up, bias, up_bias, i));
}

static void finish(const float* out, const float* up, const float* bias, const float* up_bias, int64_t tokens,
                   int rows, void* y, int dtype, int64_t stride) {
    float result[GROUP];
    for (int64_t t = 0; t < tokens; ++t) {
        const float* second = up == nullptr ? nullptr : up + t * GROUP;
        if (dtype == 0 && rows == GROUP) {
            end(out + t * GROUP, second, bias, up_bias, static_cast<float*>(y) + t * stride);
            continue;
        }
        end(out + t * GROUP, second, bias, up_bias, result);
        if (dtype == 1 && rows == GROUP) {
            for (int i = 0; i < GROUP; i += W) vstore_bf16(static_cast<uint16_t*>(y) + t * stride + i, vload(result + i));
            continue;
        }
        for (int i = 0; i < rows; ++i) put(y, dtype, t * stride + i, result[i]);
    }
}

static void add_rows(const float* rows, const int32_t* at, const float* weights, int count, int64_t columns, void* y, int dtype) {
    int64_t c = 0;
    for (; c + W <= columns; c += W) {
        vf sum = vzero();
        for (int k = 0; k < count; ++k) sum = vfma(vload(rows + at[k] * columns + c), vset(weights[k]), sum);
        if (dtype == 0) vstore(static_cast<float*>(y) + c, sum);
        else if (dtype == 1) vstore_bf16(static_cast<uint16_t*>(y) + c, sum);
        else {
            float values[W];
            vstore(values, sum);
            for (int i = 0; i < W; ++i) put(y, dtype, c + i, values[i]);
        }
    }
    for (; c < columns; ++c) {
        float sum = 0;
        for (int k = 0; k < count; ++k) sum = std::fma(rows[at[k] * columns + c], weights[k], sum);
        put(y, dtype, c, sum);
    }
}
