// M depth-wise stencils of one state, each with batch norm over the batch and an activation; README.md tells the passes.
#pragma once

#include "activation.h"
#include "tasks.h"

namespace PDECNN_NS {
namespace depthwise_norm {

// What the norms saw, and the gradients of all parameters; (maps, C) each, and (maps, C, side, side).
struct Moments {
  const float *mean, *var;
};
struct Gradients {
  float *weight, *gamma, *beta;
};

// A thread's work on one plane at a time: the values of its stencils, and their gradient.
class PlaneNorms {
 public:
  // A plane and room for the last vector.
  static int64_t size(const Problem& p) { return round_up(p.plane(), 16) + 16; }
  // Of scratch for so many planes, which share all but their values.
  static int64_t numbers(const Problem& p, int64_t planes = 1) { return frames(p) + planes * p.maps * size(p); }

  // Plane i of those that share the scratch. `is_read`: its values are there, and no stencil is to be applied again.
  PlaneNorms(const Problem& p, const Plane& plane, float* scratch, int64_t i = 0, bool is_read = false)
      : p_(p), c_(plane.c), next_(plane.next), n_(p.plane()), h_(plane.in[0]), scratch_(scratch),
        values_(scratch + frames(p) + i * p.maps * size(p)), frame_(frame(0)) {
    if (p.side > 1 && !is_read) frame_.fill(h_);
  }
  float* values(int64_t m) const { return values_ + m * size(p_); }

  // f of the stencil of map m, times `scale`, plus `start`.
  template <class F>
  void apply(int64_t m, double scale, double start, const F& f, float* out) const {
    const int64_t many = p_.side * p_.side;
    float scaled[kMostTaps];
    for (int64_t i = 0; i < many && scale != 1; ++i) scaled[i] = float(double(p_.tap(m, c_, i)) * scale);
    const bool whole = p_.weight == nullptr;  // the map itself, without a stencil
    const float* taps = scale != 1 || whole ? scaled : p_.weight + (m * p_.C + c_) * many;
    const float *ahead = m == 0 ? h_ + next_ : h_, tap = whole ? float(scale) : taps[0], first = float(start);
    const Stencil<float> stencil{frame_, taps, p_.side, p_.side};
    if (p_.side > 1) return correlate(&stencil, 1, first, out, ahead, f);
    each_vector(n_, [&](auto lanes, int64_t i) {
      using L = decltype(lanes);
      __builtin_prefetch(ahead + i);
      L::store(out + i, f(tap * L::load(h_ + i) + first));
    });
  }
  // The values of map m, less `centre`; and f of the normalised ones: (x - mean) / sqrt(var + eps).
  void apply_centred(int64_t m, double centre) const {
    apply(m, 1, -centre, [](const auto& v) { return v; }, values(m));
  }
  template <class F>
  void apply_normalised(int64_t m, const Moments& moments, const F& f, float* out) const {
    const double scale = p_.scale(m, c_, moments.var);
    apply(m, scale, (p_.bias_at(m, c_) - double(moments.mean[m * p_.C + c_])) * scale, f, out);
  }
  AffineClamp output(int64_t m) const { return {p_.act, p_.gamma[m * p_.C + c_], p_.beta[m * p_.C + c_]}; }

  // Adds to the sums, (maps, 2), of the gradient past the activation, and of its product with the normalised values.
  void add_norm_gradient(const float* const* grad, double* sums) const {
    for (int64_t m = 0; m < p_.maps; ++m) {
      const AffineClamp f = output(m);
      const float *from = grad[m], *known = values(m);
      add_two_sums(n_, sums + m * 2, [&](auto lanes, int64_t i, auto& sum, auto& product) {
        using L = decltype(lanes);
        __builtin_prefetch(from + next_ + i);
        const auto v = L::load(known + i), g = f.gradient(L::load(from + i), v);
        sum += g;
        product += g * v;
      });
    }
  }

  // The gradient of the state and, added to sums (maps, side * side), of the taps; `more` is added to the former. The values
  // are lost: they become the gradient before the norm,  a (g - mean g - v mean(g v)).
  void propagate(const float* var, const Gradients& norm, const float* const* grad, const float* more, float* to,
                 double* sums) const {
    const double numbers = double(p_.N * n_);
    float turned[4][kMostTaps];
    const Frame<float> frames[4] = {frame(1), frame(2), frame(3), frame(4)};
    const float* gradients[4];
    for (int64_t m = 0; m < p_.maps; ++m) {
      const AffineClamp f = output(m);
      const double factor = p_.scale(m, c_, var) * double(f.gamma);
      const float a = float(factor), constant = float(-factor * double(norm.beta[m * p_.C + c_]) / numbers);
      const float slope = float(-factor * double(norm.gamma[m * p_.C + c_]) / numbers), *from = grad[m];
      float *known = values(m), *before = p_.side > 1 ? known : to;
      each_vector(n_, [&](auto lanes, int64_t i) {
        using L = decltype(lanes);
        __builtin_prefetch(from + next_ + i);
        const auto v = L::load(known + i);
        L::store(before + i, a * f.gradient(L::load(from + i), v) + (slope * v + constant));
      });
      if (p_.side == 1) continue;
      frames[m].fill(before);
      gradients[m] = frames[m].inside();
      const int64_t taps = p_.side * p_.side;
      for (int64_t i = 0; i < taps; ++i) turned[m][i] = p_.tap(m, c_, taps - 1 - i);
    }
    if (p_.side == 1) return;
    auto stencil = [&](int m) { return Stencil<float>{frames[m], turned[m], p_.side, p_.side}; };
    const Stencil<float> stencils[4] = {stencil(0), stencil(1), stencil(2), stencil(3)};
    correlate(stencils, p_.maps, 0.0f, to, to + next_, [](const auto& v) { return v; });
    if (more != nullptr) add(to, more, n_);
    if (p_.maps == 4) add_tap_gradient<4>(frame_, p_.side, p_.side, gradients, frame_.stride(), sums);
    else add_tap_gradient<2>(frame_, p_.side, p_.side, gradients, frame_.stride(), sums);
  }

 private:
  static constexpr int64_t kMostTaps = 25;
  static Frame<float> shape(const Problem& p) { return Frame<float>(p.H, p.W, p.side / 2, p.side / 2, kDirichlet); }
  static int64_t frames(const Problem& p) { return p.side > 1 ? (1 + p.maps) * frame_size(p) : 0; }
  static int64_t frame_size(const Problem& p) { return round_up(shape(p).numbers(), 16); }
  Frame<float> frame(int64_t i) const { return shape(p_).in(scratch_ + i * frame_size(p_)); }

  const Problem& p_;
  const int64_t c_, next_, n_;
  const float* h_;
  float *scratch_, *values_;
  const Frame<float> frame_;
};

// Adds up the values of all stencils, less `centre`, (maps, C), and their squares.
inline Status add_moments(const Problem& p, const float* centre, const BatchSums& sums) {
  return run(p, {{p.h}, {}}, PlaneNorms::numbers(p), [&](const Plane& plane, float* scratch) {
    const PlaneNorms norms(p, plane, scratch);
    for (int64_t m = 0; m < p.maps; ++m) {
      norms.apply_centred(m, double(centre[m * p.C + plane.c]));
      const float* values = norms.values(m);
      add_two_sums(p.plane(), sums.of(plane) + m * 2, [&](auto lanes, int64_t i, auto& sum, auto& square) {
        const auto v = decltype(lanes)::load(values + i);
        sum += v;
        square += v * v;
      });
    }
  });
}

// Mean and variance, (maps, C), of what the norms get.
inline Status statistics(const Problem& p, float* means, float* variances) {
  Problem first = p;
  first.N = min<int64_t>(1, p.N);
  const BatchSums of_first(first, p.maps * 2), of_all(p, p.maps * 2);
  if (!of_first.ok() || !of_all.ok()) return kOutOfMemory;
  // Squares are taken about the mean of the first sample, lest the variance be the small difference of large numbers.
  for (int64_t i = 0; i < p.maps * p.C; ++i) means[i] = 0;
  Status status = add_moments(first, means, of_first);
  for (int64_t i = 0; i < p.maps * p.C; ++i) means[i] = float(of_first.total(i % p.C, i / p.C * 2) / double(p.plane()));
  if (status == kOk) status = add_moments(p, means, of_all);
  const double n = double(p.N * p.plane());
  for (int64_t i = 0; i < p.maps * p.C; ++i) {
    const int64_t c = i % p.C, m = i / p.C;
    const double mean = of_all.total(c, m * 2) / n, square = of_all.total(c, m * 2 + 1) / n;
    means[i] = float(mean + double(means[i]) + p.bias_at(m, c));
    variances[i] = float(max(0.0, square - mean * mean));
  }
  return status;
}

inline Status forward(const ForwardCall& call) {
  const Problem& p = call.problem;
  const Status status = statistics(p, call.mean, call.var);
  if (status != kOk) return status;
  const Maps maps{{p.h}, {call.out[0], call.out[1], call.out[2], call.out[3]}};
  return run(p, maps, PlaneNorms::numbers(p), [&](const Plane& plane, float* scratch) {
    const PlaneNorms norms(p, plane, scratch);
    for (int64_t m = 0; m < p.maps; ++m) norms.apply_normalised(m, {call.mean, call.var}, norms.output(m), plane.out[m]);
  });
}

// Two passes, for sums over the batch come before a norm can be passed, over blocks of channels that stay in cache from one
// to the other. The first calls `prepare(i, norms, scratch)` for each plane of a group, then `gradients(planes, scratch, kept,
// next)`, which leaves what the second is to know in `keeps` planes of memory at `kept`, those of the next plane `next` further
// on. Either asks `of(plane, kept, grad)` for the gradients of a plane's maps, which answers with a plane that is added to that
// of the state, or null.
template <class Prepare, class Make, class Of>
Status backward(const Problem& p, int64_t together, const Maps& first, const Maps& second, int64_t numbers, int64_t keeps,
                const Moments& moments, const Gradients& to, const Prepare& prepare, const Make& gradients, const Of& of) {
  constexpr int64_t kCached = 1 << 20;
  const int64_t taps = p.side * p.side, own = PlaneNorms::numbers(p, together), kept = keeps * PlaneNorms::size(p);
  const Tasks tasks(p);
  const int64_t of_block = tasks.channels * p.N * max(kept, p.plane());
  Blocks part{0, max<int64_t>(1, min(tasks.blocks, kCached / max<int64_t>(1, of_block)))};
  const BatchSums norm_sums(p, p.maps * 2), tap_sums(p, p.maps * taps);
  const AlignedMemory memory(size_t(kept > 0 ? part.many * of_block : 0) * sizeof(float));
  if (!norm_sums.ok() || !tap_sums.ok() || !memory.ok()) return kOutOfMemory;
  auto place = [&](const Plane& plane) {
    return reinterpret_cast<float*>(memory.data()) + ((plane.c - part.first * tasks.channels) * p.N + plane.n) * kept;
  };
  auto read = [&](const PlaneNorms& norms) {
    for (int64_t m = 0; m < p.maps; ++m) norms.apply_normalised(m, moments, [](const auto& v) { return v; }, norms.values(m));
  };
  auto sum = [&](const Planes& planes, float* scratch) {
    for (int64_t i = 0; i < planes.many; ++i) {
      const PlaneNorms norms(p, planes[i], scratch, i);
      read(norms);
      prepare(i, norms, scratch + own);
    }
    gradients(planes, scratch + own, place(planes.first), p.N * kept);
    for (int64_t i = 0; i < planes.many; ++i) {
      const Plane plane = planes[i];
      const float* grad[4];
      of(plane, place(plane), grad);
      PlaneNorms(p, plane, scratch, i, true).add_norm_gradient(grad, norm_sums.of(plane));
    }
  };
  auto propagate = [&](const Plane& plane, float* scratch) {
    const PlaneNorms norms(p, plane, scratch);
    const float* grad[4];
    read(norms);
    const float* more = of(plane, place(plane), grad);
    norms.propagate(moments.var, to, grad, more, plane.out[0], tap_sums.of(plane));
  };
  Status status = kOk;
  for (; part.first < tasks.blocks && status == kOk; part.first += part.many) {
    status = run_groups(p, together, first, own + numbers, sum, 1, part);
    const int64_t c = part.first * tasks.channels, end = min(p.C, c + part.many * tasks.channels);
    for (int64_t m = 0; m < p.maps; ++m)
      for (int64_t i = c; i < end; ++i) {
        to.beta[m * p.C + i] = float(norm_sums.total(i, m * 2));
        to.gamma[m * p.C + i] = float(norm_sums.total(i, m * 2 + 1));
      }
    if (status == kOk) status = run(p, second, own, propagate, 1, part);
  }
  for (int64_t i = 0; to.weight != nullptr && i < p.maps * p.C * taps; ++i)
    to.weight[i] = float(tap_sums.total(i / taps % p.C, i / taps / p.C * taps + i % taps));
  return status;
}

inline Status backward(const BackwardCall& call) {
  const float* const* g = call.grad;
  const Maps first{{call.problem.h, g[0], g[1], g[2], g[3]}, {}},
      second{{call.problem.h, g[0], g[1], g[2], g[3]}, {call.grad_h}};
  auto of = [](const Plane& plane, float*, const float** grad) -> const float* {
    for (int m = 0; m < 4; ++m) grad[m] = plane.in[1 + m];
    return nullptr;
  };
  auto prepare = [](int64_t, const PlaneNorms&, float*) {};
  auto make = [](const Planes&, float*, float*, int64_t) {};
  return backward(call.problem, 1, first, second, 0, 0, {call.mean, call.var},
                  {call.grad_weight, call.grad_gamma, call.grad_beta}, prepare, make, of);
}

}  // namespace depthwise_norm
}  // namespace PDECNN_NS
