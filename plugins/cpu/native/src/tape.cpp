// See tape.h. A tape is a list of calls over one block of parameter bytes; replay is a loop.
#include "tape.h"

#include <cstring>
#include <vector>

namespace tenon {
namespace {

struct Call {
    TapeFunction function;
    size_t offset;  // of the parameters, in 16-byte units
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

void tape_append(TapeFunction function, const void* params, int64_t size) {
    if (recording == nullptr) return;
    const size_t offset = recording->params.size();
    recording->params.resize(offset + (static_cast<size_t>(size) + sizeof(Unit) - 1) / sizeof(Unit));
    std::memcpy(recording->params.data() + offset, params, static_cast<size_t>(size));
    recording->calls.push_back({function, offset});
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

extern "C" TENON_API void tenon_tape_free(void* handle) { delete static_cast<tenon::Tape*>(handle); }
