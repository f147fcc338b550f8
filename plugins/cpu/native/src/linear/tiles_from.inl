// From how many tokens of a call on tiles are the faster, by type of weight and of activations. Included inside namespace
// tenon::amx. Quantized products have the same bits either way; those of bfloat16 differ in the order of their sums.
//
// Measured on an Intel Xeon with AMX, two threads: milliseconds of all linears of SmolLM2-135M, tiles against none.
//     tokens                          8             16            24            others
//     Q4_1, Q5, Q4_K (as Q4_1)        6.4   4.9     11.1  8.9     14.2  13.1    64: 28.2 (none: 0.55 a token)
//     Q6_K                            9.5   6.9     13.6  12.6    18.7  19.0
//     Q8_0                            11.1  4.8     13.2  9.7     17.4  13.2    (16 more: 6 to 7, none: 9)
//     Q4_1, int16 activations         11.3  13.3    20.3  18.7                  512: 478, 534
//     BF16                            13.5  27.6                                4: 12.1, 19.2; 2, none: 17.1

struct TilesFrom {
    WeightType type;
    int64_t codes, fine;  // int8 or int16 activations; bfloat16 weights have activations of their own type
};

constexpr TilesFrom TILES_FROM[] = {
    {WeightType::q4_0, 32, 8}, {WeightType::q4_1, 32, 8}, {WeightType::q5_0, 32, 8}, {WeightType::q5_1, 32, 8},
    {WeightType::q8_0, 64, 8}, {WeightType::q4_k, 32, 8}, {WeightType::q5_k, 32, 8}, {WeightType::q6_k, 24, 8},
    {WeightType::bf16, 2, 2},
};
