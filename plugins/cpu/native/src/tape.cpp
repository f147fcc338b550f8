// See tape.h. A tape is a list of calls over one block of parameter bytes; replay is a loop.
#include "tape.h"

#include <chrono>
#include <cstring>
#include <vector>

namespace tenon {
namespace {

struct Call {
    TapeFunction function;
    size_t offset;  // of the parameters, in 16-byte units
    const char* name;
};

struct alignas(16) Unit {
    unsigned char bytes[16];
};

struct Tape {
    std::vector<Call> calls;
    std::vector<Unit> params;
};

thread_local Tape* recording = nullptr;

}  // namespace

void tape_append(TapeFunction function, const void* params, int64_t size, const char* name) {
    if (recording == nullptr) return;
    const size_t offset = recording->params.size();
    recording->params.resize(offset + (static_cast<size_t>(size) + sizeof(Unit) - 1) / sizeof(Unit));
    std::memcpy(recording->params.data() + offset, params, static_cast<size_t>(size));
    recording->calls.push_back({function, offset, name});
}

}  // namespace tenon

// Start a tape on the calling thread; null where it already records.
extern "C" TENON_API void* tenon_tape_begin() {
    using namespace tenon;
    if (recording != nullptr) return nullptr;
    recording = new Tape();
    return recording;
}

// Stop recording on the calling thread; the number of calls on the tape.
extern "C" TENON_API int64_t tenon_tape_end() {
    using namespace tenon;
    if (recording == nullptr) return -1;
    const auto count = static_cast<int64_t>(recording->calls.size());
    recording->calls.shrink_to_fit();
    recording->params.shrink_to_fit();
    recording = nullptr;
    return count;
}

// Run every call in order; stops at the first that fails and returns its error number.
extern "C" TENON_API int tenon_tape_replay(const void* handle) {
    const auto* tape = static_cast<const tenon::Tape*>(handle);
    for (const tenon::Call& call : tape->calls) {
        if (const int error = call.function(tape->params.data() + call.offset)) return error;
    }
    return 0;
}

// As tenon_tape_replay; nanoseconds [calls]: what each call took. For who asks where a step's time goes.
extern "C" TENON_API int tenon_tape_replay_timed(const void* handle, int64_t* nanoseconds) {
    using Clock = std::chrono::steady_clock;
    const auto* tape = static_cast<const tenon::Tape*>(handle);
    auto before = Clock::now();
    for (const tenon::Call& call : tape->calls) {
        if (const int error = call.function(tape->params.data() + call.offset)) return error;
        const auto after = Clock::now();
        *nanoseconds++ = std::chrono::duration_cast<std::chrono::nanoseconds>(after - before).count();
        before = after;
    }
    return 0;
}

// The name of call `index`, and where its parameters lie; null beyond the last. Valid as long as the tape is.
extern "C" TENON_API const char* tenon_tape_call(const void* handle, int64_t index, const void** params) {
    const auto* tape = static_cast<const tenon::Tape*>(handle);
    if (index < 0 || index >= static_cast<int64_t>(tape->calls.size())) return nullptr;
    const tenon::Call& call = tape->calls[static_cast<size_t>(index)];
    *params = tape->params.data() + call.offset;
    return call.name;
}

extern "C" TENON_API void tenon_tape_free(void* handle) { delete static_cast<tenon::Tape*>(handle); }
