// Instruction sets: which this build has, which this machine may run, which is in use; and dispatch between them.
//
// A family of kernels (attention/, elementwise/, linear/) is compiled once a level, each time in a namespace of the
// level's name. It declares a struct of function pointers and, with TENON_FAMILY, one constant of it per level:
//
//     struct NormKernels { void (*rms_norm)(...); };
//     TENON_FAMILY(NormKernels, norm)                 // in the family's header
//     const NormKernels TENON_LEVEL::norm = {...};    // in its .cpp, which is compiled for every level
//     norm().rms_norm(...)                            // anywhere: the level in use
//
// An inline function or a template shared between levels may be linked from the widest of them and then fault on a
// small CPU. So whatever a family's .cpp calls lives in namespace TENON_LEVEL (level.h), and std:: containers stay out.
#pragma once

namespace tenon {

enum class Isa { portable = 0, avx2 = 1, avx512 = 2, avx512_vnni = 3, amx = 4 };

Isa best_isa();
Isa current_isa();
bool set_isa(Isa isa);  // false where it may not be run

}  // namespace tenon

#if defined(TENON_X86)
#define TENON_FAMILY(Type, name)                          \
    namespace portable { extern const Type name; }        \
    namespace avx2 { extern const Type name; }            \
    namespace avx512 { extern const Type name; }          \
    namespace avx512_vnni { extern const Type name; }     \
    namespace amx { extern const Type name; }             \
    static inline const Type& name() {                    \
        switch (current_isa()) {                          \
            case Isa::amx: return amx::name;              \
            case Isa::avx512_vnni: return avx512_vnni::name; \
            case Isa::avx512: return avx512::name;        \
            case Isa::avx2: return avx2::name;            \
            default: return portable::name;               \
        }                                                 \
    }
#else
#define TENON_FAMILY(Type, name)                   \
    namespace portable { extern const Type name; } \
    static inline const Type& name() { return portable::name; }
#endif
