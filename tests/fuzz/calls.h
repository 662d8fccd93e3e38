// Calls of every exported function as Python may make them, from bytes, and what must hold after each.
//
// A call takes what it takes by contract: any strides for the maps that are read, dense results, sizes from nothing up. All
// results must be written, have the same bits however the work is split, and be near the definition where numbers are tame.
#pragma once

#include "bytes.h"

#define PDECNN_CALL(name) extern "C" int32_t PDECNN_SYMBOL(name)(const void* call);
PDECNN_CALL(pdecnn_advection_diffusion_forward)
PDECNN_CALL(pdecnn_advection_diffusion_backward)
PDECNN_CALL(pdecnn_global_layer)
PDECNN_CALL(pdecnn_depthwise_norm_forward)
PDECNN_CALL(pdecnn_depthwise_norm_backward)
PDECNN_CALL(pdecnn_global_training_forward)
PDECNN_CALL(pdecnn_global_training_backward)
PDECNN_CALL(pdecnn_depthwise_forward)
PDECNN_CALL(pdecnn_depthwise_stencil_gradient)
PDECNN_CALL(pdecnn_shared_expand_forward)
PDECNN_CALL(pdecnn_shared_expand_backward)
PDECNN_CALL(pdecnn_spectral_filter_forward)
PDECNN_CALL(pdecnn_spectral_filter_backward)
#undef PDECNN_CALL
extern "C" void pdecnn_set_parallel_for(ParallelFor f);

namespace calls {

using Run = int32_t (*)(const void* call);

// Who runs the call, and how: serially and in parts (the fuzzer), or on threads.
struct Runner {
  bool large;  // sizes that are worth threads
  void (*run)(const char* name, Run run, const void* call, Memory& memory, bool may_refuse);
};

struct Shape {
  int64_t N, C, H, W;
  int64_t planes() const { return N * C; }
  int64_t count() const { return N * C * H * W; }
};

// Most are tiny, for speed; some have more channels than a block of them, or more rows.
inline Shape shape(Bytes& b, bool large, bool may_be_empty = true) {
  static constexpr int64_t widths[] = {1, 2, 3, 5, 7, 8, 8, 9, 17, 28};
  Shape s{b.between(may_be_empty ? 0 : 1, 2), b.between(1, 3), b.between(1, 4), b.one_of(widths)};
  const uint8_t kind = b.byte();
  if (kind % 16 == 15) s.C = b.between(1, 20);
  if (kind % 16 == 14) s.H = b.between(1, 30);
  if (large) s.N = 2 + s.N, s.C = 8 + s.C, s.H += 8;
  return s;
}

// K steps; now and then many, so that the work is worth several parts.
inline int64_t steps(Bytes& b) {
  const uint8_t kind = b.byte();
  return kind == 201 ? b.between(1, 200) : kind % 64 == 63 ? b.between(1, 20) : b.between(1, 3);
}

inline Map dense(void* data, const Shape& s, bool interleaved) {
  if (interleaved) return {data, s.C * s.H * s.W, 1, s.W * s.C, s.C};
  return {data, s.C * s.H * s.W, s.H * s.W, s.W, 1};
}

// A map that is read: dense in either order, or with any strides, overlapping ones too.
inline Map read_map(Bytes& b, Memory& memory, Values& values, int64_t dtype, const Shape& s) {
  Map m = dense(nullptr, s, b.coin());
  if (b.byte() % 4 == 3) m.sn = b.between(0, 40), m.sc = b.between(0, 9), m.sy = b.between(0, 12), m.sx = b.between(0, 3);
  const int64_t last = (s.N - 1) * m.sn + (s.C - 1) * m.sc + (s.H - 1) * m.sy + (s.W - 1) * m.sx;
  m.data = memory.filled(dtype, s.count() == 0 ? 0 : last + 1, values, b.between(0, 3));
  return m;
}

// The same, or one number for each channel, or one.
inline Map read_coefficient(Bytes& b, Memory& memory, Values& values, int64_t dtype, const Shape& s, bool positive) {
  Map m;
  int64_t count = 0;
  switch (b.byte() % 4) {
    case 0: m = {memory.filled(dtype, count = 1, values), 0, 0, 0, 0}; break;
    case 1:
      m = {nullptr, 0, b.between(1, 2), 0, 0};
      m.data = memory.filled(dtype, count = s.C == 0 ? 0 : (s.C - 1) * m.sc + 1, values);
      break;
    default:
      m = read_map(b, memory, values, dtype, s);
      count = s.count() == 0 ? 0 : (s.N - 1) * m.sn + (s.C - 1) * m.sc + (s.H - 1) * m.sy + (s.W - 1) * m.sx + 1;
  }
  if (positive && values.tame())
    for (int64_t i = 0; i < count; ++i) put(m.data, dtype, i, std::fabs(get(m.data, dtype, i)));
  return m;
}

inline bool is_full(const Map& m) { return m.sy != 0 || m.sx != 0 || m.sn != 0; }

inline double at(const Map& m, int64_t dtype, int64_t n, int64_t c, int64_t y, int64_t x) {
  return m.data == nullptr ? 0 : get(m.data, dtype, n * m.sn + c * m.sc + y * m.sy + x * m.sx);
}

inline void require_near(const char* what, double found, double expected, double size, int64_t dtype, int64_t steps) {
  const double eps = dtype == kFloat64 ? 2.3e-16 : 1.2e-7, rounding = dtype == kBFloat16 ? 0.0079 : 0;
  const double allowed = (64 * double(steps) * eps + rounding) * (size > 1 ? size : 1);
  REQUIRE(std::fabs(found - expected) <= allowed, "%s: %.9g, expected %.9g, allowed %.3g", what, found, expected, allowed);
}

// advection_diffusion by its definition, in double.
inline std::vector<double> solve(const Problem& p) {
  const int64_t H = p.H, W = p.W, plane = H * W;
  std::vector<double> out(size_t(p.N * p.C * plane)), h(static_cast<size_t>(plane)), h_prev(h), next(h);
  const double state = p.boundary == kNeumann ? 1 : 0, velocity = p.boundary == kNeumann ? -1 : 1;
  auto beside = [&](int64_t i, int64_t n, double parity, double& factor) {
    factor = 1;
    if (i >= 0 && i < n) return i;
    if (p.boundary == kPeriodic) return (i + n) % n;
    factor = parity;
    return i < 0 ? int64_t(0) : n - 1;
  };
  for (int64_t n = 0; n < p.N; ++n)
    for (int64_t c = 0; c < p.C; ++c) {
      auto of = [&](const Map& m, int64_t y, int64_t x) { return at(m, p.dtype, n, c, y, x); };
      auto value = [&](auto read, int64_t y, int64_t x, double parity) {
        double fy, fx;
        y = beside(y, H, parity, fy), x = beside(x, W, parity, fx);
        return fy * fx * read(y, x);
      };
      for (int64_t i = 0; i < plane; ++i) {
        h[size_t(i)] = of(p.h, i / W, i % W);
        h_prev[size_t(i)] = p.h_prev.data == nullptr ? h[size_t(i)] : of(p.h_prev, i / W, i % W);
      }
      for (int64_t k = 0; k < p.K; ++k) {
        for (int64_t y = 0; y < H; ++y)
          for (int64_t x = 0; x < W; ++x) {
            auto hh = [&](int64_t j, int64_t i) { return h[size_t(j * W + i)]; };
            auto u = [&](int64_t j, int64_t i) { return of(p.u, j, i); };
            auto v = [&](int64_t j, int64_t i) { return of(p.v, j, i); };
            const double A_x = p.dt / p.dx * u(y, x), A_y = p.dt / p.dy * v(y, x);
            const double B_x = 2 * p.dt / (p.dx * p.dx) * of(p.D_x, y, x), B_y = 2 * p.dt / (p.dy * p.dy) * of(p.D_y, y, x);
            const double divergence = p.dt / p.dx * (value(u, y, x + 1, velocity) - value(u, y, x - 1, velocity)) +
                                      p.dt / p.dy * (value(v, y + 1, x, velocity) - value(v, y - 1, x, velocity));
            const double sum = (1 - B_x - B_y) * h_prev[size_t(y * W + x)] - divergence * hh(y, x) +
                               (B_x - A_x) * value(hh, y, x + 1, state) + (B_x + A_x) * value(hh, y, x - 1, state) +
                               (B_y - A_y) * value(hh, y + 1, x, state) + (B_y + A_y) * value(hh, y - 1, x, state) +
                               2 * p.dt * of(p.f, y, x);
            next[size_t(y * W + x)] = sum / (1 + B_x + B_y);
          }
        std::swap(h_prev, h), std::swap(h, next);
      }
      std::copy(h.begin(), h.end(), out.begin() + (n * p.C + c) * plane);
    }
  return out;
}

inline double largest(const std::vector<double>& q) {
  double most = 0;
  for (double x : q) most = std::fabs(x) > most ? std::fabs(x) : most;
  return most;
}

inline Problem problem(Bytes& b, Memory& memory, Values& values, const Shape& s) {
  static constexpr int64_t dtypes[] = {kFloat32, kFloat32, kFloat64, kBFloat16};
  static constexpr double lengths[] = {1, 0.5, 3, 1e-3, 1e4};
  const int64_t t = b.one_of(dtypes);
  Problem p{};
  p.dtype = t, p.N = s.N, p.C = s.C, p.D = 1, p.H = s.H, p.W = s.W, p.K = steps(b), p.boundary = b.between(0, 2);
  p.dt = b.coin() ? 0.2 : 0.05, p.dx = p.dy = p.dz = 1;
  if (b.byte() % 8 == 7) p.dx = b.one_of(lengths), p.dy = b.one_of(lengths);
  p.h = read_map(b, memory, values, t, s);
  p.interleaved = s.C > 1 && p.h.sc == 1 && p.h.sx != 1;  // as library.is_interleaved
  const Map absent{nullptr, 0, 0, 0, 0};
  p.h_prev = b.coin() ? read_map(b, memory, values, t, s) : absent;
  p.f = b.coin() ? read_map(b, memory, values, t, s) : absent;
  p.u = read_coefficient(b, memory, values, t, s, false), p.v = read_coefficient(b, memory, values, t, s, false);
  p.D_x = read_coefficient(b, memory, values, t, s, true), p.D_y = read_coefficient(b, memory, values, t, s, true);
  return p;
}

// Whether the definition says what to expect: no hostile numbers, and steps that do not grow without bound.
inline bool is_plain(const Problem& p, const Values& values) { return values.tame() && p.K <= 4 && p.dx == 1 && p.dy == 1; }

inline void solver_forward(Bytes& b, const Runner& r) {
  Memory memory;
  Values values(b);
  const Shape s = shape(b, r.large);
  ForwardCall call{problem(b, memory, values, s), {}};
  const Problem& p = call.problem;
  call.out = dense(memory.result(p.dtype, s.count()), s, p.interleaved);
  r.run("solver forward", PDECNN_SYMBOL(pdecnn_advection_diffusion_forward), &call, memory, false);
  if (!is_plain(p, values)) return;
  const std::vector<double> expected = solve(p);
  const double size = largest(expected);
  for (int64_t i = 0; i < s.count(); ++i) {
    const int64_t n = i / (s.C * s.H * s.W), c = i / (s.H * s.W) % s.C, y = i / s.W % s.H, x = i % s.W;
    require_near("solver", at(call.out, p.dtype, n, c, y, x), expected[size_t(i)], size, p.dtype, p.K);
  }
}

inline void solver_backward(Bytes& b, const Runner& r) {
  Memory memory;
  Values values(b);
  const Shape s = shape(b, r.large);
  BackwardCall call{};
  Problem& p = call.problem;
  p = problem(b, memory, values, s);
  call.grad_out = read_map(b, memory, values, p.dtype, s);
  const int64_t wanted = b.byte();
  const Map* fields[] = {&p.h, &p.h_prev, &p.u, &p.v, &p.D_x, &p.D_y, &p.f};
  Gradient* gradients[] = {&call.h, &call.h_prev, &call.u, &call.v, &call.D_x, &call.D_y, &call.f};
  for (int i = 0; i < 7; ++i) {
    if (fields[i]->data == nullptr || (wanted >> i & 1)) continue;  // most want all
    const bool is_map = i < 2 || i == 6 || is_full(*fields[i]);
    if (is_map) gradients[i]->map = dense(memory.result(p.dtype, s.count()), s, p.interleaved);
    else gradients[i]->sums = memory.result(kFloat64, s.planes());
  }
  r.run("solver backward", PDECNN_SYMBOL(pdecnn_advection_diffusion_backward), &call, memory, false);
  if (!is_plain(p, values) || (wanted & 0x43)) return;
  // The result is linear in h, h_prev and f together: <grad, out> = <grad_h, h> + <grad_h_prev, h_prev> + <grad_f, f>.
  const std::vector<double> out = solve(p);
  double left = 0, right = 0, size = 0;
  for (int64_t i = 0; i < s.count(); ++i) {
    const int64_t n = i / (s.C * s.H * s.W), c = i / (s.H * s.W) % s.C, y = i / s.W % s.H, x = i % s.W;
    auto of = [&](const Map& m) { return at(m, p.dtype, n, c, y, x); };
    const double terms[] = {of(call.grad_out) * out[size_t(i)], of(call.h.map) * of(p.h), of(call.h_prev.map) * of(p.h_prev),
                            of(call.f.map) * of(p.f)};
    left += terms[0], right += terms[1] + terms[2] + terms[3];
    for (double term : terms) size += std::fabs(term);
  }
  require_near("solver's adjoint", right, left, size, p.dtype, p.K);
}

inline int64_t activation(Bytes& b, bool may_be_tanh) {
  const int64_t act = b.between(0, may_be_tanh ? 4 : 3);
  return !may_be_tanh && act == kTanh ? int64_t(kHardtanh) : act;
}

inline void global_layer(Bytes& b, const Runner& r) {
  static constexpr int64_t sides[] = {1, 3, 5};
  Memory memory;
  Values values(b);
  const Shape s = shape(b, r.large);
  global_training::InferenceCall call{};
  global_training::Layer& layer = call.layer;
  depthwise_norm::Problem& p = layer.problem;
  auto floats = [&](int64_t n) { return static_cast<const float*>(memory.filled(kFloat32, n, values)); };
  p.N = s.N, p.C = s.C, p.H = s.H, p.W = s.W, p.maps = b.coin() ? 2 : 4, p.side = b.one_of(sides);
  p.interleaved = s.C > 1 && b.coin(), p.act = activation(b, true), p.h = floats(s.count());
  p.weight = floats(p.maps * s.C * p.side * p.side), p.bias = floats(p.maps * s.C);
  const double sign = b.coin() ? 1 : -1;
  layer.K = steps(b), layer.dt = 0.2, layer.dx = sign, layer.dy = sign * (b.coin() ? 1 : 0.5);
  layer.D_x = 0.5, layer.D_y = 1, layer.x = b.coin() ? floats(s.count()) : nullptr;
  layer.previous_is_input = b.coin(), layer.has_source = b.coin();
  call.boundary = b.between(0, 2), call.residual = b.coin(), call.output_act = activation(b, true);
  call.scale = floats(s.C), call.shift = floats(s.C);
  call.out = static_cast<float*>(memory.result(kFloat32, s.count()));
  r.run("global layer", PDECNN_SYMBOL(pdecnn_global_layer), &call, memory, false);
}

inline depthwise_norm::Problem norms(Bytes& b, Memory& memory, Values& values, const Shape& s, int64_t maps, int64_t side,
                                     bool may_be_tanh) {
  auto floats = [&](int64_t n) { return static_cast<const float*>(memory.filled(kFloat32, n, values)); };
  depthwise_norm::Problem p{};
  p.N = s.N, p.C = s.C, p.H = s.H, p.W = s.W, p.maps = maps, p.side = side;
  p.interleaved = s.C > 1 && b.coin(), p.act = activation(b, may_be_tanh);
  for (double& eps : p.eps) eps = 1e-5;
  p.h = floats(s.count()), p.gamma = floats(maps * s.C), p.beta = floats(maps * s.C);
  if (side > 1) p.weight = floats(maps * s.C * side * side), p.bias = b.coin() ? floats(maps * s.C) : nullptr;
  return p;
}

// Statistics as forward gives them: variances are not negative.
inline const float* statistics(Memory& memory, Values& values, int64_t count, bool positive) {
  float* q = static_cast<float*>(memory.filled(kFloat32, count, values));
  for (int64_t i = 0; positive && i < count; ++i) q[i] = q[i] < 0 ? -q[i] : q[i];
  return q;
}

inline float* floats_out(Memory& memory, int64_t count) { return static_cast<float*>(memory.result(kFloat32, count)); }

inline void norm(Bytes& b, const Runner& r, bool backward) {
  Memory memory;
  Values values(b);
  Shape s = shape(b, r.large, false);
  const bool plain = b.byte() % 4 == 0;
  if (s.N * s.H * s.W == 1) s.W = 2;
  if (plain) s.W *= s.H, s.H = 1;
  const int64_t maps = plain ? 1 : b.coin() ? 2 : 4, side = plain ? 1 : b.coin() ? 3 : 5;
  const depthwise_norm::Problem p = norms(b, memory, values, s, maps, side, false);
  if (!backward) {
    depthwise_norm::ForwardCall call{p, {}, floats_out(memory, maps * s.C), floats_out(memory, maps * s.C)};
    for (int m = 0; m < maps; ++m) call.out[m] = floats_out(memory, s.count());
    return r.run("norms forward", PDECNN_SYMBOL(pdecnn_depthwise_norm_forward), &call, memory, false);
  }
  depthwise_norm::BackwardCall call{};
  call.problem = p;
  call.mean = statistics(memory, values, maps * s.C, false), call.var = statistics(memory, values, maps * s.C, true);
  for (int m = 0; m < maps; ++m) call.grad[m] = statistics(memory, values, s.count(), false);
  call.grad_h = floats_out(memory, s.count());
  if (!plain) call.grad_weight = floats_out(memory, maps * s.C * side * side);
  call.grad_gamma = floats_out(memory, maps * s.C), call.grad_beta = floats_out(memory, maps * s.C);
  r.run("norms backward", PDECNN_SYMBOL(pdecnn_depthwise_norm_backward), &call, memory, false);
}

inline void training(Bytes& b, const Runner& r, bool backward) {
  static constexpr int64_t widths[] = {7, 8, 8, 28, 9};  // the last is refused
  Memory memory;
  Values values(b);
  Shape s = shape(b, r.large, false);
  s.W = b.one_of(widths);
  const int64_t maps = b.coin() ? 2 : 4, side = b.coin() ? 3 : 5;
  const depthwise_norm::Problem p = norms(b, memory, values, s, maps, side, true);
  const double sign = b.coin() ? 1 : -1;
  const float* x = b.coin() ? statistics(memory, values, s.count(), false) : nullptr;
  const bool has_source = b.coin(), previous = b.coin();
  const global_training::Layer layer{p, steps(b), 0.2, sign, sign, 0.5, 1, x, has_source || (x && !previous), x && previous};
  if (!backward) {
    float* out = floats_out(memory, s.count());
    const global_training::ForwardCall call{layer, out, floats_out(memory, maps * s.C), floats_out(memory, maps * s.C)};
    return r.run("training forward", PDECNN_SYMBOL(pdecnn_global_training_forward), &call, memory, true);
  }
  global_training::BackwardCall call{};
  call.layer = layer;
  call.grad = statistics(memory, values, s.count(), false);
  call.mean = statistics(memory, values, maps * s.C, false), call.var = statistics(memory, values, maps * s.C, true);
  call.grad_h = floats_out(memory, s.count()), call.grad_x = x ? floats_out(memory, s.count()) : nullptr;
  call.grad_weight = floats_out(memory, maps * s.C * side * side);
  call.grad_gamma = floats_out(memory, maps * s.C), call.grad_beta = floats_out(memory, maps * s.C);
  r.run("training backward", PDECNN_SYMBOL(pdecnn_global_training_backward), &call, memory, true);
}

// The value of a plane beyond its border.
inline double beyond(const void* y, int64_t dtype, int64_t plane, const Shape& s, int64_t boundary, int64_t i, int64_t j) {
  auto place = [&](int64_t at, int64_t n) {
    if (at >= 0 && at < n) return at;
    if (boundary == kDirichlet) return int64_t(-1);
    const int64_t period = boundary == kPeriodic ? n : 2 * n, q = (at % period + period) % period;
    return q < n ? q : 2 * n - 1 - q;
  };
  const int64_t row = place(i, s.H), column = place(j, s.W);
  return row < 0 || column < 0 ? 0 : get(y, dtype, plane * s.H * s.W + row * s.W + column);
}

inline void depthwise_op(Bytes& b, const Runner& r, bool backward) {
  static constexpr int64_t dtypes[] = {kFloat32, kFloat64, kBFloat16}, sides[] = {1, 3, 5, 7, 9};
  Memory memory;
  Values values(b);
  const Shape s = shape(b, r.large);
  const int64_t t = b.one_of(dtypes), wide = t == kFloat64 ? kFloat64 : kFloat32;
  const depthwise::Problem p{t, s.N, s.C, s.H, s.W, b.one_of(sides), b.one_of(sides), b.between(0, 2)};
  const void* y = memory.filled(t, s.count(), values, b.between(0, 3));
  const int64_t taps = p.rows * p.columns;
  if (backward) {
    const void* grad = memory.filled(t, s.count(), values);
    const depthwise::StencilGradientCall call{p, grad, y, memory.result(wide, s.C * taps)};
    r.run("stencil gradient", PDECNN_SYMBOL(pdecnn_depthwise_stencil_gradient), &call, memory, false);
    if (!values.tame() || s.count() > 400) return;
    for (int64_t c = 0; c < s.C; ++c)
      for (int64_t q = 0; q < taps; ++q) {
        double sum = 0;
        for (int64_t n = 0; n < s.N; ++n)
          for (int64_t i = 0; i < s.H * s.W; ++i)
            sum += get(grad, t, (n * s.C + c) * s.H * s.W + i) * beyond(y, t, n * s.C + c, s, p.boundary,
                                                                        i / s.W + q / p.columns - p.rows / 2,
                                                                        i % s.W + q % p.columns - p.columns / 2);
        require_near("stencil gradient", get(call.grad_k, wide, c * taps + q), sum, double(s.N * s.H * s.W), wide, 1);
      }
    return;
  }
  const void* k = memory.filled(wide, s.C * taps, values);
  const depthwise::ForwardCall call{p, y, k, memory.result(t, s.count())};
  r.run("depthwise", PDECNN_SYMBOL(pdecnn_depthwise_forward), &call, memory, false);
  if (!values.tame() || s.count() > 400) return;
  for (int64_t i = 0; i < s.count(); ++i) {
    const int64_t plane = i / (s.H * s.W), c = plane % s.C;
    double sum = 0;
    for (int64_t q = 0; q < taps; ++q)
      sum += get(k, wide, c * taps + q) * beyond(y, t, plane, s, p.boundary, i / s.W % s.H + q / p.columns - p.rows / 2,
                                                 i % s.W + q % p.columns - p.columns / 2);
    require_near("depthwise", get(call.out, t, i), sum, double(taps), t, 1);
  }
}

inline void shared_expand_op(Bytes& b, const Runner& r, bool backward) {
  static constexpr int64_t numbers[] = {1, 2, 3, 4, 6, 8};
  Memory memory;
  Values values(b);
  const Shape s = shape(b, r.large, false);
  const int64_t t = b.coin() ? kFloat64 : kFloat32;
  shared_expand::Call call{};
  call.dtype = t, call.N = s.N, call.C = s.C, call.H = s.H, call.W = s.W;
  call.f = b.one_of(numbers), call.stride = b.between(1, 2), call.mode = b.between(0, 2);
  const int64_t Ho = (s.H + call.stride - 1) / call.stride, Wo = (s.W + call.stride - 1) / call.stride;
  const int64_t out = s.planes() * call.f * Ho * Wo, each = s.planes() * call.f;
  auto sums = [&](int64_t n) { return static_cast<double*>(memory.result(kFloat64, n)); };
  call.u = memory.filled(t, s.count(), values), call.stencils = memory.filled(t, call.f * 9, values);
  if (call.mode != 0) call.scale = memory.filled(t, s.C * call.f, values), call.shift = memory.filled(t, s.C * call.f, values);
  if (call.mode == 2) call.c = memory.filled(t, out, values);
  if (!backward) {
    if (call.mode == 1) call.sum0 = sums(each), call.sum1 = sums(each);
    else call.out = memory.result(t, out);
    r.run("shared expand", PDECNN_SYMBOL(pdecnn_shared_expand_forward), &call, memory, false);
    if (!values.tame() || call.mode != 0) return;
    for (int64_t i = 0; i < out; ++i) {
      const int64_t a = i / (Ho * Wo) % call.f, plane = i / (Ho * Wo * call.f), y = i / Wo % Ho * call.stride,
                    x = i % Wo * call.stride;
      double sum = 0;
      for (int64_t q = 0; q < 9; ++q)
        sum += get(call.stencils, t, a * 9 + q) * beyond(call.u, t, plane, s, kDirichlet, y + q / 3 - 1, x + q % 3 - 1);
      require_near("shared expand", get(call.out, t, i), sum, 9, t, 1);
    }
    return;
  }
  if (call.mode != 1) call.grad = memory.filled(t, out, values);
  call.grad_u = memory.result(t, s.count()), call.grad_stencils = sums(each * 9);
  if (call.mode == 2) call.grad_c = memory.result(t, out), call.sum0 = sums(each), call.sum1 = sums(each);
  r.run("shared expand backward", PDECNN_SYMBOL(pdecnn_shared_expand_backward), &call, memory, false);
}

inline void spectral(Bytes& b, const Runner& r, bool backward) {
  static constexpr int64_t dtypes[] = {kFloat32, kFloat64, kBFloat16};
  Memory memory;
  Values values(b);
  const Shape s = shape(b, r.large);
  const int64_t t = b.one_of(dtypes), wide = t == kFloat64 ? kFloat64 : kFloat32;
  const int64_t whole = 64 / int64_t(bytes_of(wide)), lanes = whole / 2 >= s.W ? whole / 2 : whole;  // as cpu.py pads
  spectral_filter::Problem p{};
  p.dtype = t, p.N = s.N, p.C = s.C, p.H = s.H, p.W = s.W, p.stride = round_up(s.W, lanes), p.mirrored = b.coin();
  // any matrices will do for memory, so that nothing is known of the result
  p.rows = memory.filled(wide, s.H * s.H, values), p.rows_inverse = memory.filled(wide, s.H * s.H, values);
  p.columns = memory.filled(wide, s.W * p.stride, values), p.columns_inverse = memory.filled(wide, s.W * p.stride, values);
  p.g = memory.filled(wide, s.C * s.H * s.W, values);
  const void* v = memory.filled(t, s.count(), values, b.between(0, 3));
  if (!backward) {
    const spectral_filter::ForwardCall call{p, v, memory.result(t, s.count())};
    return r.run("spectral filter", PDECNN_SYMBOL(pdecnn_spectral_filter_forward), &call, memory, false);
  }
  const void* grad = memory.filled(t, s.count(), values);
  void* grad_v = memory.result(t, s.count());
  const spectral_filter::BackwardCall call{p, grad, v, grad_v, memory.result(wide, s.C * s.H * s.W)};
  r.run("spectral filter backward", PDECNN_SYMBOL(pdecnn_spectral_filter_backward), &call, memory, false);
}

inline void any(Bytes& b, const Runner& r) {
  switch (b.byte() % 13) {
    case 0: return solver_forward(b, r);
    case 1: return solver_backward(b, r);
    case 2: return global_layer(b, r);
    case 3: return norm(b, r, false);
    case 4: return norm(b, r, true);
    case 5: return training(b, r, false);
    case 6: return training(b, r, true);
    case 7: return depthwise_op(b, r, false);
    case 8: return depthwise_op(b, r, true);
    case 9: return shared_expand_op(b, r, false);
    case 10: return shared_expand_op(b, r, true);
    case 11: return spectral(b, r, false);
    default: return spectral(b, r, true);
  }
}

}  // namespace calls
