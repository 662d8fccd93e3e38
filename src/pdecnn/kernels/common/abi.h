// The arguments of every exported function, and the codes in them: what Python, ONNX Runtime and the kernels agree on.
//
// A call is one struct of 8-byte fields: integers, doubles and addresses, or such structs. Their declarations are also
// kept as text, which `pdecnn_layout` hands out: Python packs by what the library says, not by a copy of this file. Names of
// structs in them are written in full.
#pragma once

#include "parallel.h"

#define PDECNN_FIELDS(...) \
  __VA_ARGS__              \
  static constexpr const char* kFields = #__VA_ARGS__;

// clang-format off
namespace PDECNN_NS {

enum DType : int64_t { kFloat32 = 0, kFloat64 = 1, kBFloat16 = 2 };
enum Boundary : int64_t { kPeriodic = 0, kNeumann = 1, kDirichlet = 2 };
enum Activation : int64_t { kIdentity = 0, kReLU = 1, kReLU6 = 2, kTanh = 3, kHardtanh = 4 };  // hardtanh: to [-1, 1]
constexpr int64_t kMostSteps = 10000;  // K is at most this

// A tensor (N, C, H, W) in memory: strides in elements, 0 where it is broadcast. No data: the tensor is absent.
struct Map { PDECNN_FIELDS(
  void* data;
  int64_t sn, sc, sy, sx;
)};

// advection_diffusion

// A volume is D planes of H rows each, one after another: row z * H + y of its maps. Planes alone have D = 1, no w and no D_z.
struct Problem { PDECNN_FIELDS(
  int64_t dtype, N, C, D, H, W, K, boundary, interleaved;
  double dt, dx, dy, dz;
  Map h, h_prev, u, v, w, D_x, D_y, D_z, f;
)};

struct ForwardCall { PDECNN_FIELDS(
  Problem problem;
  Map out;
)};

// A gradient is a map, or one number for each plane (then `sums` is the address of N*C doubles), or not wanted.
struct Gradient { PDECNN_FIELDS(
  Map map;
  void* sums;
)};

struct BackwardCall { PDECNN_FIELDS(
  Problem problem;
  Map grad_out;
  Gradient h, h_prev, u, v, w, D_x, D_y, D_z, f;
)};

// global_layer

namespace depthwise_norm {

// Maps are (N, C, H, W), all in one order of memory: planes one after another or, interleaved, channels side by side.
// weight is (maps, C, side, side), bias, gamma and beta are (maps, C).
struct Problem {
  PDECNN_FIELDS(
  int64_t N, C, H, W, maps, side, interleaved, act;
  double eps[4];
  const float *h, *weight, *bias, *gamma, *beta;  // no weight: the map is h itself; no bias: zero
  )

  int64_t plane() const { return H * W; }
  float tap(int64_t m, int64_t c, int64_t i) const { return weight ? weight[(m * C + c) * side * side + i] : 1.0f; }
  double bias_at(int64_t m, int64_t c) const { return bias ? double(bias[m * C + c]) : 0.0; }
  // (x - mean) / sqrt(var + eps) = scale * x + shift for the stencil's value x before the bias
  double scale(int64_t m, int64_t c, const float* var) const { return 1.0 / __builtin_sqrt(double(var[m * C + c]) + eps[m]); }
};

struct ForwardCall { PDECNN_FIELDS(
  depthwise_norm::Problem problem;
  float* out[4];
  float *mean, *var;  // (maps, C): of the values that the norm gets
)};

struct BackwardCall { PDECNN_FIELDS(
  depthwise_norm::Problem problem;
  const float* grad[4];
  const float *mean, *var;
  float *grad_h, *grad_weight, *grad_gamma, *grad_beta;
)};

}  // namespace depthwise_norm

namespace global_training {

// The maps of the problem are u, v, D_x, D_y, or u and v alone. x and all else of its size are in the order of h.
struct Layer { PDECNN_FIELDS(
  depthwise_norm::Problem problem;
  int64_t K;
  double dt, dx, dy;                      // dx and dy are negative where u and v are to be negated
  double D_x, D_y;                        // count where there are two maps
  const float* x;                         // the layer's input; none: it is h
  int64_t has_source, previous_is_input;  // the source is x; the state before the first is x
)};

// In inference: the norms of the layer are folded into weight and bias, and gamma and beta are not read.
struct InferenceCall { PDECNN_FIELDS(
  global_training::Layer layer;
  int64_t boundary, residual, output_act;
  const float *scale, *shift;  // (C): the output norm
  float* out;
)};

struct ForwardCall { PDECNN_FIELDS(
  global_training::Layer layer;
  float *out, *mean, *var;
)};

struct BackwardCall { PDECNN_FIELDS(
  global_training::Layer layer;
  const float *grad, *mean, *var;
  float *grad_h, *grad_x, *grad_weight, *grad_gamma, *grad_beta;
)};

}  // namespace global_training

namespace depthwise {

// Arrays are contiguous: y, out, grad (N, C, H, W), k (C, rows, columns).
struct Problem { PDECNN_FIELDS(
  int64_t dtype, N, C, H, W, rows, columns, boundary;
)};

struct ForwardCall { PDECNN_FIELDS(
  depthwise::Problem problem;
  const void *y, *k;
  void* out;
)};

struct StencilGradientCall { PDECNN_FIELDS(
  depthwise::Problem problem;
  const void *grad, *y;
  void* grad_k;
)};

}  // namespace depthwise

namespace shared_expand {

struct Call { PDECNN_FIELDS(
  int64_t dtype, N, C, H, W, f, stride, mode;
  const void *u, *stencils, *scale, *shift, *c, *grad;
  void *out, *grad_u, *grad_c;
  double* grad_stencils;  // (N C, f, 9)
  double *sum0, *sum1;    // (N C, f): mean and sum of squares about it; or gradients of shift and scale
)};

}  // namespace shared_expand

namespace spectral_filter {

// Arrays are contiguous.
struct Problem { PDECNN_FIELDS(
  int64_t dtype, N, C, H, W, stride, mirrored;
  const void *rows, *columns;                  // plane -> coefficients: rows (H, H), columns (W, stride)
  const void *rows_inverse, *columns_inverse;  // coefficients -> plane
  const void* g;                               // (C, H, W)
)};

struct ForwardCall { PDECNN_FIELDS(
  spectral_filter::Problem problem;
  const void* v;
  void* out;
)};

struct BackwardCall { PDECNN_FIELDS(
  spectral_filter::Problem problem;
  const void *grad, *v;
  void *grad_v, *grad_g;
)};

}  // namespace spectral_filter

// Every struct that Python may ask for, by its own name or by that of the function that takes it: its number of 8-byte fields
// and the last one. A changed size or order is a changed interface: bump the version in library.cpp with these.
#define PDECNN_STRUCTS(X)                                                                  \
  X("Map", Map, 5, sx)                                                                     \
  X("Problem", Problem, 58, f)                                                             \
  X("Gradient", Gradient, 6, sums)                                                         \
  X("depthwise_norm::Problem", depthwise_norm::Problem, 17, beta)                          \
  X("global_training::Layer", global_training::Layer, 26, previous_is_input)               \
  X("depthwise::Problem", depthwise::Problem, 8, boundary)                                 \
  X("spectral_filter::Problem", spectral_filter::Problem, 12, g)                           \
  X("pdecnn_advection_diffusion_forward", ForwardCall, 63, out)                            \
  X("pdecnn_advection_diffusion_backward", BackwardCall, 117, f)                            \
  X("pdecnn_global_layer", global_training::InferenceCall, 32, out)                        \
  X("pdecnn_depthwise_norm_forward", depthwise_norm::ForwardCall, 23, var)                 \
  X("pdecnn_depthwise_norm_backward", depthwise_norm::BackwardCall, 27, grad_beta)         \
  X("pdecnn_global_training_forward", global_training::ForwardCall, 29, var)               \
  X("pdecnn_global_training_backward", global_training::BackwardCall, 34, grad_beta)       \
  X("pdecnn_depthwise_forward", depthwise::ForwardCall, 11, out)                           \
  X("pdecnn_depthwise_stencil_gradient", depthwise::StencilGradientCall, 11, grad_k)       \
  X("pdecnn_shared_expand_forward", shared_expand::Call, 20, sum1)                         \
  X("pdecnn_shared_expand_backward", shared_expand::Call, 20, sum1)                        \
  X("pdecnn_spectral_filter_forward", spectral_filter::ForwardCall, 14, out)               \
  X("pdecnn_spectral_filter_backward", spectral_filter::BackwardCall, 16, grad_g)

static_assert(sizeof(void*) == 8, "addresses are passed as 8-byte fields");
#define PDECNN_CHECK(name, Struct, fields, last)                                                 \
  static_assert(sizeof(Struct) == 8 * (fields), #Struct " has another number of 8-byte fields"); \
  static_assert(offsetof(Struct, last) + sizeof(Struct::last) == sizeof(Struct), #Struct " ends with another field");
PDECNN_STRUCTS(PDECNN_CHECK)
#undef PDECNN_CHECK

}  // namespace PDECNN_NS
// clang-format on
