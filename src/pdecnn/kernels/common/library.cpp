// The parts of the library that belong to no kernel.
#define PDECNN_ISA baseline
#include "abi.h"

ParallelFor pdecnn_parallel_for = nullptr;

// Bumped whenever the call of an exported function changes; Python refuses a library of another number.
PDECNN_EXPORT int32_t pdecnn_abi_version() { return 4; }

PDECNN_EXPORT void pdecnn_set_parallel_for(ParallelFor f) { pdecnn_parallel_for = f; }

// Whether this processor runs the instruction set of the given name.
PDECNN_EXPORT int32_t pdecnn_cpu_runs(const char* isa) {
  if (std::strcmp(isa, "baseline") == 0) return 1;
#if (defined(__x86_64__) || defined(_M_X64)) && defined(__GNUC__)
  __builtin_cpu_init();
  if (std::strcmp(isa, "avx2") == 0) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (std::strcmp(isa, "avx512") == 0)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq");
#endif
  return 0;
}

// The declarations of the struct that a function takes, or that is part of such a one, and its size; null: no such name.
PDECNN_EXPORT const char* pdecnn_layout(const char* name, int64_t* size) {
  using namespace PDECNN_NS;
#define PDECNN_IS(text, Struct, fields, last) \
  if (std::strcmp(name, text) == 0) return *size = int64_t(sizeof(Struct)), Struct::kFields;
  PDECNN_STRUCTS(PDECNN_IS)
#undef PDECNN_IS
  return nullptr;
}
