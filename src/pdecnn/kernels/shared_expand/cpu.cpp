// f stencils of 3x3 that all channels share, applied to every channel in one pass, with what follows them fused in.
//
// A plane (one n, one c) is copied once into a padded buffer of row pitch P = W + 2 with a halo of zeros. On that buffer a
// stencil is nine shifted loads at any flat index, halo columns included, so that all loops run over whole chunks of rows
// without code for the edges. What stands in the two surplus columns of a row is never stored, and meets zeros in sums.
// A stride of 2 keeps every second column of every second row.
#include "abi.h"
#include "lanes.h"

namespace PDECNN_NS {
namespace shared_expand {

enum Mode : int64_t { kExpand = 0, kMoments = 1, kProduct = 2 };

constexpr int64_t kChunk = 512;  // numbers of a chunk of rows: small enough for f of them in the first cache

constexpr int64_t kMostStencils = 8;

template <class A>
struct Planes {
  using L = Lanes<A, kVectorBytes>;
  using V = typename L::V;
  static constexpr int64_t n = L::count;

  const Call& call;
  const int64_t F, H, W, Ho, Wo, P, stride, rows, chunk, plane;
  A w[kMostStencils][9];

  explicit Planes(const Call& k)
      : call(k), F(k.f), H(k.H), W(k.W), Ho((k.H + k.stride - 1) / k.stride), Wo((k.W + k.stride - 1) / k.stride), P(k.W + 2),
        stride(k.stride), rows(k.stride == 1 ? max<int64_t>(1, min(k.H, kChunk / (k.W + 2))) : 1),
        chunk(round_up(rows * (k.W + 2), 64)), plane(round_up((k.H + 3) * (k.W + 2), 64) + chunk + 64) {
    std::memcpy(w, k.stencils, sizeof(A) * size_t(9 * k.f));
  }

  size_t bytes() const { return sizeof(A) * size_t(plane * (2 + F) + chunk * (F + 4)); }

  // The plane with a halo of zeros; the halo was zeroed once and stays.
  void load_plane(A* padded, const A* u) const {
    for (int64_t y = 0; y < H; ++y) std::memcpy(padded + (y + 1) * P + 1, u + y * W, sizeof(A) * size_t(W));
  }

  // Rows of a channel of the output, spread to the places of their pixels; everything between stays zero.
  void spread(A* PDECNN_RESTRICT to, const A* PDECNN_RESTRICT from, int64_t many) const {
    for (int64_t r = 0; r < many; ++r)
      if (stride == 1) std::memcpy(to + r * P, from + r * W, sizeof(A) * size_t(W));
      else
        for (int64_t x = 0; x < Wo; ++x) to[2 * x] = from[x];
  }
  void collect(A* PDECNN_RESTRICT to, const A* PDECNN_RESTRICT from, int64_t many) const {
    for (int64_t r = 0; r < many; ++r)
      if (stride == 1) std::memcpy(to + r * W, from + r * P, sizeof(A) * size_t(W));
      else
        for (int64_t x = 0; x < Wo; ++x) to[x] = from[2 * x];
  }

  // All derivatives on a chunk of rows whose first is `padded` (already at the row of the stencil's top).
  void derivatives(A* d, const A* padded) const {
    int64_t a = 0;
    for (; a + 4 <= F; a += 4) some_derivatives<4>(d, padded, a);
    if (F - a == 3) some_derivatives<3>(d, padded, a);
    if (F - a == 2) some_derivatives<2>(d, padded, a);
    if (F - a == 1) some_derivatives<1>(d, padded, a);
  }
  // Many of them from `first` on; two vectors share every tap.
  template <int Many>
  void some_derivatives(A* d, const A* padded, int64_t first) const {
    for (int64_t i = 0; i < rows * P; i += 2 * n) {
      V sum[Many][2] = {};
      for (int t = 0; t < 9; ++t) {
        const A* from = padded + i + (t / 3) * P + t % 3;
        const V q[2] = {L::load(from), L::load(from + n)};
        for (int a = 0; a < Many; ++a) {
          const V tap = L::all(w[first + a][t]);
          sum[a][0] += tap * q[0];
          sum[a][1] += tap * q[1];
        }
      }
      for (int a = 0; a < Many; ++a)
        for (int j = 0; j < 2; ++j) L::store(d + (first + a) * chunk + i + j * n, sum[a][j]);
    }
  }

  // sum_a of the transposed stencils, on the whole plane.
  void adjoint(A* to, const A* gd) const {
    for (int64_t i = 0; i < H * P; i += n) {
      V sum = L::all(A(0));
      for (int64_t a = 0; a < F; ++a)
        for (int t = 0; t < 9; ++t) sum += L::all(w[a][t]) * L::load(gd + a * plane + i + (2 - t / 3) * P + 2 - t % 3);
      L::store(to + i, sum);
    }
  }

  // sum over the plane of gd_a times the pixel under each tap; in rows, so that long sums stay accurate.
  void stencil_gradient(double* to, const A* gd, const A* padded) const {
    for (int64_t i = 0; i < 9 * F; ++i) to[i] = 0;
    for (int64_t begin = 0; begin < H * P; begin += kChunk) {
      const int64_t end = min(begin + kChunk, H * P);
      for (int64_t a = 0; a < F; ++a) {
        V sum[9];
        for (int t = 0; t < 9; ++t) sum[t] = L::all(A(0));
        for (int64_t i = begin; i < end; i += n) {
          const V g = L::load(gd + a * plane + P + 1 + i);
          for (int t = 0; t < 9; ++t) sum[t] += g * L::load(padded + i + (t / 3) * P + t % 3);
        }
        for (int t = 0; t < 9; ++t) to[9 * a + t] += double(L::sum(sum[t]));
      }
    }
  }

  // 1 at the pixels of the first `many` rows of a chunk, 0 in surplus columns and below.
  void make_mask(A* mask, int64_t many) const {
    std::memset(mask, 0, sizeof(A) * size_t(chunk));
    for (int64_t r = 0; r < many; ++r)
      for (int64_t x = 0; x < Wo; ++x) mask[r * P + x * stride] = A(1);
  }

  void forward(int64_t begin, int64_t end, char* memory) const {
    A* padded = reinterpret_cast<A*>(memory);
    A* d = padded + plane;
    A* line = d + F * chunk;
    A* mask = line + chunk;
    int64_t masked = -1;
    for (int64_t p = begin; p < end; ++p) {
      load_plane(padded, static_cast<const A*>(call.u) + p * H * W);
      double sum[kMostStencils] = {}, squares[kMostStencils] = {};
      A pivot[kMostStencils] = {};
      for (int64_t y = 0; y < Ho; y += rows) {
        const int64_t many = min(rows, Ho - y);
        if (many != masked) make_mask(mask, masked = many);
        derivatives(d, padded + y * stride * P);
        for (int64_t a = 0; a < F; ++a) {
          A* da = d + a * chunk;
          const int64_t at = ((p * F + a) * Ho + y) * Wo;
          if (call.mode == kMoments) {
            if (y == 0) pivot[a] = da[0];
            moments(da, mask, many, pivot[a], sum[a], squares[a]);
            continue;
          }
          if (call.mode == kProduct) {
            spread(line, static_cast<const A*>(call.c) + at, many);
            const int64_t k = (p % call.C) * F + a;
            const V s = L::all(static_cast<const A*>(call.scale)[k]), t = L::all(static_cast<const A*>(call.shift)[k]);
            for (int64_t i = 0; i < many * P; i += n) {
              V q = t;
              q += s * L::load(da + i);
              L::store(da + i, q * L::load(line + i));
            }
          }
          collect(static_cast<A*>(call.out) + at, da, many);
        }
      }
      if (call.mode == kMoments) {
        const double count = double(Ho * Wo);
        for (int64_t a = 0; a < F; ++a) {
          call.sum0[p * F + a] = double(pivot[a]) + sum[a] / count;
          call.sum1[p * F + a] = squares[a] - sum[a] * sum[a] / count;
        }
      }
    }
  }

  // Sums of d and its square about a value of the plane itself, which keeps them accurate.
  void moments(const A* d, const A* mask, int64_t many, A pivot, double& sum, double& squares) const {
    V first = L::all(A(0)), second = L::all(A(0));
    const V minus = L::all(-pivot), one = L::all(A(1));
    for (int64_t i = 0; i < many * P; i += n) {
      V q = minus;
      q += one * L::load(d + i);
      q = q * L::load(mask + i);
      first += q;
      second += q * q;
    }
    sum += double(L::sum(first));
    squares += double(L::sum(second));
  }

  void backward(int64_t begin, int64_t end, char* memory) const {
    A* padded = reinterpret_cast<A*>(memory);
    A* gd = padded + plane;
    A* back = gd + F * plane;
    A* d = back + plane;
    A* line = d + F * chunk;
    A* grads = line + chunk;
    A* mask = grads + chunk;
    A* turned = mask + chunk;
    int64_t masked = -1;
    for (int64_t p = begin; p < end; ++p) {
      load_plane(padded, static_cast<const A*>(call.u) + p * H * W);
      if (stride == 2) std::memset(gd, 0, sizeof(A) * size_t(F * plane));
      double scales[kMostStencils] = {}, shifts[kMostStencils] = {};
      for (int64_t y = 0; y < Ho; y += rows) {
        const int64_t many = min(rows, Ho - y);
        if (many != masked) make_mask(mask, masked = many);
        if (call.mode != kExpand) derivatives(d, padded + y * stride * P);
        for (int64_t a = 0; a < F; ++a) {
          const A* da = d + a * chunk;
          A* to = gd + a * plane + P + 1 + y * stride * P;
          const int64_t at = ((p * F + a) * Ho + y) * Wo, k = (p % call.C) * F + a;
          if (call.mode == kExpand) {
            spread(grads, static_cast<const A*>(call.grad) + at, many);
            for (int64_t i = 0; i < many * P; i += n) L::store(to + i, L::load(grads + i) * L::load(mask + i));
            continue;
          }
          const V s = L::all(static_cast<const A*>(call.scale)[k]), t = L::all(static_cast<const A*>(call.shift)[k]);
          if (call.mode == kMoments) {
            for (int64_t i = 0; i < many * P; i += n) {
              V q = t;
              q += s * L::load(da + i);
              L::store(to + i, q * L::load(mask + i));
            }
            continue;
          }
          spread(grads, static_cast<const A*>(call.grad) + at, many);
          spread(line, static_cast<const A*>(call.c) + at, many);
          V by_scale = L::all(A(0)), by_shift = L::all(A(0));
          for (int64_t i = 0; i < many * P; i += n) {
            const V g = L::load(grads + i), x = L::load(da + i), gc = g * L::load(line + i) * L::load(mask + i);
            V q = t;
            q += s * x;
            L::store(turned + i, g * q);
            L::store(to + i, gc * s);
            by_scale += gc * x;
            by_shift += gc;
          }
          scales[a] += double(L::sum(by_scale));
          shifts[a] += double(L::sum(by_shift));
          collect(static_cast<A*>(call.grad_c) + at, turned, many);
        }
      }
      if (call.mode == kProduct)
        for (int64_t a = 0; a < F; ++a) call.sum0[p * F + a] = shifts[a], call.sum1[p * F + a] = scales[a];
      stencil_gradient(call.grad_stencils + p * F * 9, gd, padded);
      adjoint(back, gd);
      for (int64_t y = 0; y < H; ++y)
        std::memcpy(static_cast<A*>(call.grad_u) + (p * H + y) * W, back + y * P, sizeof(A) * size_t(W));
    }
  }
};

template <class A>
Status run(const Call& call, bool forward) {
  if (call.f < 1 || call.f > kMostStencils) return kBadArgument;
  const Planes<A> planes(call);
  const int64_t grain = max<int64_t>(1, 16384 / (call.H * call.W * call.f + 1));
  return parallel_for(call.N * call.C, grain, planes.bytes(), [&](int64_t begin, int64_t end, char* memory) {
    if (forward) planes.forward(begin, end, memory);
    else planes.backward(begin, end, memory);
  });
}

Status start(const void* packed, bool forward) {
  const Call& call = *static_cast<const Call*>(packed);
  if (call.dtype == kFloat32) return run<float>(call, forward);
  if (call.dtype == kFloat64) return run<double>(call, forward);
  return kBadArgument;
}

}  // namespace shared_expand
}  // namespace PDECNN_NS

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_shared_expand_forward)(const void* packed) {
  return PDECNN_NS::shared_expand::start(packed, true);
}
PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_shared_expand_backward)(const void* packed) {
  return PDECNN_NS::shared_expand::start(packed, false);
}
