// Activations: all but tanh are a clamp; tanh is a pass of its own over values in cache.
#pragma once

#include "abi.h"

namespace PDECNN_NS {

struct Limits {
  float low, high;
  explicit Limits(int64_t act) : low(-__builtin_inff()), high(__builtin_inff()) {
    if (act == kReLU || act == kReLU6) low = 0;
    if (act == kReLU6) high = 6;
    if (act == kHardtanh) low = -1, high = 1;
  }
};

// x p(x^2) / q(x^2), within a few units in the last place of the hyperbolic tangent; it is 1 in float32 beyond the clamp.
PDECNN_INLINE float tanh_of(float x) {
  constexpr float kEnd = 7.90531110763549805f;
  x = x > kEnd ? kEnd : x;
  x = x < -kEnd ? -kEnd : x;
  const float s = x * x;
  float p = -2.76076847742355e-16f, q = 1.19825839466702e-06f;
  p = p * s + 2.00018790482477e-13f;
  p = p * s - 8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return x * p / q;
}
inline void apply_tanh(float* PDECNN_RESTRICT values, int64_t n) {
  PDECNN_VECTORIZE
  for (int64_t i = 0; i < n; ++i) values[i] = tanh_of(values[i]);
}
// From the gradient of y = tanh(x) to that of x.
inline void undo_tanh(float* PDECNN_RESTRICT grad, const float* PDECNN_RESTRICT y, int64_t n) {
  PDECNN_VECTORIZE
  for (int64_t i = 0; i < n; ++i) grad[i] *= 1.0f - y[i] * y[i];
}

}  // namespace PDECNN_NS
