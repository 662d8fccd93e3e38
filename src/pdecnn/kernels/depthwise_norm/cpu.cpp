// M depth-wise stencils of one state, each with batch norm over the batch and an activation; forward and backward.
//
// Memory is what such maps cost, not arithmetic: nothing but the results is ever written. The statistics need all samples,
// so the stencils are applied twice, once to count and once to write; backward applies them twice again.
#if defined(__GNUC__)
#include "passes.h"

namespace PDECNN_NS {
namespace depthwise_norm {

template <class L, int K, int M>
Status forward(const ForwardCall& call) {
  const Problem& p = call.problem;
  const Tasks tasks(p);
  const double n = double(p.N * p.H * p.W);
  Arena sums(size_t(tasks.count() * tasks.channels * M * 2) * sizeof(double)), centres(size_t(p.C * M) * sizeof(float));
  if (!sums.ok() || !centres.ok()) return kOutOfMemory;
  double* partial = reinterpret_cast<double*>(sums.data());
  float* centre = reinterpret_cast<float*>(centres.data());
  auto add_up = [&](const Task& t, const Memory& memory) {
    double* to = partial + t.index * tasks.channels * M * 2;
    for (int64_t i = 0; i < tasks.channels * M * 2; ++i) to[i] = 0;
    count<L, K, M>(p, t, memory, centre, to);
  };
  // Squares are taken about the mean of the first sample, lest the variance be the small difference of large numbers.
  Status status = run(p, tasks, 1, 1, [&](const Task& t, const Memory& memory) {
    if (t.n_begin == 0) add_up({t.index, 0, 1, t.c, t.channels}, memory);
  });
  if (status != kOk) return status;
  for (int64_t c = 0; c < p.C; ++c)
    for (int m = 0; m < M; ++m) centre[c * M + m] = float(tasks.total(partial, c, M * 2, m * 2) / double(p.plane()));
  status = run(p, tasks, 1, 1, add_up);
  if (status != kOk) return status;
  for (int64_t c = 0; c < p.C; ++c)
    for (int m = 0; m < M; ++m) {
      const double mean = tasks.total(partial, c, M * 2, m * 2) / n, square = tasks.total(partial, c, M * 2, m * 2 + 1) / n;
      call.mean[m * p.C + c] = float(mean + double(centre[c * M + m]) + p.bias_at(m, c));
      call.var[m * p.C + c] = float(max(0.0, square - mean * mean));
    }
  return run(p, tasks, 1, 1 + M, [&](const Task& t, const Memory& memory) { write<L, K, M>(call, t, memory); });
}

template <class L, int K, int M>
Status backward(const BackwardCall& call) {
  const Problem& p = call.problem;
  const Tasks tasks(p);
  constexpr int kTaps = K * K;
  Arena sums(size_t(tasks.count() * tasks.channels * M * max(2, kTaps)) * sizeof(double));
  if (!sums.ok()) return kOutOfMemory;
  double* partial = reinterpret_cast<double*>(sums.data());
  Status status = run(p, tasks, 1, 1 + M, [&](const Task& t, const Memory& memory) {
    correlate_with_gradient<L, K, M>(call, t, memory, partial + t.index * tasks.channels * M * 2);
  });
  if (status != kOk) return status;
  for (int64_t c = 0; c < p.C; ++c)
    for (int m = 0; m < M; ++m) {
      call.grad_beta[m * p.C + c] = float(tasks.total(partial, c, M * 2, m * 2));
      call.grad_gamma[m * p.C + c] = float(tasks.total(partial, c, M * 2, m * 2 + 1));
    }
  status = run(p, tasks, 1 + M, 2 + M, [&](const Task& t, const Memory& memory) {
    propagate<L, K, M>(call, t, memory, partial + t.index * tasks.channels * M * kTaps);
  });
  if (status != kOk || call.grad_weight == nullptr) return status;
  for (int64_t c = 0; c < p.C; ++c)
    for (int m = 0; m < M; ++m)
      for (int i = 0; i < kTaps; ++i)
        call.grad_weight[(m * p.C + c) * kTaps + i] = float(tasks.total(partial, c, M * kTaps, m * kTaps + i));
  return kOk;
}

// Calls f with the widest vector that a row fills, the side of the stencils and their number.
template <int Value>
struct Constant {
  static constexpr int value = Value;
};
template <class F>
Status by_shape(const Problem& p, const F& f) {
  constexpr int narrow_bytes = kVectorBytes > 32 ? 32 : kVectorBytes;
  auto by_width = [&](auto side, auto maps) {
    if (p.W * int64_t(sizeof(float)) <= narrow_bytes) return f(Lanes<float, narrow_bytes>{}, side, maps);
    return f(Lanes<float, kVectorBytes>{}, side, maps);
  };
  if (p.side == 1 && p.maps == 1 && p.H == 1) return by_width(Constant<1>{}, Constant<1>{});
  if (p.side == 3 && p.maps == 2) return by_width(Constant<3>{}, Constant<2>{});
  if (p.side == 3 && p.maps == 4) return by_width(Constant<3>{}, Constant<4>{});
  if (p.side == 5 && p.maps == 2) return by_width(Constant<5>{}, Constant<2>{});
  if (p.side == 5 && p.maps == 4) return by_width(Constant<5>{}, Constant<4>{});
  return kBadArgument;
}

}  // namespace depthwise_norm
}  // namespace PDECNN_NS

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_depthwise_norm_forward)(const void* call) {
  using namespace PDECNN_NS::depthwise_norm;
  const auto& c = *static_cast<const ForwardCall*>(call);
  return by_shape(c.problem, [&](auto lanes, auto side, auto maps) {
    return forward<decltype(lanes), decltype(side)::value, decltype(maps)::value>(c);
  });
}

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_depthwise_norm_backward)(const void* call) {
  using namespace PDECNN_NS::depthwise_norm;
  const auto& c = *static_cast<const BackwardCall*>(call);
  return by_shape(c.problem, [&](auto lanes, auto side, auto maps) {
    return backward<decltype(lanes), decltype(side)::value, decltype(maps)::value>(c);
  });
}
#endif
