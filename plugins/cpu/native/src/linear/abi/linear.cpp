// A linear: parts of any weight types side by side, and the call that multiplies tokens with all of them; the rows of a
// packed table.
#include <algorithm>
#include <mutex>
#include <new>
#include <vector>

#include "linear/abi/call.h"
#include "linear/abi/linear.h"
#include "tape.h"

namespace tenon {
namespace {

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
    return Call(*linear, call, num_threads()).run();
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
    const bool alike = (epilogue & TENON_ALIKE) != 0;
    epilogue &= ~(TENON_FINE | TENON_ALIKE);
    if (epilogue != TENON_PLAIN && epilogue != TENON_SILU_MUL) return TENON_BAD_ARGUMENT;
    for (int i = 0; i < count; ++i)
        if (const int status = tenon::check_part(parts[i], columns)) return status;
    if (epilogue == TENON_SILU_MUL && (count != 2 || parts[0].rows != parts[1].rows)) return TENON_BAD_ARGUMENT;
    auto* made = new (std::nothrow) tenon::Linear();
    if (made == nullptr) return TENON_NO_MEMORY;
    made->columns = columns;
    made->fine = fine;
    made->alike = alike;
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
