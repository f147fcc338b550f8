// From how many tokens of a call on tiles are the faster, by type of weight and of activations. Included inside namespace
// tenon::amx. Quantized products have the same bits either way; those of bfloat16 differ in the order of their sums. From IN_BF16_FROM tokens on int8 codes
// give way to bfloat16 (widen.inl).
//
// Measured on an Intel Xeon with AMX, two threads: milliseconds of all linears of SmolLM2-135M, tiles against none.
//     tokens                   8           16           24           32           48           64
//     Q4_1                     6.4  4.9    11.1  8.9    14.2  13.1   22.7  25.1   25.8  35.1   33.5  46.0
//     Q6_K                     9.5  6.9    13.6  12.6   18.7  19.0   23.6  33.7   29.4  60.5   32.8  73.5
//     Q8_0                     11.1  4.8   13.2  9.7    17.4  13.2   16.9  27.4   21.1  42.0   26.9  54.8
//     Q4_1, int16 activations  11.3  13.3  20.3  18.7                             512: 478, 534 (16, least: 16.3, 17.3)
//     BF16                     13.5  27.6                                         4: 12.1, 19.2; 1: 9.4, 10.2
// The other types of blocks were not measured apart: they are as Q4_1.

struct TilesFrom {
    WeightType type;
    int64_t codes, fine;  // int8 or int16 activations; bfloat16 weights have activations of their own type
};

constexpr TilesFrom TILES_FROM[] = {
    {WeightType::q4_0, 32, 8}, {WeightType::q4_1, 32, 8}, {WeightType::q5_0, 32, 8}, {WeightType::q5_1, 32, 8},
    {WeightType::q8_0, 32, 8}, {WeightType::q4_k, 32, 8}, {WeightType::q5_k, 32, 8}, {WeightType::q6_k, 24, 8},
    {WeightType::bf16, 1, 1},
};
