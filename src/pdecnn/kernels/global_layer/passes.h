// The four passes over the batch: two forward, two backward. Each handles the channels and samples of one task.
#pragma once

#include "activation.h"
#include "tasks.h"

namespace PDECNN_NS {
namespace depthwise_norm {

// The stencils themselves, less the numbers `centre`: with those near the mean, a variance from squares loses no digits.
template <int K, int M>
Stencils<K, M> centred(const Problem& p, int64_t c, const float* centre) {
  Stencils<K, M> s;
  for (int m = 0; m < M; ++m) {
    for (int i = 0; i < K * K; ++i) s.taps[m][i] = p.tap(m, c, i);
    s.start[m] = -centre[m];
  }
  return s;
}

// The stencils with the norm folded in: their values are the normalised ones.
template <int K, int M>
Stencils<K, M> normalised(const Problem& p, int64_t c, const Moments& moments) {
  Stencils<K, M> s;
  for (int m = 0; m < M; ++m) {
    const double scale = p.scale(m, c, moments.var);
    for (int i = 0; i < K * K; ++i) s.taps[m][i] = float(double(p.tap(m, c, i)) * scale);
    s.start[m] = float((p.bias_at(m, c) - double(moments.mean[m * p.C + c])) * scale);
  }
  return s;
}

// The activation, and which values it lets pass; NaN does, as in torch. tanh lets all pass: see activation.h.
template <class L>
struct Clamp : Limits {
  using V = typename L::V;
  explicit Clamp(const Problem& p) : Limits(p.act) {}
  PDECNN_INLINE V value(V y, int) const {
    y = y <= low ? L::all(low) : y;
    return y >= high ? L::all(high) : y;
  }
};

// Affine map and activation of the normalised values.
template <class L, int M>
struct Output : Clamp<L> {
  float gamma[M], beta[M];
  using V = typename L::V;

  Output(const Problem& p, int64_t c) : Clamp<L>(p) {
    for (int m = 0; m < M; ++m) gamma[m] = p.gamma[m * p.C + c], beta[m] = p.beta[m * p.C + c];
  }
  PDECNN_INLINE V affine(const V& v, int m) const { return L::all(gamma[m]) * v + L::all(beta[m]); }
  PDECNN_INLINE V value(const V& v, int m) const { return Clamp<L>::value(affine(v, m), m); }
  PDECNN_INLINE V gradient(const V& grad, const V& v, int m) const {
    const V y = affine(v, m), zero{};
    return (y <= this->low) | (y >= this->high) ? zero : grad;
  }
};

// Sums of values and of squares, (channels, M, 2), of the values less `centre`, (C, M).
template <class L, int K, int M>
void count(const Problem& p, const Task& t, const Memory& memory, const float* centre, double* sums) {
  const int64_t rows = strip<L, K>(p.W);
  Frame frame = memory.frame(0);
  for (int64_t n = t.n_begin; n < t.n_end; ++n) {
    const float* h = memory.read(p.h, n, t, 0);
    const int64_t next = memory.next(n);
    for (int64_t i = 0; i < t.channels; ++i) {
      frame.fill(h + i * memory.stride());
      const auto stencils = centred<K, M>(p, t.c + i, centre + (t.c + i) * M);
      double* to = sums + i * M * 2;
      for (int64_t y0 = 0; y0 < p.H; y0 += rows) {
        typename L::V sum[M] = {}, square[M] = {};
        stencils.template each<L>(frame, y0, min(p.H, y0 + rows), [&](int64_t y, int64_t x, const typename L::V(&values)[M]) {
          __builtin_prefetch(h + next + y * p.W + x);
          PDECNN_UNROLL
          for (int m = 0; m < M; ++m) {
            const auto value = inside<L>(values[m], p.W - x);
            sum[m] += value;
            square[m] += value * value;
          }
        });
        for (int m = 0; m < M; ++m) settle<L>(sum[m], to[m * 2]), settle<L>(square[m], to[m * 2 + 1]);
      }
    }
  }
}

template <class L, int K, int M>
void write(const ForwardCall& call, const Task& t, const Memory& memory) {
  const Problem& p = call.problem;
  Frame frame = memory.frame(0);
  for (int64_t n = t.n_begin; n < t.n_end; ++n) {
    const float* h = memory.read(p.h, n, t, 0);
    const int64_t next = memory.next(n);
    float* out[M];
    for (int m = 0; m < M; ++m) out[m] = memory.target(call.out[m], n, t, 1 + m);
    for (int64_t i = 0; i < t.channels; ++i) {
      frame.fill(h + i * memory.stride());
      const Output<L, M> output(p, t.c + i);
      auto put = [&](int64_t y, int64_t x, const typename L::V(&values)[M]) {
        __builtin_prefetch(h + next + y * p.W + x);
        PDECNN_UNROLL
        for (int m = 0; m < M; ++m) {
          float* to = out[m] + i * memory.stride() + y * p.W + x;
          __builtin_prefetch(to + next, 1);
          store_columns<L>(to, output.value(values[m], m), p.W - x);
        }
      };
      normalised<K, M>(p, t.c + i, {call.mean, call.var}).template each<L>(frame, 0, p.H, put);
    }
    for (int m = 0; m < M; ++m) memory.wrote(call.out[m], n, t, 1 + m);
  }
}

// Adds to the sums, (M, 2), of the gradient past the activation, and of its product with the normalised values, which
// `stencils` give. `next` is how far from `h` and the gradients the planes lie that follow.
template <class L, int K, int M, class S>
void correlate_plane(const Problem& p, int64_t c, const S& stencils, const Frame& frame, const float* h,
                     const float* const (&grad)[M], int64_t next, double* sums) {
  const int64_t rows = strip<L, K>(p.W);
  const Output<L, M> output(p, c);
  for (int64_t y0 = 0; y0 < p.H; y0 += rows) {
    typename L::V sum[M] = {}, product[M] = {};
    stencils.template each<L>(frame, y0, min(p.H, y0 + rows), [&](int64_t y, int64_t x, const typename L::V(&values)[M]) {
      __builtin_prefetch(h + next + y * p.W + x);
      PDECNN_UNROLL
      for (int m = 0; m < M; ++m) {
        const float* from = grad[m] + y * p.W + x;
        __builtin_prefetch(from + next);
        const auto passed = output.gradient(load_columns<L>(from, p.W - x), values[m], m);
        sum[m] += passed;
        product[m] += passed * values[m];
      }
    });
    for (int m = 0; m < M; ++m) settle<L>(sum[m], sums[m * 2]), settle<L>(product[m], sums[m * 2 + 1]);
  }
}

template <class L, int K, int M>
void correlate_with_gradient(const BackwardCall& call, const Task& t, const Memory& memory, double* sums) {
  const Problem& p = call.problem;
  Frame frame = memory.frame(0);
  for (int64_t n = t.n_begin; n < t.n_end; ++n) {
    const float *h = memory.read(p.h, n, t, 0), *grad[M];
    for (int m = 0; m < M; ++m) grad[m] = memory.read(call.grad[m], n, t, 1 + m);
    for (int64_t i = 0; i < t.channels; ++i) {
      const float *plane = h + i * memory.stride(), *from[M];
      for (int m = 0; m < M; ++m) from[m] = grad[m] + i * memory.stride();
      frame.fill(plane);
      const auto stencils = normalised<K, M>(p, t.c + i, {call.mean, call.var});
      correlate_plane<L, K, M>(p, t.c + i, stencils, frame, plane, from, memory.next(n), sums + i * M * 2);
    }
  }
}

// R rows of the transposed stencils over the maps' frames, at one vector of columns; every value is read once.
template <class L, int K, int M, int R>
PDECNN_INLINE void turned(const float* const (&frame)[M], int64_t at, int64_t stride, const float (&taps)[M][K * K],
                          typename L::V (&out)[R]) {
  for (int r = 0; r < R; ++r) out[r] = typename L::V{};
  PDECNN_UNROLL
  for (int m = 0; m < M; ++m) {
    PDECNN_UNROLL
    for (int i = 0; i < R + K - 1; ++i) {
      PDECNN_UNROLL
      for (int q = 0; q < K; ++q) {
        const auto value = L::load(frame[m] + at + i * stride + q);
        PDECNN_UNROLL
        for (int r = 0; r < R; ++r)
          if (i >= r && i - r < K) out[r] += L::all(taps[m][K * K - 1 - ((i - r) * K + q)]) * value;
      }
    }
  }
}

// sum of grad[y, x] h[y + p, x + q] over rows [begin, end) for the taps of row p, added to sums[m][p][q].
template <class L, int K, int M>
PDECNN_INLINE void tap_row(const float* const (&grad)[M], const Frame& h, int64_t begin, int64_t end, int p, double* sums) {
  const int64_t stride = h.stride(), W = h.columns();
  typename L::V part[M][K] = {};
  for (int64_t y = begin; y < end; ++y)
    for (int64_t x = 0; x < W; x += L::count) {
      typename L::V g[M];
      for (int m = 0; m < M; ++m) g[m] = L::load(grad[m] + y * stride + x);
      for (int q = 0; q < K; ++q) {
        const auto value = L::load(h.data() + (y + p) * stride + x + q);
        for (int m = 0; m < M; ++m) part[m][q] += g[m] * value;
      }
    }
  for (int m = 0; m < M; ++m)
    for (int q = 0; q < K; ++q) settle<L>(part[m][q], sums[(m * K + p) * K + q]);
}

// The gradient of the state of channel c, which the first frame holds, and, added to sums (M, K * K), of the taps. To the
// former the plane `more` is added if there is one; not where K is 1.
template <class L, int K, int M, class S>
void propagate_plane(const Problem& p, int64_t c, const S& stencils, const NormGradient& norm, const Memory& memory,
                     const float* h, const float* const (&grad)[M], int64_t next, const float* more, float* to, double* sums) {
  constexpr int R = kRows<K>;
  const double numbers = double(p.N * p.plane());
  const int64_t rows = strip<L, K>(p.W);
  const Frame frame = memory.frame(0);
  const int64_t stride = frame.stride();
  const Output<L, M> output(p, c);
  // The gradient before the norm is  a (g - mean g - v mean(g v)),  v the normalised values.
  float a[M], constant[M], slope[M], *before[M];
  const float *window[M], *first[M];
  for (int m = 0; m < M; ++m) {
    const double factor = p.scale(m, c, norm.var) * double(p.gamma[m * p.C + c]);
    a[m] = float(factor);
    constant[m] = float(-factor * double(norm.beta[m * p.C + c]) / numbers);
    slope[m] = float(-factor * double(norm.gamma[m * p.C + c]) / numbers);
    const Frame f = memory.frame(1 + m);
    first[m] = before[m] = f.inside();
    window[m] = f.data();
  }
  auto put = [&](int64_t y, int64_t x, const typename L::V(&values)[M]) {
    __builtin_prefetch(h + next + y * p.W + x);
    __builtin_prefetch(to + next + y * p.W + x, 1);
    PDECNN_UNROLL
    for (int m = 0; m < M; ++m) {
      const float* from = grad[m] + y * p.W + x;
      __builtin_prefetch(from + next);
      const auto g = load_columns<L>(from, p.W - x);
      const auto result =
          L::all(a[m]) * output.gradient(g, values[m], m) + (L::all(slope[m]) * values[m] + L::all(constant[m]));
      if constexpr (K == 1) store_columns<L>(to + x, result, p.W - x);
      else L::store(before[m] + y * stride + x, inside<L>(result, p.W - x));
    }
  };
  stencils.template each<L>(frame, 0, p.H, put);
  if constexpr (K > 1) {
    const float zero[M] = {};
    const auto plain = centred<K, M>(p, c, zero);
    for (int64_t y = 0; y < p.H; y += R)
      for (int64_t x = 0; x < p.W; x += L::count) {
        typename L::V sum[R];
        turned<L, K, M, R>(window, y * stride + x, stride, plain.taps, sum);
        for (int r = 0; r < R && y + r < p.H; ++r) {
          const int64_t at = (y + r) * p.W + x;
          if (more != nullptr) sum[r] += load_columns<L>(more + at, p.W - x);
          store_columns<L>(to + at, sum[r], p.W - x);
        }
      }
    for (int64_t y = 0; y < p.H; y += rows)
      for (int q = 0; q < K; ++q) tap_row<L, K, M>(first, frame, y, min(p.H, y + rows), q, sums);
  }
}

template <class L, int K, int M>
void propagate(const BackwardCall& call, const Task& t, const Memory& memory, double* sums) {
  const Problem& p = call.problem;
  Frame frame = memory.frame(0);
  for (int64_t i = 0; i < t.channels * M * K * K; ++i) sums[i] = 0;  // they held the sums of the pass before
  for (int64_t n = t.n_begin; n < t.n_end; ++n) {
    const float *h = memory.read(p.h, n, t, 0), *grad[M];
    for (int m = 0; m < M; ++m) grad[m] = memory.read(call.grad[m], n, t, 1 + m);
    float* grad_h = memory.target(call.grad_h, n, t, 1 + M);
    for (int64_t i = 0; i < t.channels; ++i) {
      const float *plane = h + i * memory.stride(), *from[M];
      for (int m = 0; m < M; ++m) from[m] = grad[m] + i * memory.stride();
      frame.fill(plane);
      const auto stencils = normalised<K, M>(p, t.c + i, {call.mean, call.var});
      propagate_plane<L, K, M>(p, t.c + i, stencils, {call.var, call.grad_gamma, call.grad_beta}, memory, plane, from,
                               memory.next(n), nullptr, grad_h + i * memory.stride(), sums + i * M * K * K);
    }
    memory.wrote(call.grad_h, n, t, 1 + M);
  }
}

// Calls f with the widest vector that a row fills, the side of the stencils and their number.
template <int Value>
struct Constant {
  static constexpr int value = Value;
};
template <class F, class Side, class Maps>
Status by_width(const Problem& p, Side side, Maps maps, const F& f) {
  constexpr int narrow_bytes = kVectorBytes > 32 ? 32 : kVectorBytes;
  if (p.W * int64_t(sizeof(float)) <= narrow_bytes) return f(Lanes<float, narrow_bytes>{}, side, maps);
  return f(Lanes<float, kVectorBytes>{}, side, maps);
}
template <class F>
Status by_stencils(const Problem& p, const F& f) {
  if (p.side == 3 && p.maps == 2) return by_width(p, Constant<3>{}, Constant<2>{}, f);
  if (p.side == 3 && p.maps == 4) return by_width(p, Constant<3>{}, Constant<4>{}, f);
  if (p.side == 5 && p.maps == 2) return by_width(p, Constant<5>{}, Constant<2>{}, f);
  if (p.side == 5 && p.maps == 4) return by_width(p, Constant<5>{}, Constant<4>{}, f);
  return kBadArgument;
}

}  // namespace depthwise_norm
}  // namespace PDECNN_NS
