// M depth-wise stencils of one state, each with batch norm over the batch and an activation; forward and backward.
//
// Memory is what such maps cost, not arithmetic: nothing but the results is ever written. The statistics need all samples,
// so the stencils are applied twice, once to count and once to write; backward applies them twice again.
#pragma once

#include "batch.h"

namespace PDECNN_NS {
namespace depthwise_norm {

template <class L, int K, int M>
Status forward(const ForwardCall& call) {
  const Problem& p = call.problem;
  const Tasks tasks(p);
  const Status status = statistics<L, K, M>(p, tasks, call.mean, call.var);
  if (status != kOk) return status;
  return run(p, tasks, {1, 1 + M}, [&](const Task& t, const Memory& memory) { write<L, K, M>(call, t, memory); });
}

template <class L, int K, int M>
Status backward(const BackwardCall& call) {
  const Problem& p = call.problem;
  const Tasks tasks(p);
  Partial partial(tasks, M * max(2, K * K));
  if (!partial.ok()) return kOutOfMemory;
  Status status = run(p, tasks, {1, 1 + M}, [&](const Task& t, const Memory& memory) {
    correlate_with_gradient<L, K, M>(call, t, memory, partial.of(t, M * 2));
  });
  if (status != kOk) return status;
  partial.norm_gradient<M>(p, call.grad_gamma, call.grad_beta);
  status = run(p, tasks, {1 + M, 2 + M},
               [&](const Task& t, const Memory& memory) { propagate<L, K, M>(call, t, memory, partial.of(t, M * K * K)); });
  if (status == kOk && call.grad_weight != nullptr) partial.tap_gradient<K, M>(p, call.grad_weight);
  return status;
}

}  // namespace depthwise_norm
}  // namespace PDECNN_NS
