// One stencil per channel, and its adjoint. A plane is copied once into a frame that holds its border, so that the loops
// over pixels know nothing of borders; several rows share every load.
#include "abi.h"
#include "lanes.h"

namespace PDECNN_NS {
namespace depthwise {

// Where the value at index i beyond the border comes from; -1: it is zero.
PDECNN_INLINE int64_t source(int64_t i, int64_t n, int64_t boundary) {
  if (i >= 0 && i < n) return i;
  if (boundary == kDirichlet) return -1;
  const int64_t period = boundary == kPeriodic ? n : 2 * n;
  i = ((i % period) + period) % period;
  return i < n ? i : 2 * n - 1 - i;
}

// A plane with `radius` more values on each side, and room for the last vector of a row.
template <class T>
class Frame {
 public:
  using A = arithmetic_t<T>;
  Frame(const Problem& p, int64_t radius_y, int64_t radius_x)
      : p_(p), ry_(radius_y), rx_(radius_x), stride_(length(p, radius_x)), arena_(size_t(rows() * stride_) * sizeof(A)) {}
  bool ok() const { return arena_.ok(); }
  int64_t stride() const { return stride_; }
  int64_t rows() const { return p_.H + 2 * ry_ + kSpareRows; }
  const A* data() const { return reinterpret_cast<const A*>(arena_.data()); }

  void fill(const T* plane) {
    for (int64_t i = 0; i < p_.H + 2 * ry_; ++i) {
      A* row = reinterpret_cast<A*>(arena_.data()) + i * stride_;
      const int64_t from = source(i - ry_, p_.H, p_.boundary);
      if (from < 0) continue;  // stays zero
      const T* values = plane + from * p_.W;
      read_strided(row + rx_, values, 1, p_.W);
      for (int64_t j = 1; j <= rx_; ++j) {
        const int64_t left = source(-j, p_.W, p_.boundary), right = source(p_.W - 1 + j, p_.W, p_.boundary);
        row[rx_ - j] = left < 0 ? A(0) : widen(values[left]);
        row[rx_ + p_.W - 1 + j] = right < 0 ? A(0) : widen(values[right]);
      }
    }
  }

  static constexpr int64_t kSpareRows = 3;  // blocks of rows may read, never use, rows below the last

 private:
  static int64_t length(const Problem& p, int64_t rx) {
    const int64_t n = round_up(p.W, 16) + 2 * rx + 16;
    return n * int64_t(sizeof(A)) % 512 == 0 ? n + 16 : n;
  }
  const Problem& p_;
  const int64_t ry_, rx_, stride_;
  Arena arena_;
};

// Rows y ... y + 3 of the result at one vector of columns. M: the size of the stencil if it is known, else 0.
template <class L, int M, class A>
PDECNN_INLINE void four_rows(const A* frame, int64_t stride, const A* k, int64_t rows, int64_t columns, A* out,
                             int64_t out_stride) {
  const int64_t m_y = M ? M : rows, m_x = M ? M : columns;
  typename L::V sum[4] = {};
  for (int64_t i = 0; i < m_y + 3; ++i)
    for (int64_t q = 0; q < m_x; ++q) {
      const auto value = L::load(frame + i * stride + q);
      for (int64_t r = 0; r < 4; ++r)
        if (i - r >= 0 && i - r < m_y) sum[r] += L::all(k[(i - r) * m_x + q]) * value;
    }
  for (int64_t r = 0; r < 4; ++r) L::store(out + r * out_stride, sum[r]);
}

// Whether rows are whole vectors of the storage type, so that they can be read and written where they are.
template <class L, class T>
bool in_place(const Problem& p) {
  return sizeof(T) == sizeof(arithmetic_t<T>) && p.W % L::count == 0;
}

template <class L, int M, class T, class A>
void correlate(const Problem& p, const Frame<T>& frame, const A* k, T* out, A* block) {
  const int64_t width = round_up(p.W, L::count);
  for (int64_t y = 0; y < p.H; y += 4) {
    const bool direct = in_place<L, T>(p) && y + 4 <= p.H;
    A* to = direct ? reinterpret_cast<A*>(out + y * p.W) : block;
    for (int64_t x = 0; x < width; x += L::count)
      four_rows<L, M>(frame.data() + y * frame.stride() + x, frame.stride(), k, p.rows, p.columns, to + x, width);
    if (direct) continue;
    for (int64_t r = 0; r < min<int64_t>(4, p.H - y); ++r) write_numbers(out + (y + r) * p.W, block + r * width, p.W);
  }
}

template <class L, class T>
Status forward(const ForwardCall& call) {
  using A = arithmetic_t<T>;
  const Problem& p = call.problem;
  const int64_t plane = p.H * p.W, m = p.rows == p.columns ? p.rows : 0;
  int32_t failed = 0;
  const Status status = parallel_for(p.N * p.C, max<int64_t>(1, 32768 / plane), [&](int64_t begin, int64_t end) {
    Frame<T> frame(p, p.rows / 2, p.columns / 2);
    Arena block(size_t(4 * round_up(p.W, 16)) * sizeof(A));
    if (!frame.ok() || !block.ok()) {
      failed = 1;
      return;
    }
    A* rows = reinterpret_cast<A*>(block.data());
    for (int64_t i = begin; i < end; ++i) {
      const A* k = static_cast<const A*>(call.k) + i % p.C * p.rows * p.columns;
      T* out = static_cast<T*>(call.out) + i * plane;
      frame.fill(static_cast<const T*>(call.y) + i * plane);
      if (m == 3) correlate<L, 3>(p, frame, k, out, rows);
      else if (m == 5) correlate<L, 5>(p, frame, k, out, rows);
      else correlate<L, 0>(p, frame, k, out, rows);
    }
  });
  return failed ? kOutOfMemory : status;
}

// Adds  sum over pixels of grad[r, s] y[r + p, s + q]  to the lanes of sums[q], for M taps of one row of the stencil.
template <class L, int M, class A>
PDECNN_INLINE void tap_row(const A* grad, int64_t grad_stride, const A* y, int64_t stride, int64_t H, int64_t width,
                           double* sums) {
  typename L::V sum[M] = {};
  for (int64_t r = 0; r < H; ++r)
    for (int64_t x = 0; x < width; x += L::count) {
      const auto g = L::load(grad + r * grad_stride + x);
      for (int q = 0; q < M; ++q) sum[q] += g * L::load(y + r * stride + x + q);
    }
  for (int q = 0; q < M; ++q)
    for (int64_t i = 0; i < L::count; ++i) sums[q * L::count + i] += double(sum[q][i]);
}

template <int M>
struct Taps {
  static constexpr int value = M;
};

template <class L, class T>
Status stencil_gradient(const StencilGradientCall& call) {
  using A = arithmetic_t<T>;
  const Problem& p = call.problem;
  const int64_t plane = p.H * p.W, taps = p.rows * p.columns, width = round_up(p.W, L::count);
  const bool direct = in_place<L, T>(p);
  int32_t failed = 0;
  const Status status = parallel_for(p.C, 1, [&](int64_t begin, int64_t end) {
    Frame<T> frame(p, p.rows / 2, p.columns / 2), grad(p, 0, 0);  // beyond its width a row of grad is zero
    Arena arena(size_t(taps * L::count) * sizeof(double));
    if (!frame.ok() || !grad.ok() || !arena.ok()) {
      failed = 1;
      return;
    }
    double* sums = reinterpret_cast<double*>(arena.data());
    for (int64_t c = begin; c < end; ++c) {
      for (int64_t i = 0; i < taps * L::count; ++i) sums[i] = 0;
      for (int64_t n = 0; n < p.N; ++n) {
        const T* g = static_cast<const T*>(call.grad) + (n * p.C + c) * plane;
        frame.fill(static_cast<const T*>(call.y) + (n * p.C + c) * plane);
        if (!direct) grad.fill(g);
        const A* g_data = direct ? reinterpret_cast<const A*>(g) : grad.data();
        for (int64_t i = 0; i < p.rows; ++i) {
          int64_t q = 0;
          auto run = [&](auto many) {
            for (; q + decltype(many)::value <= p.columns; q += decltype(many)::value)
              tap_row<L, decltype(many)::value>(g_data, direct ? p.W : grad.stride(), frame.data() + i * frame.stride() + q,
                                                frame.stride(), p.H, width, sums + (i * p.columns + q) * L::count);
          };
          run(Taps<5>{});
          run(Taps<3>{});
          run(Taps<1>{});
        }
      }
      A* out = static_cast<A*>(call.grad_k) + c * taps;
      for (int64_t i = 0; i < taps; ++i) {
        double sum = 0;
        for (int64_t lane = 0; lane < L::count; ++lane) sum += sums[i * L::count + lane];
        out[i] = A(sum);
      }
    }
  });
  return failed ? kOutOfMemory : status;
}

// Calls f with a number of the storage type and the widest vector that a row fills.
template <class F>
Status by_dtype_and_width(const Problem& p, const F& f) {
  constexpr int narrow_bytes = kVectorBytes > 32 ? 32 : kVectorBytes;
  auto by_width = [&](auto t) {
    using A = arithmetic_t<decltype(t)>;
    if (p.W * int64_t(sizeof(A)) <= narrow_bytes) return f(t, Lanes<A, narrow_bytes>{});
    return f(t, Lanes<A, kVectorBytes>{});
  };
  switch (p.dtype) {
    case kFloat32: return by_width(float{});
    case kFloat64: return by_width(double{});
    case kBFloat16: return by_width(bfloat16{});
  }
  return kBadArgument;
}

}  // namespace depthwise
}  // namespace PDECNN_NS

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_depthwise_forward)(const void* call) {
  using namespace PDECNN_NS::depthwise;
  const auto& c = *static_cast<const ForwardCall*>(call);
  return by_dtype_and_width(c.problem, [&](auto t, auto l) { return forward<decltype(l), decltype(t)>(c); });
}

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_depthwise_stencil_gradient)(const void* call) {
  using namespace PDECNN_NS::depthwise;
  const auto& c = *static_cast<const StencilGradientCall*>(call);
  return by_dtype_and_width(c.problem, [&](auto t, auto l) { return stencil_gradient<decltype(l), decltype(t)>(c); });
}
