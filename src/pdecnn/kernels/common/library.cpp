// The parts of the library that belong to no kernel.
#define PDECNN_ISA baseline
#include "abi.h"

ParallelFor pdecnn_parallel_for = nullptr;

// Bumped whenever the call of an exported function changes; Python refuses a library of another number.
PDECNN_EXPORT int32_t pdecnn_abi_version() { return 2; }

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
#define PDECNN_IS(text, Struct) \
  if (std::strcmp(name, text) == 0) return *size = int64_t(sizeof(Struct)), Struct::kFields;
#define PDECNN_PART(Struct) PDECNN_IS(#Struct, Struct)
  PDECNN_PART(Map)
  PDECNN_PART(Problem)
  PDECNN_PART(Gradient)
  PDECNN_PART(depthwise_norm::Problem)
  PDECNN_PART(global_training::Layer)
  PDECNN_PART(depthwise::Problem)
  PDECNN_PART(spectral_filter::Problem)
  PDECNN_IS("pdecnn_advection_diffusion_forward", ForwardCall)
  PDECNN_IS("pdecnn_advection_diffusion_backward", BackwardCall)
  PDECNN_IS("pdecnn_global_layer", LayerCall)
  PDECNN_IS("pdecnn_depthwise_norm_forward", depthwise_norm::ForwardCall)
  PDECNN_IS("pdecnn_depthwise_norm_backward", depthwise_norm::BackwardCall)
  PDECNN_IS("pdecnn_global_training_forward", global_training::ForwardCall)
  PDECNN_IS("pdecnn_global_training_backward", global_training::BackwardCall)
  PDECNN_IS("pdecnn_depthwise_forward", depthwise::ForwardCall)
  PDECNN_IS("pdecnn_depthwise_stencil_gradient", depthwise::StencilGradientCall)
  PDECNN_IS("pdecnn_shared_expand_forward", shared_expand::Call)
  PDECNN_IS("pdecnn_shared_expand_backward", shared_expand::Call)
  PDECNN_IS("pdecnn_spectral_filter_forward", spectral_filter::ForwardCall)
  PDECNN_IS("pdecnn_spectral_filter_backward", spectral_filter::BackwardCall)
#undef PDECNN_PART
#undef PDECNN_IS
  return nullptr;
}
