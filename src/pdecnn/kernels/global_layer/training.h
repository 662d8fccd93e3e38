// A layer in training, up to its output norm: coefficients by stencils and batch norm, then K steps; and backward.
//
// Backward needs sums over the batch before it can pass a norm: it solves every plane twice, which costs less than to write
// four gradients and to read them again.
#pragma once

#include "planes.h"

namespace PDECNN_NS {
namespace global_training {

// The input's planes, which may be those of the state `h`.
inline const float* read_input(const Layer& layer, const Memory& memory, int64_t n, const Task& t, int64_t slot,
                               const float* h) {
  return layer.x == nullptr ? h : memory.read(layer.x, n, t, slot);
}

// Makes the coefficients of every plane by `make(planes, c, h)`, solves it, and calls `finish(c, x, out)`.
template <int M, class Make, class Finish>
Status advance(const Layer& layer, int64_t boundary, const Solver& solver, float* to, int64_t grain, const Make& make,
               const Finish& finish) {
  const depthwise_norm::Problem& p = layer.problem;
  const depthwise_norm::Room room{1, 3, Planes<M>::numbers(layer) + solver.forward_numbers};
  int32_t failed = 0;
  const Status status = depthwise_norm::run(
      p, depthwise_norm::Tasks(p), room,
      [&](const Task& t, const Memory& memory) {
        Planes<M> planes(layer, memory, boundary);
        for (int64_t n = t.n_begin; n < t.n_end; ++n) {
          const float *h = memory.read(p.h, n, t, 0), *x = read_input(layer, memory, n, t, 1, h);
          float* out = memory.target(to, n, t, 2);
          for (int64_t c = 0; c < t.channels; ++c) {
            const int64_t i = c * memory.stride();
            make(planes, t.c + c, h + i);
            if (!planes.solve(solver, h + i, x + i, memory.next(n), out + i)) failed = 1;
            finish(t.c + c, x + i, out + i);
          }
          memory.wrote(to, n, t, 2);
        }
      },
      grain);
  return failed ? kOutOfMemory : status;
}

template <class L, int K, int M>
Status forward(const ForwardCall& call, const Solver& solver) {
  const depthwise_norm::Problem& p = call.layer.problem;
  const Status status = depthwise_norm::statistics<L, K, M>(p, depthwise_norm::Tasks(p), call.mean, call.var);
  if (status != kOk) return status;
  auto make = [&](Planes<M>& planes, int64_t c, const float* h) {
    const auto stencils = depthwise_norm::normalised<K, M>(p, c, {call.mean, call.var});
    planes.template make_coefficients<L, false>(stencils, depthwise_norm::Output<L, M>(p, c), h);
  };
  return advance<M>(call.layer, kPeriodic, solver, call.out, 1, make, [](int64_t, const float*, float*) {});
}

// Calls f(planes, c, h, grad_h) for every plane of the task, channel c of it, once the gradients of its coefficients are
// there; `all`: those of state and input too.
template <class L, int K, int M, class F>
void each_plane_back(const BackwardCall& call, const Solver& solver, const Task& t, const Memory& memory, bool all,
                     const F& f) {
  const Layer& layer = call.layer;
  const bool has_grad_x = all && layer.x != nullptr;
  Planes<M> planes(layer, memory);
  for (int64_t n = t.n_begin; n < t.n_end; ++n) {
    const float *h = memory.read(layer.problem.h, n, t, 0), *x = read_input(layer, memory, n, t, 1, h);
    const float* grad = memory.read(call.grad, n, t, 2);
    float* grad_h = all ? memory.target(call.grad_h, n, t, 3) : nullptr;
    float* grad_x = has_grad_x ? memory.target(call.grad_x, n, t, 4) : nullptr;
    for (int64_t c = 0; c < t.channels; ++c) {
      const int64_t i = c * memory.stride();
      const auto stencils = depthwise_norm::normalised<K, M>(layer.problem, t.c + c, {call.mean, call.var});
      planes.template make_coefficients<L, true>(stencils, depthwise_norm::Output<L, M>(layer.problem, t.c + c), h + i);
      planes.solve_back(solver, h + i, x + i, grad + i, memory.next(n), all, has_grad_x ? grad_x + i : nullptr);
      f(planes, c, h + i, all ? grad_h + i : nullptr);
    }
    if (all) memory.wrote(call.grad_h, n, t, 3);
    if (has_grad_x) memory.wrote(call.grad_x, n, t, 4);
  }
}

template <class L, int K, int M>
Status backward(const BackwardCall& call, const Solver& solver) {
  const Layer& layer = call.layer;
  const depthwise_norm::Problem& p = layer.problem;
  const depthwise_norm::NormGradient norm{call.var, call.grad_gamma, call.grad_beta};
  const depthwise_norm::Tasks tasks(p);
  const depthwise_norm::Partial partial(tasks, M * K * K);
  if (!partial.ok()) return kOutOfMemory;
  const int64_t numbers = Planes<M>::numbers(layer) + solver.backward_numbers;
  Status status = depthwise_norm::run(p, tasks, {1, 3, numbers}, [&](const Task& t, const Memory& memory) {
    double* sums = partial.of(t, M * 2);
    each_plane_back<L, K, M>(call, solver, t, memory, false, [&](const Planes<M>& planes, int64_t c, const float* h, float*) {
      depthwise_norm::correlate_plane<L, K, M>(p, t.c + c, planes.values(), memory.frame(0), h, planes.grad, 0,
                                               sums + c * M * 2);
    });
  });
  if (status != kOk) return status;
  partial.norm_gradient<M>(p, call.grad_gamma, call.grad_beta);
  status = depthwise_norm::run(p, tasks, {1 + M, 5, numbers}, [&](const Task& t, const Memory& memory) {
    double* sums = partial.of(t, M * K * K);
    for (int64_t i = 0; i < t.channels * M * K * K; ++i) sums[i] = 0;  // they held the sums of the pass before
    auto propagate = [&](const Planes<M>& planes, int64_t c, const float* h, float* grad_h) {
      depthwise_norm::propagate_plane<L, K, M>(p, t.c + c, planes.values(), norm, memory, h, planes.grad, 0, planes.grad_h,
                                               grad_h, sums + c * M * K * K);
    };
    each_plane_back<L, K, M>(call, solver, t, memory, true, propagate);
  });
  if (status == kOk) partial.tap_gradient<K, M>(p, call.grad_weight);
  return status;
}

// Calls f with the solver, a vector that a row fills, the side of the stencils and their number.
template <class F>
Status by_shape(const Layer& layer, const F& f) {
  Solver solver;
  if (!Solver::find(layer, solver)) return kBadArgument;
  return depthwise_norm::by_stencils(layer.problem,
                                     [&](auto lanes, auto side, auto maps) { return f(solver, lanes, side, maps); });
}

}  // namespace global_training
}  // namespace PDECNN_NS
