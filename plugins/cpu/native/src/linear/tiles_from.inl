// From how many tokens of a call on tiles are the faster, by type of weight and of activations. Included inside namespace
// tenon::amx. Quantized products have the same bits either way; those of bfloat16 differ in the order of their sums.

struct TilesFrom {
    WeightType type;
    int64_t codes, fine;  // int8 or int16 activations; bfloat16 weights have activations of their own type
};

constexpr TilesFrom TILES_FROM[] = {
    {WeightType::q4_0, 8, 8}, {WeightType::q4_1, 8, 8}, {WeightType::q5_0, 8, 8}, {WeightType::q5_1, 8, 8},
    {WeightType::q8_0, 8, 8}, {WeightType::q4_k, 8, 8}, {WeightType::q5_k, 8, 8}, {WeightType::q6_k, 8, 8},
    {WeightType::bf16, 4, 4},
};
