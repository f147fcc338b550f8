// A linear as it was made: its parts' groups of rows, in the order of y's columns.
#pragma once

#include <cstdint>
#include <vector>

namespace tenon {

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
    bool alike = false;  // a token's sums are the same beside any others
    std::vector<int32_t> types;  // of parts, each once
    std::vector<Unit> units;
    std::vector<int64_t> cost;  // [units + 1], bytes before a unit
    std::vector<float> bias;    // padded to groups
};

}  // namespace tenon
