// A plane of one channel with its zero border, the stencils of several maps over it, and sums that keep their digits.
#pragma once

#include "lanes.h"
#include "transpose.h"

#define PDECNN_UNROLL _Pragma("GCC unroll 8")

namespace PDECNN_NS {
namespace depthwise_norm {

// Rows of the result that are computed together: as many sums as there are registers for.
template <int K>
constexpr int kRows = K == 1               ? 1
                      : kVectorBytes == 64 ? 4
                                           : 2;

// A plane with `radius` zeros on each side, its rows aligned. The zeros after a row are also those before the next, and
// there is room for the last vector of a row and the last block of rows.
class Frame {
 public:
  static int64_t numbers(int64_t H, int64_t W, int64_t radius) {
    return kFront + (H + 2 * radius + kSpareRows) * length(W, radius) + kFront;
  }
  Frame(float* memory, int64_t H, int64_t W, int64_t radius)
      : H_(H), W_(W), radius_(radius), stride_(length(W, radius)), first_(memory + kFront + radius * stride_) {}

  int64_t stride() const { return stride_; }
  int64_t columns() const { return W_; }
  float* data() const { return first_ - radius_ * stride_ - radius_; }  // where the first pixel's first tap is
  float* inside() const { return first_; }                              // the first pixel

  void fill(const float* plane) {
    for (int64_t y = 0; y < H_; ++y) {
      float* row = inside() + y * stride_;
      const float* from = plane + y * W_;
      if (W_ == 8) read_numbers(row, from, 8);
      else if (W_ == 16) read_numbers(row, from, 16);
      else if (W_ == 32) read_numbers(row, from, 32);
      else read_numbers(row, from, W_);
    }
  }

 private:
  static constexpr int64_t kFront = 16, kSpareRows = 3;
  static int64_t length(int64_t W, int64_t radius) {
    const int64_t n = round_up(W + radius, 16);
    return n % 1024 == 0 ? n + 16 : n;  // else all rows would fall into the same few sets of the cache
  }
  const int64_t H_, W_, radius_, stride_;
  float* first_;
};

// What a lane holds beyond the last column must not be counted: zero there.
template <class L>
PDECNN_INLINE typename L::V inside(const typename L::V& v, int64_t columns) {
  static const int32_t kept[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  if (columns >= L::count) return v;
  typedef int32_t Mask __attribute__((vector_size(sizeof(typename L::V))));
  Mask mask;
  std::memcpy(&mask, kept + 16 - columns, sizeof mask);
  return mask ? v : typename L::V{};
}

// Some or all lanes from and to memory.
template <class L>
PDECNN_INLINE typename L::V load_columns(const float* from, int64_t columns) {
  if (columns >= L::count) return L::load(from);
  typename L::V v{};
  std::memcpy(&v, from, size_t(columns) * sizeof(float));
  return v;
}
template <class L>
PDECNN_INLINE void store_columns(float* to, const typename L::V& v, int64_t columns) {
  if (columns >= L::count) L::store(to, v);
  else std::memcpy(to, &v, size_t(columns) * sizeof(float));
}

// The sum of all lanes, by halves; through registers, for what is read from memory in parts is kept there.
PDECNN_INLINE float sum_of_lanes(const Lanes<float, 16>::V& v) { return (v[0] + v[2]) + (v[1] + v[3]); }
PDECNN_INLINE float sum_of_lanes(const Lanes<float, 32>::V& v) {
  return sum_of_lanes(__builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7));
}
PDECNN_INLINE float sum_of_lanes(const Lanes<float, 64>::V& v) {
  return sum_of_lanes(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
}

// Adds what was summed in single precision to double, before it loses digits.
template <class L>
PDECNN_INLINE void settle(typename L::V& part, double& total) {
  total += double(sum_of_lanes(part));
  part = typename L::V{};
}

// Rows whose vectors may be added up in single precision: sums are in registers for so long.
template <class L, int K>
int64_t strip(int64_t W) {
  constexpr int64_t kVectors = 64;
  return max<int64_t>(kRows<K>, kVectors * L::count / round_up(W, L::count) / kRows<K> * kRows<K>);
}

// The stencils of one channel: out[m] = start[m] + sum of taps[m] over the window.
template <int K, int M>
struct Stencils {
  float taps[M][K * K], start[M];

  // R rows of M maps at one vector of columns; `window` is where the first tap of the first row is.
  template <class L, int R>
  PDECNN_INLINE void apply(const float* window, int64_t stride, typename L::V (&out)[R][M]) const {
    for (int r = 0; r < R; ++r)
      for (int m = 0; m < M; ++m) out[r][m] = L::all(start[m]);
    for (int p = 0; p < K; ++p)
      for (int q = 0; q < K; ++q) {
        typename L::V tap[M];
        for (int m = 0; m < M; ++m) tap[m] = L::all(taps[m][p * K + q]);
        for (int r = 0; r < R; ++r) {
          const auto value = L::load(window + (r + p) * stride + q);
          for (int m = 0; m < M; ++m) out[r][m] += tap[m] * value;
        }
      }
  }

  // Calls f(y, x, values) for every row y in [begin, end) and vector of columns at x; begin is a multiple of the rows.
  template <class L, class F>
  PDECNN_INLINE void each(const Frame& frame, int64_t begin, int64_t end, const F& f) const {
    constexpr int R = kRows<K>;
    const int64_t stride = frame.stride(), W = frame.columns();
    for (int64_t y = begin; y < end; y += R)
      for (int64_t x = 0; x < W; x += L::count) {
        typename L::V values[R][M];
        apply<L, R>(frame.data() + y * stride + x, stride, values);
        for (int r = 0; r < R; ++r)
          if (r == 0 || y + r < end) f(y + r, x, values[r]);
      }
  }
};

// Values that were computed before, as planes; it stands in for the stencils.
template <int M>
struct KnownValues {
  const float* planes[M];

  template <class L, class F>
  PDECNN_INLINE void each(const Frame& frame, int64_t begin, int64_t end, const F& f) const {
    const int64_t W = frame.columns();
    for (int64_t y = begin; y < end; ++y)
      for (int64_t x = 0; x < W; x += L::count) {
        typename L::V values[M];
        for (int m = 0; m < M; ++m) values[m] = load_columns<L>(planes[m] + y * W + x, W - x);
        f(y, x, values);
      }
  }
};

}  // namespace depthwise_norm
}  // namespace PDECNN_NS
