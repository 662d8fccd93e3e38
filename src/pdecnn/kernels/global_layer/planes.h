// One plane of a layer: its coefficients and their gradients, which never leave the cache, and its solver.
#pragma once

#include "../advection_diffusion/resident.h"
#include "batch.h"

namespace PDECNN_NS {
namespace global_training {

using depthwise_norm::Frame;
using depthwise_norm::Memory;
using depthwise_norm::Task;

// How a plane is solved, and the numbers of scratch that it takes.
struct Solver {
  const PlaneSolver* planes = nullptr;  // none: row by row, for any width and boundary
  int64_t forward_numbers = 0, backward_numbers = 0;

  // Whether there is one for training whose scratch, and the planes below, stay in cache.
  static bool find(const Layer& layer, Solver& solver) {
    const auto& p = layer.problem;
    const PlaneSolver* planes = plane_solver(p.W);
    if (planes == nullptr) return false;
    solver = {planes, planes->forward_numbers(p.H), planes->backward_numbers(p.H, layer.K)};
    return (solver.backward_numbers + (3 * p.maps + 2) * p.H * planes->row) * int64_t(sizeof(float)) <= kBackwardBytes;
  }
  // There is always one for inference.
  static Solver of(const Layer& layer, int64_t boundary) {
    const PlaneSolver* planes = boundary == kPeriodic ? plane_solver(layer.problem.W) : nullptr;
    const int64_t numbers = planes == nullptr ? 0 : planes->forward_numbers(layer.problem.H);
    return planes != nullptr && numbers * int64_t(sizeof(float)) <= kForwardBytes ? Solver{planes, numbers, 0} : Solver{};
  }
};

// One thread's planes: the coefficients of the one that is worked on, the values that the norms gave, and the gradients.
template <int M>
class Planes {
 public:
  static int64_t numbers(const Layer& layer) { return (3 * M + 2) * size(layer.problem); }

  Planes(const Layer& layer, const Memory& memory, int64_t boundary = kPeriodic)
      : layer_(layer), q_(boundary, layer.dt, layer.dx, layer.dy), memory_(memory),
        scratch_(memory.numbers() + numbers(layer)) {
    float* next = memory.numbers();
    auto take = [&] { return (next += size(layer.problem)) - size(layer.problem); };
    for (int m = 0; m < M; ++m) coefficient_[m] = take(), values_[m] = take(), grad[m] = take();
    grad_h = take(), more_ = take();
    constants_[0] = float(layer.D_x), constants_[1] = float(layer.D_y);
  }

  // The coefficients of the state `h`, which is left in the first frame; if `keep` the stencils' values too.
  template <class L, bool keep, class Stencils, class Output>
  void make_coefficients(const Stencils& stencils, const Output& output, const float* h) {
    const auto& p = layer_.problem;
    Frame frame = memory_.frame(0);
    frame.fill(h);
    auto put = [&](int64_t y, int64_t x, const typename L::V(&values)[M]) {
      PDECNN_UNROLL
      for (int m = 0; m < M; ++m) {
        const int64_t at = y * p.W + x;
        if constexpr (keep) depthwise_norm::store_columns<L>(values_[m] + at, values[m], p.W - x);
        depthwise_norm::store_columns<L>(coefficient_[m] + at, output.value(values[m], m), p.W - x);
      }
    };
    stencils.template each<L>(frame, 0, p.H, put);
    if (p.act == kTanh)
      for (int m = 0; m < M; ++m) apply_tanh(coefficient_[m], p.plane());
  }
  depthwise_norm::KnownValues<M> values() const {
    depthwise_norm::KnownValues<M> known;
    for (int m = 0; m < M; ++m) known.planes[m] = values_[m];
    return known;
  }

  // While planes are read, those `next` numbers further are called into cache.
  bool solve(const Solver& solver, const float* h, const float* x, int64_t next, float* out) const {
    const PDECNN_NS::ForwardCall call{problem(h, x, next), map(out)};
    if (solver.planes == nullptr) return advection_diffusion(call) == kOk;
    solver.planes->forward(call, q_, PlaneIndex{0, 0, 1, 0}, scratch_);
    return true;
  }
  // Leaves the gradients of the coefficients and, if `all` are wanted, of the state and of the input where it is another.
  void solve_back(const Solver& solver, const float* h, const float* x, const float* grad_out, int64_t next, bool all,
                  float* grad_x) const {
    const bool is_other = layer_.x != nullptr, both = layer_.has_source && layer_.previous_is_input;
    const Gradient none{map(nullptr), nullptr};
    auto to = [&](bool wanted, float* plane) { return all && wanted ? Gradient{map(plane), nullptr} : none; };
    auto of_map = [&](int m) { return m < M ? Gradient{map(grad[m % M]), nullptr} : none; };
    solver.planes->backward(
        {problem(h, x, next), map(grad_out, next), to(true, grad_h), to(layer_.previous_is_input, both ? more_ : grad_x),
         of_map(0), of_map(1), of_map(2), of_map(3), to(layer_.has_source, is_other ? grad_x : more_)},
        q_, PlaneIndex{0, 0, 1, 0}, scratch_);
    if (layer_.problem.act == kTanh)
      for (int m = 0; m < M; ++m) undo_tanh(grad[m], coefficient_[m], layer_.problem.plane());
    if (!all || !layer_.has_source || (is_other && !both)) return;
    float* PDECNN_RESTRICT sum = is_other ? grad_x : grad_h;
    const float* PDECNN_RESTRICT more = more_;
    const int64_t n = layer_.problem.plane();
    PDECNN_VECTORIZE
    for (int64_t i = 0; i < n; ++i) sum[i] += more[i];
  }

  float *grad[M], *grad_h;

 private:
  static int64_t size(const depthwise_norm::Problem& p) { return round_up(p.plane(), 16) + 16; }
  Map map(const float* plane, int64_t next = 0) const { return {const_cast<float*>(plane), next, 0, layer_.problem.W, 1}; }
  Map constant(int i) const { return {const_cast<float*>(constants_ + i), 0, 0, 0, 0}; }
  PDECNN_NS::Problem problem(const float* h, const float* x, int64_t next) const {
    const auto& p = layer_.problem;
    const Map D_x = M == 4 ? map(coefficient_[M - 2]) : constant(0), D_y = M == 4 ? map(coefficient_[M - 1]) : constant(1);
    return {kFloat32,
            1,
            1,
            p.H,
            p.W,
            layer_.K,
            q_.boundary,
            0,
            layer_.dt,
            layer_.dx,
            layer_.dy,
            map(h, next),
            map(layer_.previous_is_input ? x : nullptr, next),
            map(coefficient_[0]),
            map(coefficient_[1]),
            D_x,
            D_y,
            map(layer_.has_source ? x : nullptr, next)};
  }

  const Layer& layer_;
  const Scheme<float> q_;
  const Memory& memory_;
  float *coefficient_[M], *values_[M], *more_, *scratch_, constants_[2];
};

}  // namespace global_training
}  // namespace PDECNN_NS
