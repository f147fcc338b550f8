/* The C ABI of tenon-cpu's native library: plain pointers and sizes, no torch. Loaded with ctypes (tenon_cpu/native.py).
 *
 * Every function returns TENON_OK or an error below and writes nothing on an error. Sizes are checked here, where the
 * data comes in; kernels trust them. Matrices are row-major; a stride counts elements. One step runs at a time: calls
 * that compute use the library's pool of threads and must not overlap.
 */
#ifndef TENON_CPU_H
#define TENON_CPU_H

#include <stdint.h>

#define TENON_CPU_ABI 1 /* raised when a signature or a packed layout changes; checked when the library is loaded */

#if defined(__GNUC__)
#define TENON_API __attribute__((visibility("default")))
#else
#define TENON_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum tenon_status {
    TENON_OK = 0,
    TENON_BAD_ARGUMENT = 1, /* a null pointer, a negative or inconsistent size */
    TENON_BAD_SIZE = 2,     /* a buffer is shorter than its shape needs */
    TENON_NO_SUCH_TYPE = 3, /* a weight or data type that no kernel computes */
    TENON_NO_SUCH_ISA = 4,  /* this CPU, system or build has not that instruction set */
    TENON_NO_MEMORY = 5,
    TENON_NO_THREADS = 6 /* the system refused to start threads */
};

enum tenon_isa { TENON_PORTABLE = 0, TENON_AVX2 = 1, TENON_AVX512 = 2, TENON_AVX512_VNNI = 3, TENON_AMX = 4 };

enum tenon_dtype { TENON_F32 = 0, TENON_BF16 = 1, TENON_F16 = 2 };

TENON_API int tenon_cpu_abi(void);
/* The sentence of a status; never null. */
TENON_API const char* tenon_cpu_status_text(int status);

/* The best instruction set that this CPU, system and build have, the one in use, and a choice (-1: the best). */
TENON_API int tenon_cpu_isa_best(void);
TENON_API int tenon_cpu_isa(void);
TENON_API int tenon_cpu_isa_set(int isa);

/* Start the pool anew: `threads` >= 1 counts the caller, who works too. cores: [threads] core numbers that workers
 * 1.. are bound to, or null (the caller is never bound). spin_us: how long an idle worker spins before it sleeps. */
TENON_API int tenon_cpu_threads_set(int threads, const int32_t* cores, int spin_us);
TENON_API int tenon_cpu_threads(void);

#ifdef __cplusplus
}
#endif
#endif
