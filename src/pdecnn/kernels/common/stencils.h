// Depth-wise stencils: over planes, turned (their adjoint), and the gradient of their taps. The one engine of all kernels.
//
// A plane is copied once into a frame that holds its border, so that the loops over pixels know nothing of borders; four
// rows of a result share every load, and sums live in registers.
#pragma once

#include "lanes.h"

namespace PDECNN_NS {

// A plane with `ry` more rows and `rx` more columns on each side, in zeroed memory of the caller. Rows are aligned; there is
// room for the last vector of a row, for the last block of rows, and for a block of results.
template <class A>
class Frame {
 public:
  static constexpr int64_t kRows = 4;  // of the result, computed together

  Frame(int64_t H, int64_t W, int64_t ry, int64_t rx, int64_t boundary)
      : H_(H), W_(W), ry_(ry), rx_(rx), boundary_(boundary), stride_(round_up(W + 2 * rx, 16)) {
    if (stride_ * int64_t(sizeof(A)) % 4096 == 0) stride_ += 16;  // else rows would fall into the same sets of the cache
  }
  int64_t numbers() const { return first() + (H_ + ry_ + kRows) * stride_ + round_up(rx_, 16) + kRows * round_up(W_, 16); }
  Frame& in(A* memory) { return inside_ = memory + first(), *this; }

  int64_t rows() const { return H_; }
  int64_t columns() const { return W_; }
  int64_t stride() const { return stride_; }
  A* inside() const { return inside_; }                        // the first pixel
  A* window() const { return inside_ - ry_ * stride_ - rx_; }  // where its first tap is
  A* results() const { return inside_ - first() + numbers() - kRows * round_up(W_, 16); }

  template <class T>
  void fill(const T* plane) const {
    for (int64_t y = 0; y < H_; ++y) copy_strided(row(y), 1, plane + y * W_, 1, W_);
    if (boundary_ == kDirichlet) return;  // what is beyond the border stays zero
    for (int64_t j = 1; j <= rx_; ++j) {
      const int64_t left = source(-j, W_), right = source(W_ - 1 + j, W_);
      for (int64_t y = 0; y < H_; ++y) row(y)[-j] = row(y)[left], row(y)[W_ - 1 + j] = row(y)[right];
    }
    auto copy = [&](int64_t to) { std::memcpy(row(to) - rx_, row(source(to, H_)) - rx_, size_t(W_ + 2 * rx_) * sizeof(A)); };
    for (int64_t i = 1; i <= ry_; ++i) copy(-i), copy(H_ - 1 + i);
  }

 private:
  int64_t first() const { return round_up(rx_, 16) + ry_ * stride_; }
  A* row(int64_t y) const { return inside_ + y * stride_; }
  // Where the value at index i beyond the border comes from.
  int64_t source(int64_t i, int64_t n) const {
    const int64_t period = boundary_ == kPeriodic ? n : 2 * n;
    i = ((i % period) + period) % period;
    return i < n ? i : 2 * n - 1 - i;
  }
  int64_t H_, W_, ry_, rx_, boundary_, stride_;
  A* inside_ = nullptr;
};

// A stencil of rows x columns taps over a frame.
template <class A>
struct Stencil {
  const Frame<A>& frame;
  const A* taps;
  int64_t rows, columns;
};

// Adds a stencil to some rows of the result at one vector of columns. K: its side if it is known, else 0.
template <class L, int K, class A>
PDECNN_INLINE void add_stencil(const Stencil<A>& s, int64_t y, int64_t x, typename L::V (&sum)[Frame<A>::kRows]) {
  const int64_t rows = K ? K : s.rows, columns = K ? K : s.columns, stride = s.frame.stride();
  const A* window = s.frame.window() + y * stride + x;
  for (int64_t q = 0; q < columns; ++q)
    for (int64_t p = 0; p < rows; ++p) {
      const auto tap = L::all(s.taps[p * columns + q]);
      for (int64_t r = 0; r < Frame<A>::kRows; ++r) sum[r] += tap * L::load(window + (r + p) * stride + q);
    }
}

// out = f(start + the sum of some stencils, all of one shape), a plane of dense rows. What is at `ahead`, of the same size,
// is called into cache meanwhile.
template <class L, int K, class A, class T, class F>
void correlate(const Stencil<A>* stencils, int64_t many, A start, T* out, const void* ahead, const F& f) {
  constexpr int64_t R = Frame<A>::kRows;
  const Frame<A>& frame = stencils[0].frame;
  const int64_t H = frame.rows(), W = frame.columns(), width = round_up(W, L::count);
  for (int64_t y = 0; y < H; y += R) {
    const bool direct = sizeof(T) == sizeof(A) && W == width && y + R <= H;
    A* to = direct ? reinterpret_cast<A*>(out + y * W) : frame.results();
    for (int64_t x = 0; x < width; x += L::count) {
      typename L::V sum[R];
      for (auto& s : sum) s = L::all(start);
      for (int64_t i = 0; i < many; ++i) add_stencil<L, K>(stencils[i], y, x, sum);
      for (int64_t r = 0; r < R; ++r) {
        PDECNN_PREFETCH(static_cast<const T*>(ahead) + (y + r) * W + x);
        L::store(to + r * width + x, f(sum[r]));
      }
    }
    if (direct) continue;
    for (int64_t r = 0; r < min(R, H - y); ++r) copy_strided(out + (y + r) * W, 1, to + r * width, 1, W);
  }
}
template <class A, class T, class F>
void correlate(const Stencil<A>* stencils, int64_t many, A start, T* out, const void* ahead, const F& f) {
  const int64_t side = stencils[0].rows == stencils[0].columns ? stencils[0].rows : 0;
  by_width<A>(stencils[0].frame.columns(), [&](auto lanes) {
    using L = decltype(lanes);
    if (side == 3) correlate<L, 3>(stencils, many, start, out, ahead, f);
    else if (side == 5) correlate<L, 5>(stencils, many, start, out, ahead, f);
    else correlate<L, 0>(stencils, many, start, out, ahead, f);
  });
}

// Numbers are added up in single precision for so many vectors, then in double, before digits are lost.
constexpr int64_t kVectorsOfSum = 64;

// Adds  sum over pixels of grad_m[y, x] h[y + p, x + q]  to sums[m][p][q] for Q taps from (p, q) on, of rows x columns, and
// for M gradients, which are zero beyond their rows.
template <class L, int Q, int M, class A>
PDECNN_INLINE void add_taps(const Frame<A>& h, const A* const* grad, int64_t grad_stride, int64_t p, int64_t q, double* sums,
                            int64_t taps, int64_t columns) {
  const int64_t H = h.rows(), W = h.columns(), stride = h.stride();
  const int64_t strip = max<int64_t>(1, kVectorsOfSum * L::count / round_up(W, L::count));
  for (int64_t begin = 0; begin < H; begin += strip) {
    typename L::V part[M][Q] = {};
    for (int64_t y = begin; y < min(H, begin + strip); ++y)
      for (int64_t x = 0; x < W; x += L::count) {
        typename L::V g[M];
        for (int m = 0; m < M; ++m) g[m] = L::load(grad[m] + y * grad_stride + x);
        for (int i = 0; i < Q; ++i) {
          const auto value = L::load(h.window() + (y + p) * stride + x + q + i);
          for (int m = 0; m < M; ++m) part[m][i] += g[m] * value;
        }
      }
    for (int m = 0; m < M; ++m)
      for (int i = 0; i < Q; ++i) sums[m * taps + p * columns + q + i] += double(L::sum(part[m][i]));
  }
}
template <int M, class A>
void add_tap_gradient(const Frame<A>& h, int64_t rows, int64_t columns, const A* const* grad, int64_t grad_stride,
                      double* sums) {
  by_width<A>(h.columns(), [&](auto lanes) {
    using L = decltype(lanes);
    const int64_t taps = rows * columns;
    for (int64_t p = 0; p < rows; ++p) {
      int64_t q = 0;
      for (; q + 5 <= columns; q += 5) add_taps<L, 5, M>(h, grad, grad_stride, p, q, sums, taps, columns);
      for (; q + 3 <= columns; q += 3) add_taps<L, 3, M>(h, grad, grad_stride, p, q, sums, taps, columns);
      for (; q < columns; ++q) add_taps<L, 1, M>(h, grad, grad_stride, p, q, sums, taps, columns);
    }
  });
}

}  // namespace PDECNN_NS
