// Sampling a row of logits at a time, in the order that tenon_platforms/ops/sampling_reference.py fixes.
//
// Noise belongs to a token id (Threefry-2x32-20, tenon_platforms/noise.py), so it is drawn only for ids that can still
// win; filters sort only as many of the best as they keep.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "elementwise/elementwise.h"
#include "step/split.h"
#include "tape.h"

namespace tenon {
namespace {

enum Column { TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY, TOP_K, KEY0, KEY1, COUNT_SLOT, EDIT_SLOT, EDIT_UNTIL, NUM_COLUMNS = 13 };
enum Mode { NOISE = 1, FILTERS = 2, PENALTIES = 4, EDITS = 8, GRAMMAR = 16 };

constexpr float LOWEST = -HUGE_VALF;
constexpr float LARGEST_NOISE = 16.7f;  // Gumbel noise of the largest uniform, 1 - 2^-24, is 16.636
constexpr size_t FIRST_SORTED = 256;

struct Candidate {
    float score;
    int32_t id;
};

bool better(const Candidate& a, const Candidate& b) { return a.score > b.score || (a.score == b.score && a.id < b.id); }

struct Row {
    const SampleParams& p;
    const int32_t* params;
    int32_t position;
    float of(Column column) const {
        float value;
        std::memcpy(&value, params + column, 4);
        return value;
    }
};

uint32_t turn(uint32_t x, int by) { return x << by | x >> (32 - by); }

float gumbel(const Row& row, int32_t id) {
    constexpr int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const auto key0 = static_cast<uint32_t>(row.params[KEY0]), key1 = static_cast<uint32_t>(row.params[KEY1]);
    const uint32_t keys[3] = {key0, key1, key0 ^ key1 ^ 0x1BD11BDAu};
    uint32_t x0 = static_cast<uint32_t>(id >> 1) + key0, x1 = static_cast<uint32_t>(row.position) + key1;
    for (uint32_t group = 0; group < 5; ++group) {
        for (const int rotation : rotations[group % 2]) {
            x0 += x1;
            x1 = turn(x1, rotation) ^ x0;
        }
        x0 += keys[(group + 1) % 3];
        x1 += keys[(group + 2) % 3] + group + 1;
    }
    const uint32_t bits = id & 1 ? x1 : x0;
    const float uniform = (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f;
    return -std::log(-std::log(uniform));
}

void edit(const Row& row, float* logits) {
    const int32_t slot = row.params[EDIT_SLOT];
    if (slot == 0) return;
    const int64_t vocab = row.p.vocab;
    const float* always = row.p.edits + static_cast<int64_t>(slot) * 2 * vocab;
    const float* early = row.position < row.params[EDIT_UNTIL] ? always + vocab : nullptr;
    for (int64_t i = 0; i < vocab; ++i) {
        logits[i] += always[i];
        if (early != nullptr) logits[i] += early[i];
    }
}

void mask(const int32_t* allowed, int64_t vocab, float* logits) {
    for (int64_t i = 0; i < vocab; ++i)
        if ((static_cast<uint32_t>(allowed[i / 32]) >> (i % 32) & 1) == 0) logits[i] = LOWEST;
}

void penalize(const Row& row, float* logits) {
    const int32_t slot = row.params[COUNT_SLOT];
    if (slot <= 0) return;
    const int64_t vocab = row.p.vocab;
    const int32_t* prompt = row.p.counts + static_cast<int64_t>(slot) * 2 * vocab;
    const int32_t* output = prompt + vocab;
    const float repetition = row.of(REPETITION), frequency = row.of(FREQUENCY), presence = row.of(PRESENCE);
    for (int64_t i = 0; i < vocab; ++i) {
        float x = logits[i];
        if (prompt[i] > 0 || output[i] > 0) x = x > 0 ? x / repetition : x * repetition;
        x -= frequency * static_cast<float>(output[i]);
        logits[i] = output[i] > 0 ? x - presence : x;
    }
}

// The noisy best of those that filters keep.
int32_t filtered(const Row& row, const float* scaled, float top, std::vector<Candidate>& some) {
    const auto& kernels = element_kernels();
    const float floor = top + std::log(row.of(MIN_P)), top_p = row.of(TOP_P);
    const int64_t vocab = row.p.vocab;
    some.clear();
    if (top == LOWEST) return 0;
    const float bar = std::max(floor, -3.402823466e38f);  // what is -inf cannot be drawn
    for (int64_t i = kernels.next_at_least(scaled, 0, vocab, bar); i < vocab; i = kernels.next_at_least(scaled, i + 1, vocab, bar))
        some.push_back({scaled[i], static_cast<int32_t>(i)});
    const auto top_k = static_cast<size_t>(std::max(row.params[TOP_K], 0));
    if (top_k > 0 && top_k < some.size()) {
        std::nth_element(some.begin(), some.begin() + static_cast<std::ptrdiff_t>(top_k), some.end(), better);
        some.resize(top_k);
    }
    if (top_p < 1) {
        float total = 0;
        for (Candidate& one : some) total += std::exp(one.score - top);
        float sum = 0;
        size_t sorted = 0, kept = 0;
        for (; kept < some.size(); ++kept) {
            if (kept == sorted) {
                const size_t wanted = std::min(some.size(), sorted == 0 ? FIRST_SORTED : sorted * 4);
                std::partial_sort(some.begin() + static_cast<std::ptrdiff_t>(sorted), some.begin() + static_cast<std::ptrdiff_t>(wanted), some.end(), better);
                sorted = wanted;
            }
            if (kept > 0 && sum >= top_p) break;
            sum += std::exp(some[kept].score - top) / total;
        }
        some.resize(kept);
    }
    Candidate winner{LOWEST, 0};
    for (const Candidate& one : some) {
        const Candidate noisy{one.score + gumbel(row, one.id), one.id};
        if (better(noisy, winner)) winner = noisy;
    }
    return winner.id;
}

// The noisy best of all: looks only at what could still beat the best so far, were its noise the largest there is.
int32_t drawn(const Row& row, const float* scaled, int64_t first) {
    const auto& kernels = element_kernels();
    const int64_t vocab = row.p.vocab;
    Candidate winner{scaled[first] + gumbel(row, static_cast<int32_t>(first)), static_cast<int32_t>(first)};
    if (scaled[first] == LOWEST) return 0;
    int64_t i = -1;
    while ((i = kernels.next_at_least(scaled, i + 1, vocab, winner.score - LARGEST_NOISE)) < vocab) {
        const Candidate noisy{scaled[i] + gumbel(row, static_cast<int32_t>(i)), static_cast<int32_t>(i)};
        if (better(noisy, winner)) winner = noisy;
    }
    return winner.id;
}

struct Buffers {
    std::vector<float> row;
    std::vector<Candidate> some;
};
thread_local Buffers buffers;

const void* row_at(const void* rows, int64_t index, int64_t width, int type) {
    return static_cast<const char*>(rows) + index * width * (type == 0 ? 4 : 2);
}

int32_t sample_row(const SampleParams& p, int64_t index) {
    const auto& kernels = element_kernels();
    const Row row{p, p.params + index * NUM_COLUMNS, p.positions[index]};
    const void* logits = row_at(p.logits, index, p.vocab, p.type);
    if (p.mode == 0) return static_cast<int32_t>(kernels.best(logits, p.type, p.vocab));
    std::vector<float>& wide = buffers.row;
    wide.resize(static_cast<size_t>(p.vocab));
    kernels.widen(logits, p.type, wide.data(), p.vocab);
    if (p.mode & EDITS) edit(row, wide.data());
    if (p.mode & GRAMMAR && p.grammar_mask != nullptr) mask(p.grammar_mask + index * ((p.vocab + 31) / 32), p.vocab, wide.data());
    if (p.mode & PENALTIES) penalize(row, wide.data());
    int64_t chosen = kernels.best(wide.data(), 0, p.vocab);
    const float temperature = row.of(TEMPERATURE);
    if (p.mode & NOISE && temperature > 0) {
        kernels.divide(wide.data(), temperature, p.vocab);
        chosen = p.mode & FILTERS ? filtered(row, wide.data(), wide[static_cast<size_t>(chosen)], buffers.some) : drawn(row, wide.data(), chosen);
    }
    if (p.mode & PENALTIES && row.params[COUNT_SLOT] > 0)
        ++p.counts[(static_cast<int64_t>(row.params[COUNT_SLOT]) * 2 + 1) * p.vocab + chosen];
    return static_cast<int32_t>(chosen);
}

int run_sample(const SampleParams& p) {
    split(p.rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) p.tokens[i] = sample_row(p, i);
    });
    return TENON_OK;
}

void logprobs_row(const TokenLogprobsParams& p, int64_t index) {
    const auto& kernels = element_kernels();
    std::vector<float>& scores = buffers.row;
    scores.resize(static_cast<size_t>(p.vocab));
    kernels.widen(row_at(p.logits, index, p.vocab, p.type), p.type, scores.data(), p.vocab);
    const float top = scores[static_cast<size_t>(kernels.best(scores.data(), 0, p.vocab))];
    const float log_sum = std::log(kernels.sum_exp(scores.data(), top, p.vocab));
    for (float& score : scores) score = score - top - log_sum;
    const float chosen = scores[static_cast<size_t>(p.tokens[index])];
    int32_t rank = 1;
    for (const float score : scores) rank += score > chosen;
    p.chosen[index] = chosen;
    p.rank[index] = rank;
    if (p.k == 0) return;
    std::vector<Candidate>& some = buffers.some;
    some.clear();
    for (size_t i = 0; i < scores.size(); ++i) some.push_back({scores[i], static_cast<int32_t>(i)});
    std::partial_sort(some.begin(), some.begin() + p.k, some.end(), better);
    for (int64_t i = 0; i < p.k; ++i) {
        p.top_ids[index * p.k + i] = some[static_cast<size_t>(i)].id;
        p.top[index * p.k + i] = some[static_cast<size_t>(i)].score;
    }
}

int run_token_logprobs(const TokenLogprobsParams& p) {
    if (p.k > p.vocab) return TENON_BAD_ARGUMENT;
    split(p.rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) logprobs_row(p, i);
    });
    return TENON_OK;
}

}  // namespace

TENON_KERNEL(tenon_sample, run_sample, SampleParams)
TENON_KERNEL(tenon_token_logprobs, run_token_logprobs, TokenLogprobsParams)

}  // namespace tenon
