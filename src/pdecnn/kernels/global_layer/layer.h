// A whole layer: coefficients by stencils, then K steps. In training with batch norm, up to the output norm, and backward;
// in inference with all norms folded in, and with output affine, activation and residual. README.md tells the passes.
#pragma once

#include "../advection_diffusion/march.h"
#include "../advection_diffusion/resident.h"
#include "norm.h"

namespace PDECNN_NS {
namespace global_training {

using depthwise_norm::Plane;
using depthwise_norm::PlaneNorms;

// The steps of planes: whole where their scratch stays in cache, else row by row.
class Solver {
 public:
  Solver(const Layer& layer, int64_t boundary, bool adjoint)
      : problem_(sizes(layer, boundary)), planes_(problem_, kStorage<float>, 1), adjoint_(adjoint),
        more_((3 * layer.problem.maps + 2) * layer.problem.plane()) {}

  bool is_whole() const { return planes_.fits(adjoint_, adjoint_ ? more_ : 0); }
  int64_t numbers() const {
    return is_whole() ? planes_.numbers(adjoint_)
                      : int64_t(March<float>(problem_, kStorage<float>, false).bytes() / sizeof(float));
  }
  const PDECNN_NS::Problem& problem() const { return problem_; }
  template <class Call>
  void solve(const Call& call, float* scratch) const {
    Group g;
    g.n[0] = g.c[0] = 0;
    if (is_whole()) planes_.solve(call, g, scratch);
    else March<float>(call.problem, kStorage<float>, adjoint_).solve(call, 0, reinterpret_cast<char*>(scratch));
  }

 private:
  static PDECNN_NS::Problem sizes(const Layer& layer, int64_t boundary) {
    PDECNN_NS::Problem s{};
    s.N = s.C = s.D = 1, s.H = layer.problem.H, s.W = layer.problem.W, s.K = layer.K, s.boundary = boundary;
    s.dt = layer.dt, s.dx = layer.dx, s.dy = layer.dy, s.dz = 1;
    return s;
  }
  const PDECNN_NS::Problem problem_;
  const PlaneSolver<float> planes_;
  const bool adjoint_;
  const int64_t more_;
};

// A thread's work on one plane at a time: its coefficients and their gradients, which never leave the cache, and its solver.
class PlaneSteps {
 public:
  static int64_t numbers(const Layer& layer, const Solver& solver) {
    return planes(layer.problem) * PlaneNorms::size(layer.problem) + solver.numbers();
  }
  static int64_t planes(const depthwise_norm::Problem& p) { return p.maps + 1; }
  static int64_t gradients(const depthwise_norm::Problem& p) { return p.maps + 1; }  // of the coefficients, and of the state

  PlaneSteps(const Layer& layer, const Solver& solver, const Plane& plane, float* scratch)
      : layer_(layer), p_(layer.problem), solver_(solver), plane_(plane), scratch_(scratch),
        constants_{float(layer.D_x), float(layer.D_y)} {}

  float* coefficient(int64_t m) const { return scratch_ + m * PlaneNorms::size(p_); }
  const float* input() const { return plane_.in[layer_.x == nullptr ? 0 : 1]; }  // the layer's, which may be the state

  // The steps with the coefficients; tanh is applied to them first where it is their activation.
  void solve(float* out) const {
    finish_coefficients();
    solver_.solve(PDECNN_NS::ForwardCall{problem(), map(out)}, solver_scratch());
  }
  // Leaves the gradients of the coefficients and of the state in `to`, and that of the input, where it is another, in grad_x.
  void solve_back(const float* grad_out, float* to, float* grad_x) const {
    finish_coefficients();
    auto gradient = [&](int64_t m) { return to + m * PlaneNorms::size(p_); };
    float *grad_h = gradient(p_.maps), *more = coefficient(p_.maps);
    const bool is_other = layer_.x != nullptr, both = layer_.has_source && layer_.previous_is_input;
    const Gradient none{map(nullptr), nullptr};
    auto into = [&](bool wanted, float* plane) { return wanted ? Gradient{map(plane), nullptr} : none; };
    auto of = [&](int64_t m) { return into(m < p_.maps, gradient(m)); };
    solver_.solve(PDECNN_NS::BackwardCall{problem(), map(grad_out), into(true, grad_h),
                                          into(layer_.previous_is_input, both ? more : grad_x), of(0), of(1), none, of(2),
                                          of(3), none, into(layer_.has_source, is_other ? grad_x : more)},
                  solver_scratch());
    for (int64_t m = 0; m < p_.maps && p_.act == kTanh; ++m) undo_tanh(gradient(m), coefficient(m), p_.plane());
    if (layer_.has_source && (!is_other || both)) add(is_other ? grad_x : grad_h, more, p_.plane());
  }

 private:
  void finish_coefficients() const {
    for (int64_t m = 0; m < p_.maps && p_.act == kTanh; ++m) apply_tanh(coefficient(m), p_.plane());
  }
  float* solver_scratch() const { return scratch_ + planes(p_) * PlaneNorms::size(p_); }
  Map map(const float* plane) const { return {const_cast<float*>(plane), 0, 0, p_.W, 1}; }
  Map diffusivity(int64_t m, const float& constant) const {
    return m < p_.maps ? map(coefficient(m)) : Map{const_cast<float*>(&constant), 0, 0, 0, 0};
  }
  PDECNN_NS::Problem problem() const {
    PDECNN_NS::Problem s = solver_.problem();
    s.h = map(plane_.in[0]), s.h_prev = map(layer_.previous_is_input ? input() : nullptr);
    s.u = map(coefficient(0)), s.v = map(coefficient(1));
    s.D_x = diffusivity(2, constants_[0]), s.D_y = diffusivity(3, constants_[1]);
    s.f = map(layer_.has_source ? input() : nullptr);
    return s;
  }

  const Layer& layer_;
  const depthwise_norm::Problem& p_;
  const Solver& solver_;
  const Plane& plane_;
  float* scratch_;
  const float constants_[2];
};

// Whether a layer is trained plane by plane: its scratch, and the planes beside it, must stay in cache.
inline bool trains(const Layer& layer, const Solver& solver) {
  const auto& p = layer.problem;
  return (p.maps == 2 || p.maps == 4) && (p.side == 3 || p.side == 5) && solver.is_whole();
}

// Makes the coefficients of every plane by `make(norms, m, to)`, solves it, and calls `finish(plane, x)`.
template <class Make, class Finish>
Status advance(const Layer& layer, const Solver& solver, float* out, int64_t grain, const Make& make, const Finish& finish) {
  const depthwise_norm::Problem& p = layer.problem;
  const int64_t own = PlaneNorms::numbers(p), numbers = own + PlaneSteps::numbers(layer, solver);
  auto solve = [&](const Plane& plane, float* scratch) {
    const PlaneNorms norms(p, plane, scratch);
    const PlaneSteps steps(layer, solver, plane, scratch + own);
    for (int64_t m = 0; m < p.maps; ++m) make(plane, norms, m, steps.coefficient(m));
    steps.solve(plane.out[0]);
    finish(plane, steps.input());
  };
  return depthwise_norm::run(p, {{p.h, layer.x}, {out}}, numbers, solve, grain);
}

inline Status forward(const ForwardCall& call) {
  const Solver solver(call.layer, kPeriodic, false);
  if (!trains(call.layer, Solver(call.layer, kPeriodic, true))) return kBadArgument;
  const Status status = depthwise_norm::statistics(call.layer.problem, call.mean, call.var);
  if (status != kOk) return status;
  auto make = [&](const Plane&, const PlaneNorms& norms, int64_t m, float* to) {
    norms.apply_normalised(m, {call.mean, call.var}, norms.output(m), to);
  };
  return advance(call.layer, solver, call.out, 1, make, [](const Plane&, const float*) {});
}

inline Status backward(const BackwardCall& call) {
  const Layer& layer = call.layer;
  const depthwise_norm::Problem& p = layer.problem;
  const Solver solver(layer, kPeriodic, true);
  if (!trains(layer, solver)) return kBadArgument;
  const int64_t size = PlaneNorms::size(p);
  auto make = [&](const Plane& plane, const PlaneNorms& norms, float* scratch, float* kept, const float** grad) {
    const PlaneSteps steps(layer, solver, plane, scratch);
    for (int64_t m = 0; m < p.maps; ++m) {
      apply(norms.output(m), norms.values(m), steps.coefficient(m), p.plane());
      grad[m] = kept + m * size;
    }
    steps.solve_back(plane.in[2], kept, plane.out[1]);
  };
  auto again = [&](const Plane&, const float* kept, const float** grad) {
    for (int64_t m = 0; m < p.maps; ++m) grad[m] = kept + m * size;
    return kept + p.maps * size;
  };
  const depthwise_norm::Maps first{{p.h, layer.x, call.grad}, {nullptr, layer.x == nullptr ? nullptr : call.grad_x}};
  return depthwise_norm::backward(p, first, {{p.h}, {call.grad_h}}, PlaneSteps::numbers(layer, solver),
                                  PlaneSteps::gradients(p), {call.mean, call.var},
                                  {call.grad_weight, call.grad_gamma, call.grad_beta}, make, again);
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
  return advance(layer, Solver(layer, call.boundary, false), call.out, grain, make, finish);
}

}  // namespace global_training
}  // namespace PDECNN_NS
