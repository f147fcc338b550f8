// The ABI's general part: version, errors, instruction sets, threads.
#include "tenon_cpu.h"

#include "isa.h"
#include "sources_hash.h"
#include "threads.h"

extern "C" {

int tenon_cpu_abi(void) {
    return TENON_CPU_ABI;
}

const char* tenon_cpu_sources(void) {
    return TENON_SOURCES_HASH;
}

const char* tenon_cpu_status_text(int status) {
    switch (status) {
        case TENON_OK: return "done";
        case TENON_BAD_ARGUMENT: return "a null pointer, or a negative or inconsistent size";
        case TENON_BAD_SIZE: return "a buffer is shorter than its shape needs";
        case TENON_NO_SUCH_TYPE: return "a weight or data type that no native kernel computes";
        case TENON_NO_SUCH_ISA: return "an instruction set that this CPU, system or build has not";
        case TENON_NO_MEMORY: return "out of memory";
        case TENON_NO_THREADS: return "the system refused to start threads";
        case TENON_RANK_LOST: return "another rank did not come in time";
        default: return "an unknown status";
    }
}

int tenon_cpu_isa_best(void) {
    return static_cast<int>(tenon::best_isa());
}

int tenon_cpu_isa(void) {
    return static_cast<int>(tenon::current_isa());
}

int tenon_cpu_isa_set(int isa) {
    const tenon::Isa wanted = isa < 0 ? tenon::best_isa() : static_cast<tenon::Isa>(isa);
    return tenon::set_isa(wanted) ? TENON_OK : TENON_NO_SUCH_ISA;
}

int tenon_cpu_threads_set(int threads, const int32_t* cores, int spin_us) {
    if (threads < 1 || threads > 4096 || spin_us < 0) return TENON_BAD_ARGUMENT;
    return tenon::set_threads(threads, cores, spin_us) ? TENON_OK : TENON_NO_THREADS;
}

int tenon_cpu_threads(void) {
    return tenon::num_threads();
}

}  // extern "C"
