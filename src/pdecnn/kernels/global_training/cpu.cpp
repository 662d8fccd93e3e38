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
constexpr int M = 4;  // u, v, D_x, D_y

// Laid out as cpu.py packs it: 8-byte fields only. f and all maps are as depthwise_norm::Problem says of h.
struct Layer {
  depthwise_norm::Problem problem;
  int64_t K;
  double dt, dx, dy;
  const float* f;  // none: no source, or h itself
  int64_t h_is_source;
};

struct ForwardCall {
  Layer layer;
  float *out, *mean, *var;
};

struct BackwardCall {
  Layer layer;
  const float *grad, *mean, *var;
  float *grad_h, *grad_f, *grad_weight, *grad_gamma, *grad_beta;
};

// The solver of planes of one width, and the numbers of scratch that it takes.
struct Solver {
  using Scheme = PDECNN_NS::Scheme<float>;
  void (*forward)(const PDECNN_NS::ForwardCall&, const Scheme&, const PlaneIndex&, float*);
  void (*backward)(const PDECNN_NS::BackwardCall&, const Scheme&, const PlaneIndex&, float*);
  int64_t forward_numbers, backward_numbers;

  static bool find(const Layer& layer, Solver& solver) {
    const auto& p = layer.problem;
#define PDECNN_WIDTH(width)                                                                                               \
  if (p.W == width) {                                                                                                     \
    const int64_t plane = p.H * VectorRow<float, width>::kStride;                                                         \
    solver = {solve_plane<float, width>, solve_plane_back<float, width>, 9 * plane, backward_planes(layer.K) * plane}; \
    return solver.backward_numbers * int64_t(sizeof(float)) <= kBackwardBytes;                                            \
  }
    PDECNN_FOR_WIDTHS(PDECNN_WIDTH)
#undef PDECNN_WIDTH
    return false;
  }
};

// One thread's planes: the coefficients of the one that is worked on, the values that the norms gave, and the gradients.
class Planes {
 public:
  static int64_t numbers(const Layer& layer) { return (3 * M + 2) * size(layer.problem); }

  Planes(const Layer& layer, const Memory& memory)
      : layer_(layer), q_(kPeriodic, layer.dt, layer.dx, layer.dy), memory_(memory), scratch_(memory.numbers() + numbers(layer)) {
    float* next = memory.numbers();
    auto take = [&] { return (next += size(layer.problem)) - size(layer.problem); };
    for (int m = 0; m < M; ++m) coefficient_[m] = take(), values_[m] = take(), grad[m] = take();
    grad_h = take(), grad_source_ = take();
  }

  // u, v, D_x and D_y of channel c from the state `h`; it is left in the first frame, and if `keep` the normalised values too.
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
  depthwise_norm::KnownValues<M> values() const { return {{values_[0], values_[1], values_[2], values_[3]}}; }

  // While planes are read, those `next` numbers further are called into cache.
  void solve(const Solver& solver, const float* h, const float* f, int64_t next, float* out) const {
    solver.forward({problem(h, f, next), map(out)}, q_, PlaneIndex{0, 0, 1, 0}, scratch_);
  }
  // Leaves the gradients of the coefficients and, if `all` are wanted, of the state and the source.
  void solve_back(const Solver& solver, const float* h, const float* f, const float* grad_out, int64_t next, bool all,
                  float* grad_f) const {
    const Gradient none{map(nullptr), nullptr};
    auto to = [&](float* plane) { return Gradient{map(plane), nullptr}; };
    if (layer_.h_is_source) grad_f = grad_source_;
    solver.backward({problem(h, f, next), map(grad_out, next), all ? to(grad_h) : none, none, to(grad[0]), to(grad[1]), to(grad[2]),
                     to(grad[3]), all ? to(grad_f) : none},
                    q_, PlaneIndex{0, 0, 1, 0}, scratch_);
    if (!all || !layer_.h_is_source) return;
    float* PDECNN_RESTRICT sum = grad_h;
    const float* PDECNN_RESTRICT more = grad_source_;
    PDECNN_VECTORIZE
    for (int64_t i = 0; i < layer_.problem.plane(); ++i) sum[i] += more[i];
  }

  float *grad[M], *grad_h;

 private:
  static int64_t size(const depthwise_norm::Problem& p) { return round_up(p.plane(), 16) + 16; }
  Map map(const float* plane, int64_t next = 0) const { return {const_cast<float*>(plane), next, 0, layer_.problem.W, 1}; }
  PDECNN_NS::Problem problem(const float* h, const float* f, int64_t next) const {
    const auto& p = layer_.problem;
    return {kFloat32, 1, 1, p.H, p.W, layer_.K, kPeriodic, 0, layer_.dt, layer_.dx, layer_.dy, map(h, next), map(nullptr),
            map(coefficient_[0]), map(coefficient_[1]), map(coefficient_[2]), map(coefficient_[3]), map(f, next)};
  }

  const Layer& layer_;
  const Scheme<float> q_;
  const Memory& memory_;
  float *coefficient_[M], *values_[M], *grad_source_, *scratch_;
};

// The source's planes, which may be those of the state `h`.
inline const float* read_source(const Layer& layer, const Memory& memory, int64_t n, const Task& t, int64_t slot, const float* h) {
  if (layer.f != nullptr) return memory.read(layer.f, n, t, slot);
  return layer.h_is_source ? h : nullptr;
}
inline const float* plane_of(const float* planes, int64_t i) { return planes == nullptr ? nullptr : planes + i; }

template <class L, int K>
Status forward(const ForwardCall& call, const Solver& solver) {
  const Layer& layer = call.layer;
  const depthwise_norm::Problem& p = layer.problem;
  const depthwise_norm::Tasks tasks(p);
  const Status status = depthwise_norm::statistics<L, K, M>(p, tasks, call.mean, call.var);
  if (status != kOk) return status;
  const depthwise_norm::Room room{1, 3, Planes::numbers(layer) + solver.forward_numbers};
  return depthwise_norm::run(p, tasks, room, [&](const Task& t, const Memory& memory) {
    Planes planes(layer, memory);
    for (int64_t n = t.n_begin; n < t.n_end; ++n) {
      const float *h = memory.read(p.h, n, t, 0), *f = read_source(layer, memory, n, t, 1, h);
      float* out = memory.target(call.out, n, t, 2);
      for (int64_t c = 0; c < t.channels; ++c) {
        const int64_t i = c * memory.stride();
        planes.make_coefficients<L, K, false>(t.c + c, {call.mean, call.var}, h + i);
        planes.solve(solver, h + i, plane_of(f, i), memory.next(n), out + i);
      }
      memory.wrote(call.out, n, t, 2);
    }
  });
}

// Calls f(planes, c, h, grad_h) for every plane of the task, channel c of it, once the gradients of its coefficients are
// there; `all`: those of state and source too.
template <class L, int K, class F>
void each_plane_back(const BackwardCall& call, const Solver& solver, const Task& t, const Memory& memory, bool all, const F& f) {
  const Layer& layer = call.layer;
  Planes planes(layer, memory);
  for (int64_t n = t.n_begin; n < t.n_end; ++n) {
    const float *h = memory.read(layer.problem.h, n, t, 0), *source = read_source(layer, memory, n, t, 1, h);
    const float* grad = memory.read(call.grad, n, t, 2);
    float* grad_h = all ? memory.target(call.grad_h, n, t, 3) : nullptr;
    float* grad_f = all && call.grad_f != nullptr ? memory.target(call.grad_f, n, t, 4) : nullptr;
    for (int64_t c = 0; c < t.channels; ++c) {
      const int64_t i = c * memory.stride();
      planes.make_coefficients<L, K, true>(t.c + c, {call.mean, call.var}, h + i);
      planes.solve_back(solver, h + i, plane_of(source, i), grad + i, memory.next(n), all, grad_f == nullptr ? nullptr : grad_f + i);
      f(planes, c, h + i, grad_h == nullptr ? nullptr : grad_h + i);
    }
    if (grad_h != nullptr) memory.wrote(call.grad_h, n, t, 3);
    if (grad_f != nullptr) memory.wrote(call.grad_f, n, t, 4);
  }
}

template <class L, int K>
Status backward(const BackwardCall& call, const Solver& solver) {
  const Layer& layer = call.layer;
  const depthwise_norm::Problem& p = layer.problem;
  const depthwise_norm::Tasks tasks(p);
  const depthwise_norm::Partial partial(tasks, M * K * K);
  if (!partial.ok()) return kOutOfMemory;
  const int64_t numbers = Planes::numbers(layer) + solver.backward_numbers;
  Status status = depthwise_norm::run(p, tasks, {1, 3, numbers}, [&](const Task& t, const Memory& memory) {
    double* sums = partial.of(t, M * 2);
    each_plane_back<L, K>(call, solver, t, memory, false, [&](const Planes& planes, int64_t c, const float* h, float*) {
      depthwise_norm::correlate_plane<L, K, M>(p, t.c + c, planes.values(), memory.frame(0), h, planes.grad, 0, sums + c * M * 2);
    });
  });
  if (status != kOk) return status;
  partial.norm_gradient<M>(p, call.grad_gamma, call.grad_beta);
  status = depthwise_norm::run(p, tasks, {1 + M, 5, numbers}, [&](const Task& t, const Memory& memory) {
    double* sums = partial.of(t, M * K * K);
    for (int64_t i = 0; i < t.channels * M * K * K; ++i) sums[i] = 0;  // they held the sums of the pass before
    each_plane_back<L, K>(call, solver, t, memory, true, [&](const Planes& planes, int64_t c, const float* h, float* grad_h) {
      depthwise_norm::propagate_plane<L, K, M>(p, t.c + c, planes.values(), {call.var, call.grad_gamma, call.grad_beta}, memory, h, planes.grad, 0,
                                               planes.grad_h, grad_h, sums + c * M * K * K);
    });
  });
  if (status == kOk) partial.tap_gradient<K, M>(p, call.grad_weight);
  return status;
}

// Calls f with a vector that a row fills and the side of the stencils.
template <int Value>
struct Side {
  static constexpr int value = Value;
};
template <class F>
Status by_shape(const Layer& layer, const F& f) {
  constexpr int narrow_bytes = kVectorBytes > 32 ? 32 : kVectorBytes;
  const auto& p = layer.problem;
  Solver solver;
  if (p.maps != M || !Solver::find(layer, solver)) return kBadArgument;
  auto by_width = [&](auto side) {
    if (p.W * int64_t(sizeof(float)) <= narrow_bytes) return f(solver, Lanes<float, narrow_bytes>{}, side);
    return f(solver, Lanes<float, kVectorBytes>{}, side);
  };
  return p.side == 3 ? by_width(Side<3>{}) : p.side == 5 ? by_width(Side<5>{}) : kBadArgument;
}

}  // namespace global_training
}  // namespace PDECNN_NS

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_global_training_forward)(const void* call) {
  using namespace PDECNN_NS::global_training;
  const auto& c = *static_cast<const ForwardCall*>(call);
  return by_shape(c.layer, [&](const Solver& solver, auto lanes, auto side) {
    return forward<decltype(lanes), decltype(side)::value>(c, solver);
  });
}

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_global_training_backward)(const void* call) {
  using namespace PDECNN_NS::global_training;
  const auto& c = *static_cast<const BackwardCall*>(call);
  return by_shape(c.layer, [&](const Solver& solver, auto lanes, auto side) {
    return backward<decltype(lanes), decltype(side)::value>(c, solver);
  });
}

// Says of a layer without data whether planes of its size are solved here.
PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_global_training_covers)(const void* layer) {
  using namespace PDECNN_NS::global_training;
  return by_shape(*static_cast<const Layer*>(layer), [](const Solver&, auto, auto) { return PDECNN_NS::kOk; });
}
#endif
