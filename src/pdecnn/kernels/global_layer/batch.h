// Sums over the whole batch: every task keeps its own, and they are added up in one order.
#pragma once

#include "passes.h"

namespace PDECNN_NS {
namespace depthwise_norm {

// What each task has summed: for each of its channels up to `many` numbers.
class Partial {
 public:
  Partial(const Tasks& tasks, int64_t many)
      : tasks_(tasks), arena_(size_t(tasks.count() * tasks.channels * many) * sizeof(double)) {}
  bool ok() const { return arena_.ok(); }
  // The task's own, if all tasks keep `many` for each channel.
  double* of(const Task& t, int64_t many) const { return all() + t.index * tasks_.channels * many; }
  double total(int64_t c, int64_t many, int64_t which) const { return tasks_.total(all(), c, many, which); }

  template <int M>
  void norm_gradient(const Problem& p, float* gamma, float* beta) const {
    for (int64_t c = 0; c < p.C; ++c)
      for (int m = 0; m < M; ++m) {
        beta[m * p.C + c] = float(total(c, M * 2, m * 2));
        gamma[m * p.C + c] = float(total(c, M * 2, m * 2 + 1));
      }
  }
  template <int K, int M>
  void tap_gradient(const Problem& p, float* weight) const {
    for (int64_t c = 0; c < p.C; ++c)
      for (int m = 0; m < M; ++m)
        for (int i = 0; i < K * K; ++i) weight[(m * p.C + c) * K * K + i] = float(total(c, M * K * K, m * K * K + i));
  }

 private:
  double* all() const { return reinterpret_cast<double*>(arena_.data()); }
  const Tasks& tasks_;
  Arena arena_;
};

// Mean and variance, (M, C), of what the norms get.
template <class L, int K, int M>
Status statistics(const Problem& p, const Tasks& tasks, float* means, float* variances) {
  const double n = double(p.N * p.H * p.W);
  const Partial partial(tasks, M * 2);
  Arena centres(size_t(p.C * M) * sizeof(float));
  if (!partial.ok() || !centres.ok()) return kOutOfMemory;
  float* centre = reinterpret_cast<float*>(centres.data());
  auto add_up = [&](const Task& t, const Memory& memory) {
    double* to = partial.of(t, M * 2);
    for (int64_t i = 0; i < tasks.channels * M * 2; ++i) to[i] = 0;
    count<L, K, M>(p, t, memory, centre, to);
  };
  // Squares are taken about the mean of the first sample, lest the variance be the small difference of large numbers.
  Status status = run(p, tasks, {1, 1}, [&](const Task& t, const Memory& memory) {
    if (t.n_begin == 0) add_up({t.index, 0, 1, t.c, t.channels}, memory);
  });
  if (status != kOk) return status;
  for (int64_t c = 0; c < p.C; ++c)
    for (int m = 0; m < M; ++m) centre[c * M + m] = float(partial.total(c, M * 2, m * 2) / double(p.plane()));
  status = run(p, tasks, {1, 1}, add_up);
  if (status != kOk) return status;
  for (int64_t c = 0; c < p.C; ++c)
    for (int m = 0; m < M; ++m) {
      const double mean = partial.total(c, M * 2, m * 2) / n, square = partial.total(c, M * 2, m * 2 + 1) / n;
      means[m * p.C + c] = float(mean + double(centre[c * M + m]) + p.bias_at(m, c));
      variances[m * p.C + c] = float(max(0.0, square - mean * mean));
    }
  return kOk;
}

}  // namespace depthwise_norm
}  // namespace PDECNN_NS
