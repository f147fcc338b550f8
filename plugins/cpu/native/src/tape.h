// The tape: kernel calls recorded once, then replayed by one call.
//
// Every kernel that this library exports is a function of one plain struct of pointers and numbers. To register one:
//
//     struct GemvParams { const float* x; ...; int64_t rows; };              // trivially copyable, owns nothing
//     static int run_gemv(const GemvParams& params) { ...; return 0; }       // 0, or an error number
//     TENON_KERNEL(tenon_gemv, run_gemv, GemvParams)
//
// The macro defines `extern "C" int tenon_gemv(const GemvParams*)`: it runs the function and, while the calling thread
// records, appends (function, copy of the struct) to its tape. Nothing else is needed, in C++ or in Python: outputs made
// with torch.empty during a recording come from the tape's arena. What a step changes (lengths, tables, token ids) must
// be read through pointers; a number in the struct is the same at every replay.
#pragma once

#include <cstdint>

#include "tenon_cpu.h"

namespace tenon {

using TapeFunction = int (*)(const void*);

// Append a call to the calling thread's tape, if it records; the struct is copied. name: the export's, kept as it is.
void tape_append(TapeFunction function, const void* params, int64_t size, const char* name);

}  // namespace tenon

#define TENON_KERNEL(NAME, FUNCTION, PARAMS)                                                       \
    static int NAME##_of_any(const void* params) { return FUNCTION(*static_cast<const PARAMS*>(params)); } \
    extern "C" TENON_API int NAME(const PARAMS* params) {                                         \
        ::tenon::tape_append(&NAME##_of_any, params, sizeof(PARAMS), #NAME);                       \
        return FUNCTION(*params);                                                                  \
    }
