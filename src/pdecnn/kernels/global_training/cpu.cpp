// A Global layer in training, up to its output norm: coefficients by stencils and batch norm, then K steps; and backward.
//
// The coefficients of a plane and their gradients never leave the cache. Backward needs sums over the batch before it can
// pass a norm: it solves every plane twice, which costs less than to write four gradients and to read them again.
#if defined(__GNUC__)
#include "../advection_diffusion/resident.h"
#include "../depthwise_norm/batch.h"

namespace PDECNN_NS {
namespace global_training {

using depthwise_norm::Frame;
using depthwise_norm::Memory;
using depthwise_norm::Task;

// The solver of planes of one width, and the numbers of scratch that it takes.
struct Solver {
  using Scheme = PDECNN_NS::Scheme<float>;
  void (*forward)(const PDECNN_NS::ForwardCall&, const Scheme&, const PlaneIndex&, float*);
  void (*backward)(const PDECNN_NS::BackwardCall&, const Scheme&, const PlaneIndex&, float*);
  int64_t forward_numbers, backward_numbers;

  // Whether there is one whose scratch, and the planes below, stay in cache.
  static bool find(const Layer& layer, Solver& solver) {
    const auto& p = layer.problem;
    const PlaneSolver* planes = plane_solver(p.W);
    if (planes == nullptr) return false;
    solver = {planes->forward, planes->backward, planes->forward_numbers(p.H), planes->backward_numbers(p.H, layer.K)};
    return (solver.backward_numbers + (3 * p.maps + 2) * p.H * planes->row) * int64_t(sizeof(float)) <= kBackwardBytes;
  }
};

// One thread's planes: the coefficients of the one that is worked on, the values that the norms gave, and the gradients.
template <int M>
class Planes {
 public:
  static int64_t numbers(const Layer& layer) { return (3 * M + 2) * size(layer.problem); }

  Planes(const Layer& layer, const Memory& memory)
      : layer_(layer), q_(kPeriodic, layer.dt, layer.dx, layer.dy), memory_(memory), scratch_(memory.numbers() + numbers(layer)) {
    float* next = memory.numbers();
    auto take = [&] { return (next += size(layer.problem)) - size(layer.problem); };
    for (int m = 0; m < M; ++m) coefficient_[m] = take(), values_[m] = take(), grad[m] = take();
    grad_h = take(), more_ = take();
    constants_[0] = float(layer.D_x), constants_[1] = float(layer.D_y);
  }

  // The coefficients of channel c from the state `h`; it is left in the first frame, and if `keep` the normalised values too.
  template <class L, int K, bool keep>
  void make_coefficients(int64_t c, const depthwise_norm::Moments& moments, const float* h) {
    const auto& p = layer_.problem;
    Frame frame = memory_.frame(0);
    frame.fill(h);
    const depthwise_norm::Output<L, M> output(p, c);
    auto put = [&](int64_t y, int64_t x, const typename L::V(&values)[M]) {
      PDECNN_UNROLL
      for (int m = 0; m < M; ++m) {
        const int64_t at = y * p.W + x;
        if constexpr (keep) depthwise_norm::store_columns<L>(values_[m] + at, values[m], p.W - x);
        depthwise_norm::store_columns<L>(coefficient_[m] + at, output.value(values[m], m), p.W - x);
      }
    };
    depthwise_norm::normalised<K, M>(p, c, moments).template each<L>(frame, 0, p.H, put);
  }
  depthwise_norm::KnownValues<M> values() const {
    depthwise_norm::KnownValues<M> known;
    for (int m = 0; m < M; ++m) known.planes[m] = values_[m];
    return known;
  }

  // While planes are read, those `next` numbers further are called into cache.
  void solve(const Solver& solver, const float* h, const float* x, int64_t next, float* out) const {
    solver.forward({problem(h, x, next), map(out)}, q_, PlaneIndex{0, 0, 1, 0}, scratch_);
  }
  // Leaves the gradients of the coefficients and, if `all` are wanted, of the state and of the input where it is another.
  void solve_back(const Solver& solver, const float* h, const float* x, const float* grad_out, int64_t next, bool all,
                  float* grad_x) const {
    const bool is_other = layer_.x != nullptr, both = layer_.has_source && layer_.previous_is_input;
    const Gradient none{map(nullptr), nullptr};
    auto to = [&](bool wanted, float* plane) { return all && wanted ? Gradient{map(plane), nullptr} : none; };
    auto of_map = [&](int m) { return m < M ? Gradient{map(grad[m % M]), nullptr} : none; };
    solver.backward({problem(h, x, next), map(grad_out, next), to(true, grad_h),
                     to(layer_.previous_is_input, both ? more_ : grad_x), of_map(0), of_map(1), of_map(2), of_map(3), to(layer_.has_source, is_other ? grad_x : more_)},
                    q_, PlaneIndex{0, 0, 1, 0}, scratch_);
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
    return {kFloat32, 1, 1, p.H, p.W, layer_.K, kPeriodic, 0, layer_.dt, layer_.dx, layer_.dy, map(h, next),
            map(layer_.previous_is_input ? x : nullptr, next), map(coefficient_[0]), map(coefficient_[1]), D_x, D_y,
            map(layer_.has_source ? x : nullptr, next)};
  }

  const Layer& layer_;
  const Scheme<float> q_;
  const Memory& memory_;
  float *coefficient_[M], *values_[M], *more_, *scratch_, constants_[2];
};

// The input's planes, which may be those of the state `h`.
inline const float* read_input(const Layer& layer, const Memory& memory, int64_t n, const Task& t, int64_t slot, const float* h) {
  return layer.x == nullptr ? h : memory.read(layer.x, n, t, slot);
}

template <class L, int K, int M>
Status forward(const ForwardCall& call, const Solver& solver) {
  const Layer& layer = call.layer;
  const depthwise_norm::Problem& p = layer.problem;
  const depthwise_norm::Tasks tasks(p);
  const Status status = depthwise_norm::statistics<L, K, M>(p, tasks, call.mean, call.var);
  if (status != kOk) return status;
  const depthwise_norm::Room room{1, 3, Planes<M>::numbers(layer) + solver.forward_numbers};
  return depthwise_norm::run(p, tasks, room, [&](const Task& t, const Memory& memory) {
    Planes<M> planes(layer, memory);
    for (int64_t n = t.n_begin; n < t.n_end; ++n) {
      const float *h = memory.read(p.h, n, t, 0), *x = read_input(layer, memory, n, t, 1, h);
      float* out = memory.target(call.out, n, t, 2);
      for (int64_t c = 0; c < t.channels; ++c) {
        const int64_t i = c * memory.stride();
        planes.template make_coefficients<L, K, false>(t.c + c, {call.mean, call.var}, h + i);
        planes.solve(solver, h + i, x + i, memory.next(n), out + i);
      }
      memory.wrote(call.out, n, t, 2);
    }
  });
}

// Calls f(planes, c, h, grad_h) for every plane of the task, channel c of it, once the gradients of its coefficients are
// there; `all`: those of state and input too.
template <class L, int K, int M, class F>
void each_plane_back(const BackwardCall& call, const Solver& solver, const Task& t, const Memory& memory, bool all, const F& f) {
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
      planes.template make_coefficients<L, K, true>(t.c + c, {call.mean, call.var}, h + i);
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
      depthwise_norm::correlate_plane<L, K, M>(p, t.c + c, planes.values(), memory.frame(0), h, planes.grad, 0, sums + c * M * 2);
    });
  });
  if (status != kOk) return status;
  partial.norm_gradient<M>(p, call.grad_gamma, call.grad_beta);
  status = depthwise_norm::run(p, tasks, {1 + M, 5, numbers}, [&](const Task& t, const Memory& memory) {
    double* sums = partial.of(t, M * K * K);
    for (int64_t i = 0; i < t.channels * M * K * K; ++i) sums[i] = 0;  // they held the sums of the pass before
    auto propagate = [&](const Planes<M>& planes, int64_t c, const float* h, float* grad_h) {
      depthwise_norm::propagate_plane<L, K, M>(p, t.c + c, planes.values(), norm, memory, h, planes.grad, 0, planes.grad_h, grad_h,
                                               sums + c * M * K * K);
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
  return depthwise_norm::by_stencils(layer.problem, [&](auto lanes, auto side, auto maps) { return f(solver, lanes, side, maps); });
}

}  // namespace global_training
}  // namespace PDECNN_NS

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_global_training_forward)(const void* call) {
  using namespace PDECNN_NS::global_training;
  const auto& c = *static_cast<const ForwardCall*>(call);
  return by_shape(c.layer, [&](const Solver& solver, auto lanes, auto side, auto maps) {
    return forward<decltype(lanes), decltype(side)::value, decltype(maps)::value>(c, solver);
  });
}

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_global_training_backward)(const void* call) {
  using namespace PDECNN_NS::global_training;
  const auto& c = *static_cast<const BackwardCall*>(call);
  return by_shape(c.layer, [&](const Solver& solver, auto lanes, auto side, auto maps) {
    return backward<decltype(lanes), decltype(side)::value, decltype(maps)::value>(c, solver);
  });
}

// Says of a layer without data whether planes of its size are solved here.
PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_global_training_covers)(const void* layer) {
  using namespace PDECNN_NS::global_training;
  return by_shape(*static_cast<const Layer*>(layer), [](const Solver&, auto, auto, auto) { return PDECNN_NS::kOk; });
}
#endif
