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
using depthwise_norm::Planes;

// The steps of some planes: whole where their scratch stays in cache, else one row by row.
class Solver {
 public:
  Solver(const Layer& layer, int64_t boundary, bool adjoint)
      : Solver(layer, boundary, adjoint, depthwise_norm::together(layer.problem)) {}

  int64_t together() const { return together_; }  // planes
  bool is_whole() const { return is_whole_; }
  int64_t numbers() const {
    return is_whole() ? planes_.numbers(adjoint_)
                      : int64_t(March<float>(problem_, kStorage<float>, false).bytes() / sizeof(float));
  }
  const PDECNN_NS::Problem& problem() const { return problem_; }
  // Where there are fewer planes than can be solved together, the last one is solved several times.
  template <class Call>
  void solve(const Call& call, int64_t many, float* scratch) const {
    Group g;
    for (int64_t i = 0; i < together_; ++i) g.n[i] = min(i, many - 1), g.c[i] = 0;
    if (is_whole()) planes_.solve(call, g, scratch);
    else March<float>(call.problem, kStorage<float>, adjoint_).solve(call, 0, reinterpret_cast<char*>(scratch));
  }

 private:
  Solver(const Layer& layer, int64_t boundary, bool adjoint, int64_t wanted)
      : problem_(sizes(layer, boundary)), adjoint_(adjoint), together_(fits(layer, wanted) ? wanted : 1),
        is_whole_(fits(layer, together_)), planes_(problem_, kStorage<float>, together_) {}
  bool fits(const Layer& layer, int64_t planes) const {
    const int64_t beside = (3 * layer.problem.maps + 2) * layer.problem.plane() * planes;
    return PlaneSolver<float>(problem_, kStorage<float>, planes).fits(adjoint_, adjoint_ ? beside : 0);
  }
  static PDECNN_NS::Problem sizes(const Layer& layer, int64_t boundary) {
    PDECNN_NS::Problem s{};
    s.N = s.C = s.D = 1, s.H = layer.problem.H, s.W = layer.problem.W, s.K = layer.K, s.boundary = boundary;
    s.dt = layer.dt, s.dx = layer.dx, s.dy = layer.dy, s.dz = 1;
    return s;
  }
  const PDECNN_NS::Problem problem_;
  const bool adjoint_;
  const int64_t together_;
  const bool is_whole_;
  const PlaneSolver<float> planes_;
};

// A thread's work on some planes at a time: their coefficients, which never leave the cache, and their solver.
class PlaneSteps {
 public:
  static int64_t numbers(const Layer& layer, const Solver& solver) {
    return solver.together() * of_plane(layer.problem) + solver.numbers();
  }
  static int64_t gradients(const depthwise_norm::Problem& p) { return p.maps + 1; }  // of the coefficients, and of the state

  PlaneSteps(const Layer& layer, const Solver& solver, const Planes& planes, float* scratch)
      : layer_(layer), p_(layer.problem), solver_(solver), planes_(planes), scratch_(scratch),
        constants_{float(layer.D_x), float(layer.D_y)} {}

  // Coefficient m of plane i; the last of a plane is spare.
  static float* coefficient(const depthwise_norm::Problem& p, float* scratch, int64_t i, int64_t m) {
    return scratch + i * of_plane(p) + m * PlaneNorms::size(p);
  }
  // The layer's input, which may be the state.
  static const float* input(const Layer& layer, const Plane& plane) { return plane.in[layer.x == nullptr ? 0 : 1]; }

  // The steps with the coefficients; tanh is applied to them first where it is their activation.
  void solve() const {
    finish_coefficients();
    solver_.solve(PDECNN_NS::ForwardCall{problem(), beside(planes_.first.out[0])}, planes_.many, solver_scratch());
  }
  // Leaves the gradients of the coefficients and of the state in `to`, those of the next plane `next` further on, and that of
  // the input, where it is another, in grad_x.
  void solve_back(const float* grad_out, float* to, int64_t next, float* grad_x) const {
    finish_coefficients();
    const int64_t size = PlaneNorms::size(p_), maps = p_.maps;
    const bool is_other = layer_.x != nullptr, both = layer_.has_source && layer_.previous_is_input;
    const Map none = map(nullptr, 0), more = own(maps), x = is_other ? beside(grad_x) : more;
    auto gradient = [&](int64_t m) { return map(to + m * size, next); };
    auto into = [&](bool wanted, const Map& map) { return Gradient{wanted ? map : none, nullptr}; };
    auto of = [&](int64_t m) { return into(m < maps, gradient(m)); };
    const Gradient nothing = into(false, none);
    solver_.solve(PDECNN_NS::BackwardCall{problem(), beside(grad_out), into(true, gradient(maps)),
                                          into(layer_.previous_is_input, both ? more : beside(grad_x)), of(0), of(1), nothing,
                                          of(2), of(3), nothing, into(layer_.has_source, x)},
                  planes_.many, solver_scratch());
    for (int64_t i = 0; i < planes_.many; ++i) {
      float* mine = to + i * next;
      for (int64_t m = 0; m < maps && p_.act == kTanh; ++m)
        undo_tanh(mine + m * size, coefficient(p_, scratch_, i, m), p_.plane());
      if (layer_.has_source && (!is_other || both))
        add(is_other ? grad_x + i * planes_.stride : mine + maps * size, coefficient(p_, scratch_, i, maps), p_.plane());
    }
  }

 private:
  static int64_t of_plane(const depthwise_norm::Problem& p) { return (p.maps + 1) * PlaneNorms::size(p); }
  void finish_coefficients() const {
    for (int64_t i = 0; i < planes_.many && p_.act == kTanh; ++i)
      for (int64_t m = 0; m < p_.maps; ++m) apply_tanh(coefficient(p_, scratch_, i, m), p_.plane());
  }
  float* solver_scratch() const { return scratch_ + solver_.together() * of_plane(p_); }
  // The map whose planes are `next` apart; those that lie beside each other in memory; and those of the scratch.
  Map map(const float* first, int64_t next) const { return {const_cast<float*>(first), next, 0, p_.W, 1}; }
  Map beside(const float* first) const { return map(first, planes_.stride); }
  Map own(int64_t m) const { return map(coefficient(p_, scratch_, 0, m), of_plane(p_)); }
  Map diffusivity(int64_t m, const float& constant) const {
    return m < p_.maps ? own(m) : Map{const_cast<float*>(&constant), 0, 0, 0, 0};
  }
  PDECNN_NS::Problem problem() const {
    const float* x = input(layer_, planes_.first);
    PDECNN_NS::Problem s = solver_.problem();
    s.h = beside(planes_.first.in[0]), s.h_prev = beside(layer_.previous_is_input ? x : nullptr);
    s.u = own(0), s.v = own(1);
    s.D_x = diffusivity(2, constants_[0]), s.D_y = diffusivity(3, constants_[1]);
    s.f = beside(layer_.has_source ? x : nullptr);
    return s;
  }

  const Layer& layer_;
  const depthwise_norm::Problem& p_;
  const Solver& solver_;
  const Planes& planes_;
  float* scratch_;
  const float constants_[2];
};

// Whether a layer is trained plane by plane: its scratch, and the planes beside it, must stay in cache.
inline bool trains(const Layer& layer, const Solver& solver) {
  const auto& p = layer.problem;
  return (p.maps == 2 || p.maps == 4) && (p.side == 3 || p.side == 5) && solver.is_whole();
}

// Makes the coefficients of every plane by `make(plane, norms, m, to)`, solves it, and calls `finish(plane, x)`.
template <class Make, class Finish>
Status advance(const Layer& layer, const Solver& solver, float* out, int64_t grain, const Make& make, const Finish& finish) {
  const depthwise_norm::Problem& p = layer.problem;
  const int64_t own = PlaneNorms::numbers(p), numbers = own + PlaneSteps::numbers(layer, solver);
  auto solve = [&](const Planes& planes, float* scratch) {
    for (int64_t i = 0; i < planes.many; ++i) {
      const Plane plane = planes[i];
      const PlaneNorms norms(p, plane, scratch);
      for (int64_t m = 0; m < p.maps; ++m) make(plane, norms, m, PlaneSteps::coefficient(p, scratch + own, i, m));
    }
    PlaneSteps(layer, solver, planes, scratch + own).solve();
    for (int64_t i = 0; i < planes.many; ++i) finish(planes[i], PlaneSteps::input(layer, planes[i]));
  };
  return depthwise_norm::run_groups(p, solver.together(), {{p.h, layer.x}, {out}}, numbers, solve, grain);
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
  auto prepare = [&](int64_t i, const PlaneNorms& norms, float* scratch) {
    for (int64_t m = 0; m < p.maps; ++m)
      apply(norms.output(m), norms.values(m), PlaneSteps::coefficient(p, scratch, i, m), p.plane());
  };
  auto make = [&](const Planes& planes, float* scratch, float* kept, int64_t next) {
    PlaneSteps(layer, solver, planes, scratch).solve_back(planes.first.in[2], kept, next, planes.first.out[1]);
  };
  auto of = [&](const Plane&, const float* kept, const float** grad) {
    for (int64_t m = 0; m < p.maps; ++m) grad[m] = kept + m * size;
    return kept + p.maps * size;
  };
  const depthwise_norm::Maps first{{p.h, layer.x, call.grad}, {nullptr, layer.x == nullptr ? nullptr : call.grad_x}};
  return depthwise_norm::backward(p, solver.together(), first, {{p.h}, {call.grad_h}}, PlaneSteps::numbers(layer, solver),
                                  PlaneSteps::gradients(p), {call.mean, call.var},
                                  {call.grad_weight, call.grad_gamma, call.grad_beta}, prepare, make, of);
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
