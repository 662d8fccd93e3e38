// Activations, what they let pass, and loops over the numbers of a plane in cache.
#pragma once

#include "stencils.h"

namespace PDECNN_NS {

// All but tanh are a clamp, of a number or of a vector; NaN passes, as in torch.
struct Clamp {
  float low, high;
  explicit Clamp(int64_t act) : low(-__builtin_inff()), high(__builtin_inff()) {
    if (act == kReLU || act == kReLU6) low = 0;
    if (act == kReLU6) high = 6;
    if (act == kHardtanh) low = -1, high = 1;
  }
  template <class V>
  PDECNN_INLINE V operator()(V y) const {
    y = y <= low ? low + V{} : y;
    return y >= high ? high + V{} : y;
  }
};

// Affine map and clamp of normalised values, and the gradient of what is before the clamp.
struct AffineClamp : Clamp {
  float gamma, beta;
  AffineClamp(int64_t act, float gamma, float beta) : Clamp(act), gamma(gamma), beta(beta) {}
  template <class V>
  PDECNN_INLINE V operator()(const V& v) const {
    return Clamp::operator()(gamma * v + beta);
  }
  template <class V>
  PDECNN_INLINE V gradient(const V& grad, const V& v) const {
    const V y = gamma * v + beta;
    return ((y <= low) | (y >= high)) ? V{} : grad;
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
inline void add(float* PDECNN_RESTRICT to, const float* PDECNN_RESTRICT more, int64_t n) {
  PDECNN_VECTORIZE
  for (int64_t i = 0; i < n; ++i) to[i] += more[i];
}

// Calls f(lanes, i) for all of n numbers, by vectors and then one by one.
using AllLanes = Lanes<float, kVectorBytes>;
using OneLane = Lanes<float, sizeof(float)>;
template <class F>
PDECNN_INLINE void each_vector(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + AllLanes::count <= n; i += AllLanes::count) f(AllLanes{}, i);
  for (; i < n; ++i) f(OneLane{}, i);
}
// to = f(from), which may be one.
inline void apply(const AffineClamp& f, const float* from, float* to, int64_t n) {
  each_vector(n, [&](auto lanes, int64_t i) {
    using L = decltype(lanes);
    L::store(to + i, f(L::load(from + i)));
  });
}

// Adds two sums over n numbers to sums[0] and sums[1]; terms(lanes, i, first, second) adds those of a vector. Several are
// under way at once, and for long in single precision never.
template <class F>
PDECNN_INLINE void add_two_sums(int64_t n, double* sums, const F& terms) {
  constexpr int64_t kAtOnce = 4;
  auto part = [&](auto lanes, int64_t begin, int64_t end) {
    using L = decltype(lanes);
    typename L::V first[kAtOnce] = {}, second[kAtOnce] = {};
    int64_t i = begin;
    for (; i + kAtOnce * L::count <= end; i += kAtOnce * L::count)
      for (int64_t j = 0; j < kAtOnce; ++j) terms(lanes, i + j * L::count, first[j], second[j]);
    for (; i < end; i += L::count) terms(lanes, i, first[0], second[0]);
    sums[0] += double(L::sum((first[0] + first[1]) + (first[2] + first[3])));
    sums[1] += double(L::sum((second[0] + second[1]) + (second[2] + second[3])));
  };
  const int64_t whole = n / AllLanes::count * AllLanes::count, strip = kVectorsOfSum * AllLanes::count;
  for (int64_t i = 0; i < whole; i += strip) part(AllLanes{}, i, min(whole, i + strip));
  if (whole < n) part(OneLane{}, whole, n);
}

}  // namespace PDECNN_NS
