// Filters planes in the real Fourier or the cosine basis: four small matrix products per plane, all of them in cache.
// README.md derives the basis, the coupling of its sine and cosine parts, and the adjoint.
#include "abi.h"
#include "product.h"

namespace PDECNN_NS {
namespace spectral_filter {

// Coefficient i of an axis of n: cosines of frequencies 0 ... n/2, then sines of 1 ... (n-1)/2.
struct Axis {
  int64_t n;
  int64_t half() const { return n / 2; }
  int64_t sines() const { return (n - 1) / 2; }
  bool is_sine(int64_t i) const { return i > half(); }
  int64_t frequency(int64_t i) const { return is_sine(i) ? i - half() : i; }
  bool has_partner(int64_t i) const { return frequency(i) >= 1 && frequency(i) <= sines(); }
  int64_t partner(int64_t i) const { return is_sine(i) ? i - half() : i + half(); }
  int64_t negated(int64_t p) const { return p == 0 ? 0 : n - p; }
};

template <class T>
class Filter {
 public:
  using A = arithmetic_t<T>;

  explicit Filter(const Problem& p) : p_(p), y_{p.H}, x_{p.W}, size_(p.H * p.stride), arena_(size_t(size_) * sizeof(A) * 8) {
    for (int i = 0; i < 8; ++i) buffer_[i] = reinterpret_cast<A*>(arena_.data()) + i * size_;
  }
  bool ok() const { return arena_.ok(); }

  // Prepares the factors of channel c.
  void channel(int64_t c) {
    const A* g = static_cast<const A*>(p_.g) + c * p_.H * p_.W;
    A *even = buffer_[0], *odd = buffer_[1];
    for (int64_t i = 0; i < p_.H; ++i)
      for (int64_t j = 0; j < p_.W; ++j) {
        const int64_t at = i * p_.stride + j;
        if (p_.mirrored) {
          even[at] = g[i * p_.W + j];
          continue;
        }
        const int64_t p = y_.frequency(i), q = x_.frequency(j), p_neg = y_.negated(p), q_neg = x_.negated(q);
        const A same = g[p * p_.W + q] + g[p_neg * p_.W + q_neg], other = g[p * p_.W + q_neg] + g[p_neg * p_.W + q];
        even[at] = A(0.25) * (same + other);
        odd[at] = A(0.25) * (y_.is_sine(i) == x_.is_sine(j) ? other - same : same - other);
      }
  }

  void clear_sums() {
    std::memset(buffer_[2], 0, size_t(size_) * sizeof(A));
    std::memset(buffer_[3], 0, size_t(size_) * sizeof(A));
  }

  void forward(const T* v, T* out) {
    A* coefficients = buffer_[4];
    analyse(v, coefficients);
    multiply(coefficients, buffer_[5]);
    synthesise(buffer_[5], out);
  }

  // grad_v of one plane; adds what it tells about the factors to the sums.
  void backward(const T* grad, const T* v, T* grad_v) {
    A *G = buffer_[4], *V = buffer_[7];
    analyse(v, V);
    analyse(grad, G);
    accumulate(G, V);
    multiply(G, buffer_[5]);
    synthesise(buffer_[5], grad_v);
  }

  void write_grad_g(int64_t c) const {
    A* grad = static_cast<A*>(grad_g) + c * p_.H * p_.W;
    const A *even = buffer_[2], *odd = buffer_[3];
    std::memset(grad, 0, size_t(p_.H * p_.W) * sizeof(A));
    for (int64_t i = 0; i < p_.H; ++i)
      for (int64_t j = 0; j < p_.W; ++j) {
        const int64_t at = i * p_.stride + j;
        if (p_.mirrored) {
          grad[i * p_.W + j] = even[at];
          continue;
        }
        const int64_t p = y_.frequency(i), q = x_.frequency(j), p_neg = y_.negated(p), q_neg = x_.negated(q);
        const A e = A(0.25) * even[at], coupled = y_.has_partner(i) && x_.has_partner(j) ? A(0.25) * odd[at] : A(0);
        const A o = y_.is_sine(i) == x_.is_sine(j) ? -coupled : coupled;
        grad[p * p_.W + q] += e + o;
        grad[p_neg * p_.W + q_neg] += e + o;
        grad[p * p_.W + q_neg] += e - o;
        grad[p_neg * p_.W + q] += e - o;
      }
  }

  void* grad_g = nullptr;

 private:
  void times(const A* a, int64_t a_stride, const A* b, A* c, int64_t rows, int64_t inner) const {
    constexpr int narrow_bytes = kVectorBytes > 32 ? 32 : kVectorBytes;
    if (p_.stride * int64_t(sizeof(A)) % kVectorBytes == 0)
      product<Lanes<A, kVectorBytes>>(a, a_stride, b, p_.stride, c, p_.stride, rows, inner, p_.stride);
    else product<Lanes<A, narrow_bytes>>(a, a_stride, b, p_.stride, c, p_.stride, rows, inner, p_.stride);
  }

  // The matrix `rows` of an axis takes sums of pixels j and n - j to cosines, and their differences to sines: two
  // products of half the size. The cosine basis has no such blocks here and takes the whole product.
  void times_by_parity(const void* matrix, const A* from, A* to) const {
    const A* m = static_cast<const A*>(matrix);
    const int64_t cosines = y_.half() + 1, sines = y_.sines();
    if (p_.mirrored) return times(m, p_.H, from, to, p_.H, p_.H);
    times(m, p_.H, from, to, cosines, cosines);
    if (sines > 0) times(sine_block(m), p_.H, from + cosines * p_.stride, to + cosines * p_.stride, sines, sines);
  }
  // Sines of the frequencies 1 ... at the pixels 1 ...: below the cosines, or (of the inverse) beside them.
  const A* sine_block(const A* m) const {
    const int64_t cosines = y_.half() + 1;
    return m == p_.rows ? m + cosines * p_.H + 1 : m + p_.H + cosines;
  }

  // from row j and row n - j to their sum and difference, or back; rows without a partner stay.
  template <bool Back>
  void fold(const A* PDECNN_RESTRICT from, A* PDECNN_RESTRICT to) const {
    const int64_t n = p_.H, w = p_.stride, half = y_.half();
    std::memcpy(to, from, size_t(w) * sizeof(A));
    if (n % 2 == 0) std::memcpy(to + half * w, from + half * w, size_t(w) * sizeof(A));
    for (int64_t j = 1; j <= y_.sines(); ++j) {
      const int64_t mirror = (n - j) * w, sine = (half + j) * w;
      const A *a = from + j * w, *b = from + (Back ? sine : mirror);
      A *sum = to + j * w, *difference = to + (Back ? mirror : sine);
      PDECNN_VECTORIZE
      for (int64_t i = 0; i < w; ++i) {
        const A x = a[i], y = b[i];
        sum[i] = x + y;
        difference[i] = x - y;
      }
    }
  }

  // coefficients = rows v columns
  void analyse(const T* v, A* coefficients) const {
    const A* plane = read(v);
    if (!p_.mirrored) {
      fold<false>(plane, coefficients);
      plane = coefficients;
    }
    times_by_parity(p_.rows, plane, buffer_[6]);
    times(buffer_[6], p_.stride, static_cast<const A*>(p_.columns), coefficients, p_.H, p_.W);
  }

  void synthesise(A* coefficients, T* out) const {
    times_by_parity(p_.rows_inverse, coefficients, buffer_[6]);
    const A* plane = buffer_[6];
    if (!p_.mirrored) {
      fold<true>(plane, coefficients);
      plane = coefficients;
    }
    A* result = in_place() ? reinterpret_cast<A*>(out) : buffer_[4];
    times(plane, p_.stride, static_cast<const A*>(p_.columns_inverse), result, p_.H, p_.W);
    if (!in_place())
      for (int64_t i = 0; i < p_.H; ++i) copy_numbers(out + i * p_.W, result + i * p_.stride, p_.W);
  }

  // Planes whose rows are whole vectors are read and written where they are.
  bool in_place() const { return sizeof(T) == sizeof(A) && p_.W == p_.stride; }

  const A* read(const T* v) const {
    if (in_place()) return reinterpret_cast<const A*>(v);
    for (int64_t i = 0; i < p_.H; ++i) copy_numbers(buffer_[5] + i * p_.stride, v + i * p_.W, p_.W);
    return buffer_[5];
  }

  // to = even * from + odd * (from at the sine-cosine partner of both axes)
  void multiply(const A* PDECNN_RESTRICT from, A* PDECNN_RESTRICT to) const {
    const A *PDECNN_RESTRICT even = buffer_[0], *PDECNN_RESTRICT odd = buffer_[1];
    PDECNN_VECTORIZE
    for (int64_t i = 0; i < size_; ++i) to[i] = even[i] * from[i];
    couple([&](int64_t at, int64_t partner) { to[at] += odd[at] * from[partner]; });
  }

  void accumulate(const A* PDECNN_RESTRICT G, const A* PDECNN_RESTRICT V) const {
    A *PDECNN_RESTRICT even = buffer_[2], *PDECNN_RESTRICT odd = buffer_[3];
    PDECNN_VECTORIZE
    for (int64_t i = 0; i < size_; ++i) even[i] += G[i] * V[i];
    couple([&](int64_t at, int64_t partner) { odd[at] += G[at] * V[partner]; });
  }

  // Visits every coefficient that has a partner along both axes. If W is even it also visits the columns of frequency
  // 0 and W/2 as if they were partners, which makes runs of W/2: there `odd` is zero, and its sum is not used.
  template <class F>
  PDECNN_INLINE void couple(const F& visit) const {
    if (p_.mirrored) return;
    const int64_t half = x_.half(), first = x_.n % 2;
    for (int64_t i = 1; i < p_.H; ++i) {
      if (!y_.has_partner(i)) continue;
      const int64_t row = i * p_.stride, other = y_.partner(i) * p_.stride;
      if (p_.W == 8) couple_rows(row, other, 4, 0, visit);
      else if (p_.W == 16) couple_rows(row, other, 8, 0, visit);
      else couple_rows(row, other, half, first, visit);
    }
  }

  template <class F>
  static PDECNN_INLINE void couple_rows(int64_t row, int64_t other, int64_t half, int64_t first, const F& visit) {
    PDECNN_VECTORIZE
    for (int64_t j = 0; j < half; ++j) visit(row + first + j, other + first + half + j);
    PDECNN_VECTORIZE
    for (int64_t j = 0; j < half; ++j) visit(row + first + half + j, other + first + j);
  }

  const Problem& p_;
  const Axis y_, x_;
  const int64_t size_;
  Arena arena_;
  A* buffer_[8];  // even, odd, their sums, and four planes
};

template <class T>
Status forward(const ForwardCall& call) {
  const Problem& p = call.problem;
  const int64_t plane = p.H * p.W;
  int32_t failed = 0;
  const Status status = parallel_for(p.N * p.C, max<int64_t>(1, 16384 / plane), [&](int64_t begin, int64_t end) {
    Filter<T> filter(p);
    if (!filter.ok()) {
      failed = 1;
      return;
    }
    for (int64_t i = begin; i < end; ++i) {  // all samples of a channel one after another
      const int64_t c = i / p.N, n = i % p.N, at = (n * p.C + c) * plane;
      if (i == begin || n == 0) filter.channel(c);
      filter.forward(static_cast<const T*>(call.v) + at, static_cast<T*>(call.out) + at);
    }
  });
  return failed ? kOutOfMemory : status;
}

template <class T>
Status backward(const BackwardCall& call) {
  const Problem& p = call.problem;
  const int64_t plane = p.H * p.W;
  int32_t failed = 0;
  const Status status = parallel_for(p.C, 1, [&](int64_t begin, int64_t end) {
    Filter<T> filter(p);
    if (!filter.ok()) {
      failed = 1;
      return;
    }
    filter.grad_g = call.grad_g;
    for (int64_t c = begin; c < end; ++c) {
      filter.channel(c);
      filter.clear_sums();
      for (int64_t n = 0; n < p.N; ++n) {
        const int64_t at = (n * p.C + c) * plane;
        filter.backward(static_cast<const T*>(call.grad) + at, static_cast<const T*>(call.v) + at,
                        static_cast<T*>(call.grad_v) + at);
      }
      filter.write_grad_g(c);
    }
  });
  return failed ? kOutOfMemory : status;
}

}  // namespace spectral_filter
}  // namespace PDECNN_NS

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_spectral_filter_forward)(const void* call) {
  using namespace PDECNN_NS::spectral_filter;
  const auto& c = *static_cast<const ForwardCall*>(call);
  return PDECNN_NS::by_dtype(c.problem.dtype, [&](auto t) { return forward<decltype(t)>(c); });
}

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_spectral_filter_backward)(const void* call) {
  using namespace PDECNN_NS::spectral_filter;
  const auto& c = *static_cast<const BackwardCall*>(call);
  return PDECNN_NS::by_dtype(c.problem.dtype, [&](auto t) { return backward<decltype(t)>(c); });
}
