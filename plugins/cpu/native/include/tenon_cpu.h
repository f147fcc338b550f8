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
    TENON_NO_THREADS = 6, /* the system refused to start threads */
    TENON_RANK_LOST = 7   /* another rank did not come in time */
};

enum tenon_isa { TENON_PORTABLE = 0, TENON_AVX2 = 1, TENON_AVX512 = 2, TENON_AVX512_VNNI = 3, TENON_AMX = 4 };

enum tenon_dtype { TENON_F32 = 0, TENON_BF16 = 1, TENON_F16 = 2 };

TENON_API int tenon_cpu_abi(void);
/* What the library was built from: the SHA-256 that sources_hash.cmake takes, 64 digits; never null. */
TENON_API const char* tenon_cpu_sources(void);
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

/* Weights. type: ggml's id (F32 0, F16 1, Q4_0 2, Q4_1 3, Q5_0 6, Q5_1 7, Q8_0 8, Q4_K 12, Q5_K 13, Q6_K 14, BF16 30).
 * Packed: the same bits in another order (src/linear/packed.h), rows padded to 16. stored: [rows, columns] as in a
 * file. Returns the bytes that packing takes, or minus a status. */
TENON_API int64_t tenon_cpu_packed_bytes(int32_t type, int64_t rows, int64_t columns);
TENON_API int tenon_cpu_pack(int32_t type, int64_t rows, int64_t columns, const void* stored, int64_t stored_bytes,
                                void* packed, int64_t packed_bytes);
/* The inverse: byte for byte what was packed. */
TENON_API int tenon_cpu_unpack(int32_t type, int64_t rows, int64_t columns, const void* packed,
                                  int64_t packed_bytes, void* stored, int64_t stored_bytes);

struct tenon_linear_part {
    const void* packed; /* 64-aligned; must outlive the linear */
    int64_t packed_bytes, rows;
    int32_t type, unused;
};

enum tenon_epilogue { TENON_PLAIN = 0, TENON_SILU_MUL = 1 }; /* the second: two parts of equal rows, silu(first) * second */
/* Added to an epilogue, of quantized parts. FINE: activations in int16 codes, not int8. ALIKE: a token's sums are the same bits
 * beside any others; else a linear without dense parts may, with AMX and many tokens, round its weights and activations to
 * bfloat16 instead. */
enum tenon_precision { TENON_FINE = 16, TENON_ALIKE = 32 };

/* y = x W^T + b of parts side by side. bias: float [rows of all parts], copied, or null. */
TENON_API int tenon_cpu_linear_new(const struct tenon_linear_part* parts, int32_t count, int64_t columns,
                                      const float* bias, int32_t epilogue, void** linear);
TENON_API void tenon_cpu_linear_free(void* linear);

/* x [tokens, columns] and y [tokens, rows of all parts] of tenon_dtypes. y may not overlap x. */
struct tenon_linear_call {
    const void* linear;
    const void* x;
    void* y;
    int64_t tokens, x_stride, y_stride;
    int32_t x_type, y_type;
};
TENON_API int tenon_cpu_linear(const struct tenon_linear_call* call);

/* y [tokens, columns] = scale * rows `ids` of one packed weight [rows, columns]. ids: int32 or int64 (id_bytes); one
 * out of range gives not-a-number. */
struct tenon_embedding_call {
    const void* packed;
    const void* ids;
    void* y;
    int64_t packed_bytes, rows, columns, tokens, y_stride;
    int32_t type, id_bytes, y_type;
    float scale;
};
TENON_API int tenon_cpu_embedding(const struct tenon_embedding_call* call);

/* A mixture of experts: y [tokens, hidden] = the sum of each token's top_k experts, weighted by softmax(x router^T), with
 * `renormalizes` over the chosen ones alone. router: a linear [count, hidden]. linears: of each expert two, the first with
 * TENON_SILU_MUL [inner, hidden], the second [hidden, inner]. They must outlive it. */
TENON_API int tenon_cpu_moe_new(const void* router, const void* const* linears, int32_t count, int32_t top_k,
                                   int32_t renormalizes, void** moe);
TENON_API void tenon_cpu_moe_free(void* moe);

struct tenon_moe_call {
    const void* moe;
    const void* x;
    void* y; /* may not overlap x */
    int64_t tokens, x_stride, y_stride;
    int32_t type, unused; /* of x and y */
};
TENON_API int tenon_cpu_moe(const struct tenon_moe_call* call);

#ifdef __cplusplus
}
#endif
#endif
