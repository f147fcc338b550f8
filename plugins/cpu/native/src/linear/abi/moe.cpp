// A mixture of experts: one call routes tokens, sorts them by expert, multiplies each expert's with its weights and adds
// what a token's experts say.
//
// The products of all experts are one region: threads walk the experts' first products, then their second ones, each of
// which waits for its own expert's first alone. Which experts run is found here, so that a tape can replay the call. A
// token's sums do not depend on the others (but for the tiles of bfloat16), and its experts are added in the order of their
// weights.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <vector>

#include "linear/abi/call.h"
#include "linear/abi/linear.h"
#include "tape.h"

namespace tenon {
namespace {

struct Expert {
    const Linear* first;  // silu(gate) * up
    const Linear* second;
};

struct MoE {
    const Linear* router;
    std::vector<Expert> experts;
    int64_t hidden, inner;
    int32_t top_k;
    bool renormalizes;
};

Scratch moe_scratch;  // under call_mutex, as the linears' own

// One call's memory. A slot is one of a token's experts, a place its row once slots are sorted by expert.
struct Routed {
    float* scores;      // [tokens, experts]
    float* weights;     // [slots]
    int32_t* experts;   // [slots]
    int32_t* places;    // [slots]
    int32_t* slots;     // [places]
    int64_t* starts;    // [experts + 1], first place of an expert
    uint8_t* x;         // [places, hidden] of x's type
    uint8_t* inner;     // [places, inner] of x's type
    float* outputs;     // [places, hidden]
};

Routed lay(Arena& arena, const MoE& moe, int64_t tokens, int64_t size) {
    const int64_t slots = tokens * moe.top_k, experts = static_cast<int64_t>(moe.experts.size());
    Routed r;
    r.scores = arena.take<float>(tokens * experts);
    r.weights = arena.take<float>(slots);
    r.experts = arena.take<int32_t>(slots);
    r.places = arena.take<int32_t>(slots);
    r.slots = arena.take<int32_t>(slots);
    r.starts = arena.take<int64_t>(experts + 1);
    r.x = arena.take<uint8_t>(slots * moe.hidden * size);
    r.inner = arena.take<uint8_t>(slots * moe.inner * size);
    r.outputs = arena.take<float>(slots * moe.hidden);
    return r;
}

// The most probable experts of a token, the first of equal ones first, and their weights. scores [experts]: logits, which are lost.
void choose(float* scores, const MoE& moe, int32_t* experts, float* weights) {
    const auto count = static_cast<int32_t>(moe.experts.size());
    const float top = *std::max_element(scores, scores + count);
    float total = 0, chosen = 0;
    for (int32_t e = 0; e < count; ++e) total += scores[e] = std::exp(scores[e] - top);
    for (int32_t k = 0; k < moe.top_k; ++k) {
        int32_t best = -1;
        for (int32_t e = 0; e < count; ++e)
            if (std::find(experts, experts + k, e) == experts + k && (best < 0 || scores[e] > scores[best])) best = e;
        experts[k] = best;  // there is one, even of scores that are not numbers
        chosen += scores[best];
    }
    const float by = moe.renormalizes && !std::isnan(total) ? chosen : total;  // one score that is no number spoils all
    for (int32_t k = 0; k < moe.top_k; ++k) weights[k] = scores[experts[k]] / by;
}

void route(const Routed& r, const MoE& moe, int64_t tokens, int threads) {
    const auto count = static_cast<int64_t>(moe.experts.size());
    parallel_for(tokens, threads, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) choose(r.scores + t * count, moe, r.experts + t * moe.top_k, r.weights + t * moe.top_k);
    });
}

// Places in the order of experts, of one expert in the order of tokens.
void sort(const Routed& r, const MoE& moe, int64_t slots) {
    const size_t count = moe.experts.size();
    std::fill(r.starts, r.starts + count + 1, 0);
    for (int64_t s = 0; s < slots; ++s) ++r.starts[r.experts[s] + 1];
    for (size_t e = 0; e < count; ++e) r.starts[e + 1] += r.starts[e];
    for (int64_t s = 0; s < slots; ++s) {
        const int64_t place = r.starts[r.experts[s]]++;
        r.places[s] = static_cast<int32_t>(place);
        r.slots[place] = static_cast<int32_t>(s);
    }
    for (size_t e = count; e > 0; --e) r.starts[e] = r.starts[e - 1];
    r.starts[0] = 0;
}

// The two products of one expert.
struct Job {
    Job(const Expert& expert, const tenon_linear_call& first_call, const tenon_linear_call& second_call, int threads)
        : first(*expert.first, first_call, threads), second(*expert.second, second_call, threads), firsts(first), seconds(second) {}
    Call first, second;
    Call::Works firsts, seconds;
};

void plan(std::deque<Job>& jobs, const Routed& r, const MoE& moe, int32_t type, int threads) {
    const int64_t size = elements_size(type);
    for (size_t e = 0; e < moe.experts.size(); ++e) {
        const int64_t at = r.starts[e], tokens = r.starts[e + 1] - at;
        if (tokens == 0) continue;
        uint8_t* inner = r.inner + at * moe.inner * size;
        const tenon_linear_call first = {nullptr, r.x + at * moe.hidden * size, inner, tokens, moe.hidden, moe.inner, type, type};
        const tenon_linear_call second = {nullptr, inner, r.outputs + at * moe.hidden, tokens, moe.inner, moe.hidden, type, TENON_F32};
        jobs.emplace_back(moe.experts[e], first, second, threads);
    }
}

// Threads have memory of their own for one call at a time; what a call's threads share lies behind it.
bool give_memory(std::deque<Job>& jobs, int threads) {
    int64_t own = 0, shared = 0;
    for (const Job& job : jobs) {
        own = std::max({own, job.first.own_bytes(), job.second.own_bytes()});
        shared += job.first.shared_bytes() + job.second.shared_bytes();
    }
    uint8_t* memory = scratch.get(threads * own + shared);
    if (memory == nullptr) return false;
    uint8_t* at = memory + threads * own;
    for (Job& job : jobs)
        for (Call* call : {&job.first, &job.second}) {
            call->lay(at, memory, own);
            at += call->shared_bytes();
        }
    return true;
}

void multiply(std::deque<Job>& jobs, int threads) {
    parallel(threads, [&](int thread, int) {
        for (Job& job : jobs) job.first.work(thread, job.firsts);
        for (Job& job : jobs) {
            job.firsts.units.wait();
            job.second.work(thread, job.seconds);
        }
    });
}

int run_moe(const tenon_moe_call& call) {
    const auto* moe = static_cast<const MoE*>(call.moe);
    if (moe == nullptr || call.tokens < 0 || call.tokens > (int64_t{1} << 24)) return TENON_BAD_ARGUMENT;
    if (call.type != TENON_F32 && call.type != TENON_BF16 && call.type != TENON_F16) return TENON_NO_SUCH_TYPE;
    if (call.tokens == 0) return TENON_OK;
    if (call.x == nullptr || call.y == nullptr) return TENON_BAD_ARGUMENT;
    if (call.tokens > 1 && (call.x_stride < moe->hidden || call.y_stride < moe->hidden)) return TENON_BAD_ARGUMENT;
    std::lock_guard<std::mutex> lock(call_mutex);
    const int threads = num_threads();
    const int64_t size = elements_size(call.type), experts = static_cast<int64_t>(moe->experts.size());
    Arena sizes(nullptr);
    lay(sizes, *moe, call.tokens, size);
    uint8_t* memory = moe_scratch.get(sizes.used());
    if (memory == nullptr) return TENON_NO_MEMORY;
    Arena arena(memory);
    const Routed r = lay(arena, *moe, call.tokens, size);
    const tenon_linear_call scores = {nullptr, call.x, r.scores, call.tokens, call.x_stride, experts, call.type, TENON_F32};
    if (const int status = Call(*moe->router, scores, threads).run()) return status;
    route(r, *moe, call.tokens, threads);
    const int64_t slots = call.tokens * moe->top_k, line = moe->hidden * size;
    sort(r, *moe, slots);
    parallel_for(slots, threads, [&](int64_t begin, int64_t end, int) {
        for (int64_t place = begin; place < end; ++place)
            std::memcpy(r.x + place * line, static_cast<const uint8_t*>(call.x) + r.slots[place] / moe->top_k * call.x_stride * size, static_cast<size_t>(line));
    });
    try {
        std::deque<Job> jobs;
        plan(jobs, r, *moe, call.type, threads);
        if (!give_memory(jobs, threads)) return TENON_NO_MEMORY;
        multiply(jobs, threads);
    } catch (const std::bad_alloc&) {
        return TENON_NO_MEMORY;
    }
    const LinearKernels& kernels = linear_kernels();
    parallel_for(call.tokens, threads, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t)
            kernels.add_rows(r.outputs, r.places + t * moe->top_k, r.weights + t * moe->top_k, moe->top_k, moe->hidden,
                             static_cast<uint8_t*>(call.y) + t * call.y_stride * size, call.type);
    });
    return TENON_OK;
}

bool fits(const Expert& expert, int64_t hidden, int64_t inner) {
    return expert.first != nullptr && expert.second != nullptr && expert.first->columns == hidden && expert.first->rows == inner &&
           expert.second->columns == inner && expert.second->rows == hidden;
}

}  // namespace

TENON_KERNEL(tenon_cpu_moe, run_moe, tenon_moe_call)

}  // namespace tenon

extern "C" int tenon_cpu_moe_new(const void* router, const void* const* linears, int32_t count, int32_t top_k, int32_t renormalizes, void** moe) {
    if (router == nullptr || linears == nullptr || moe == nullptr || count < 1 || count > 65536 || top_k < 1 || top_k > count) return TENON_BAD_ARGUMENT;
    const auto* scores = static_cast<const tenon::Linear*>(router);
    if (linears[0] == nullptr || scores->rows != count) return TENON_BAD_ARGUMENT;
    auto* made = new (std::nothrow) tenon::MoE{scores, {}, scores->columns, static_cast<const tenon::Linear*>(linears[0])->rows, top_k, renormalizes != 0};
    if (made == nullptr) return TENON_NO_MEMORY;
    try {
        for (int32_t e = 0; e < count; ++e)
            made->experts.push_back({static_cast<const tenon::Linear*>(linears[2 * e]), static_cast<const tenon::Linear*>(linears[2 * e + 1])});
    } catch (const std::bad_alloc&) {
        delete made;
        return TENON_NO_MEMORY;
    }
    for (const tenon::Expert& expert : made->experts)
        if (!tenon::fits(expert, made->hidden, made->inner)) {
            delete made;
            return TENON_BAD_ARGUMENT;
        }
    *moe = made;
    return TENON_OK;
}

extern "C" void tenon_cpu_moe_free(void* moe) {
    delete static_cast<tenon::MoE*>(moe);
}
