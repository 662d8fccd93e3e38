// A whole layer: coefficients by stencils, then K steps. In training with batch norm, up to the output norm, and backward;
// in inference with all norms folded in, and with output affine, activation and residual. README.md tells the passes.
#pragma once

#include "../advection_diffusion/resident.h"
#include "norm.h"

namespace PDECNN_NS {
namespace global_training {

using depthwise_norm::Plane;
using depthwise_norm::PlaneNorms;

// A thread's work on one plane at a time: its coefficients and their gradients, which never leave the cache, and its solver.
class PlaneSteps {
 public:
  // Planes are solved whole where `solver` is given, else row by row, for any width and boundary.
  template <class Call>
  static int64_t numbers(const Layer& layer, const PlaneSolver* solver) {
    const auto& p = layer.problem;
    return planes(p) * PlaneNorms::size(p) + (solver == nullptr ? 0 : solver->numbers<Call>(p.H, layer.K));
  }
  static int64_t planes(const depthwise_norm::Problem& p) { return 2 * p.maps + 2; }

  PlaneSteps(const Layer& layer, const PlaneSolver* solver, const Scheme<float>& scheme, const Plane& plane, float* scratch)
      : layer_(layer), p_(layer.problem), solver_(solver), q_(scheme), plane_(plane), scratch_(scratch),
        constants_{float(layer.D_x), float(layer.D_y)} {}

  float* coefficient(int64_t m) const { return scratch_ + m * PlaneNorms::size(p_); }
  float* gradient(int64_t m) const { return coefficient(p_.maps + m); }
  const float* input() const { return plane_.in[layer_.x == nullptr ? 0 : 1]; }  // the layer's, which may be the state

  // The steps with the coefficients; tanh is applied to them first where it is their activation.
  Status solve(float* out) const {
    finish_coefficients();
    const PDECNN_NS::ForwardCall call{problem(), map(out)};
    if (solver_ == nullptr) return advection_diffusion(call);
    solver_->forward(call, q_, PlaneIndex{0, 0, 1, 0}, solver_scratch());
    return kOk;
  }
  // Leaves the gradients of the coefficients and, if `all` are wanted, that of the state, which is returned, and of the
  // input where it is another.
  const float* solve_back(const float* grad_out, bool all, float* grad_x) const {
    finish_coefficients();
    float *grad_h = gradient(p_.maps), *more = gradient(p_.maps + 1);
    const bool is_other = layer_.x != nullptr, both = layer_.has_source && layer_.previous_is_input;
    const Gradient none{map(nullptr), nullptr};
    auto to = [&](bool wanted, float* plane) { return all && wanted ? Gradient{map(plane), nullptr} : none; };
    auto of = [&](int64_t m) { return m < p_.maps ? Gradient{map(gradient(m)), nullptr} : none; };
    solver_->backward(
        {problem(), map(grad_out, plane_.next), to(true, grad_h), to(layer_.previous_is_input, both ? more : grad_x), of(0),
         of(1), of(2), of(3), to(layer_.has_source, is_other ? grad_x : more)},
        q_, PlaneIndex{0, 0, 1, 0}, solver_scratch());
    for (int64_t m = 0; m < p_.maps && p_.act == kTanh; ++m) undo_tanh(gradient(m), coefficient(m), p_.plane());
    if (all && layer_.has_source && (!is_other || both)) add(is_other ? grad_x : grad_h, more, p_.plane());
    return grad_h;
  }

 private:
  void finish_coefficients() const {
    for (int64_t m = 0; m < p_.maps && p_.act == kTanh; ++m) apply_tanh(coefficient(m), p_.plane());
  }
  float* solver_scratch() const { return scratch_ + planes(p_) * PlaneNorms::size(p_); }
  // While planes are read, those `next` numbers further are called into cache.
  Map map(const float* plane, int64_t next = 0) const { return {const_cast<float*>(plane), next, 0, p_.W, 1}; }
  Map diffusivity(int64_t m, const float& constant) const {
    return m < p_.maps ? map(coefficient(m)) : Map{const_cast<float*>(&constant), 0, 0, 0, 0};
  }
  PDECNN_NS::Problem problem() const {
    PDECNN_NS::Problem s{};
    s.N = s.C = 1, s.H = p_.H, s.W = p_.W, s.K = layer_.K, s.boundary = q_.boundary;
    s.dt = layer_.dt, s.dx = layer_.dx, s.dy = layer_.dy;
    s.h = map(plane_.in[0], plane_.next), s.h_prev = map(layer_.previous_is_input ? input() : nullptr, plane_.next);
    s.u = map(coefficient(0)), s.v = map(coefficient(1));
    s.D_x = diffusivity(2, constants_[0]), s.D_y = diffusivity(3, constants_[1]);
    s.f = map(layer_.has_source ? input() : nullptr, plane_.next);
    return s;
  }

  const Layer& layer_;
  const depthwise_norm::Problem& p_;
  const PlaneSolver* solver_;
  const Scheme<float>& q_;
  const Plane& plane_;
  float* scratch_;
  const float constants_[2];
};

// The solver of a layer in training, if there is one whose scratch, and the planes beside it, stay in cache.
inline const PlaneSolver* training_solver(const Layer& layer) {
  const auto& p = layer.problem;
  const PlaneSolver* solver = plane_solver(p.W);
  if (solver == nullptr || (p.maps != 2 && p.maps != 4) || (p.side != 3 && p.side != 5)) return nullptr;
  return solver->fits<PDECNN_NS::BackwardCall>(p.H, layer.K, (3 * p.maps + 2) * p.H * solver->row) ? solver : nullptr;
}

// Makes the coefficients of every plane by `make(norms, m, to)`, solves it, and calls `finish(plane, x)`.
template <class Make, class Finish>
Status advance(const Layer& layer, const PlaneSolver* solver, int64_t boundary, float* out, int64_t grain, const Make& make,
               const Finish& finish) {
  const depthwise_norm::Problem& p = layer.problem;
  const int64_t own = PlaneNorms::numbers(p), numbers = own + PlaneSteps::numbers<PDECNN_NS::ForwardCall>(layer, solver);
  const Scheme<float> scheme(boundary, layer.dt, layer.dx, layer.dy);
  int32_t failed = 0;
  auto solve = [&](const Plane& plane, float* scratch) {
    const PlaneNorms norms(p, plane, scratch);
    const PlaneSteps steps(layer, solver, scheme, plane, scratch + own);
    for (int64_t m = 0; m < p.maps; ++m) make(plane, norms, m, steps.coefficient(m));
    if (steps.solve(plane.out[0]) != kOk) failed = 1;
    finish(plane, steps.input());
  };
  const Status status = depthwise_norm::run(p, {{p.h, layer.x}, {out}}, numbers, solve, grain);
  return failed ? kOutOfMemory : status;
}

inline Status forward(const ForwardCall& call) {
  const PlaneSolver* solver = training_solver(call.layer);
  if (solver == nullptr) return kBadArgument;
  const Status status = depthwise_norm::statistics(call.layer.problem, call.mean, call.var);
  if (status != kOk) return status;
  auto make = [&](const Plane&, const PlaneNorms& norms, int64_t m, float* to) {
    norms.apply_normalised(m, {call.mean, call.var}, norms.output(m), to);
  };
  return advance(call.layer, solver, kPeriodic, call.out, 1, make, [](const Plane&, const float*) {});
}

inline Status backward(const BackwardCall& call) {
  const Layer& layer = call.layer;
  const depthwise_norm::Problem& p = layer.problem;
  const PlaneSolver* solver = training_solver(layer);
  if (solver == nullptr) return kBadArgument;
  const Scheme<float> scheme(kPeriodic, layer.dt, layer.dx, layer.dy);
  auto gradients = [&](const Plane& plane, const PlaneNorms& norms, float* scratch, bool all, const float** grad) {
    const PlaneSteps steps(layer, solver, scheme, plane, scratch);
    for (int64_t m = 0; m < p.maps; ++m) {
      apply(norms.output(m), norms.values(m), steps.coefficient(m), p.plane());
      grad[m] = steps.gradient(m);
    }
    return steps.solve_back(plane.in[2], all, plane.out[1]);
  };
  const depthwise_norm::Maps maps{{p.h, layer.x, call.grad}, {call.grad_h, layer.x == nullptr ? nullptr : call.grad_x}};
  return depthwise_norm::backward(p, maps, PlaneSteps::numbers<PDECNN_NS::BackwardCall>(layer, solver), {call.mean, call.var},
                                  {call.grad_weight, call.grad_gamma, call.grad_beta}, gradients);
}

inline Status infer(const InferenceCall& call) {
  const Layer& layer = call.layer;
  const depthwise_norm::Problem& p = layer.problem;
  const Clamp coefficient_clamp(p.act);
  auto make = [&](const Plane& plane, const PlaneNorms& norms, int64_t m, float* to) {
    norms.apply(m, 1, p.bias_at(m, plane.c), coefficient_clamp, to);
  };
  const int64_t n = p.plane();
  auto finish = [&](const Plane& plane, const float* x) {
    const AffineClamp f(call.output_act, call.scale[plane.c], call.shift[plane.c]);
    float* out = plane.out[0];
    apply(f, out, out, n);
    if (call.output_act == kTanh) apply_tanh(out, n);
    if (call.residual) add(out, x, n);
  };
  const depthwise_norm::Tasks tasks(p);
  const int64_t grain = max<int64_t>(1, 32768 / (n * (layer.K + 8) * tasks.channels * tasks.samples));
  const PlaneSolver* solver = call.boundary == kPeriodic ? plane_solver(p.W) : nullptr;
  if (solver != nullptr && !solver->fits<PDECNN_NS::ForwardCall>(p.H, layer.K)) solver = nullptr;
  return advance(layer, solver, call.boundary, call.out, grain, make, finish);
}

}  // namespace global_training
}  // namespace PDECNN_NS
