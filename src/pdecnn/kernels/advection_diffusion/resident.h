// Periodic planes of the usual widths that stay in cache whole: the rows above and below are kept in registers while a
// step goes down the plane. All else is left to the march.
#pragma once

#include "march.h"

#if defined(__GNUC__)
#include "vector_row.h"

namespace PDECNN_NS {

// Feature maps of images of 32, 28 and 224 pixels. A build with sanitizers takes one of each kind: columns that do not fill
// their vector, that do, and that take two.
#if defined(PDECNN_FEW_WIDTHS)
#define PDECNN_FOR_WIDTHS(DO) DO(7) DO(8) DO(28)
#else
#define PDECNN_FOR_WIDTHS(DO) DO(7) DO(8) DO(14) DO(16) DO(28) DO(32) DO(56) DO(112)
#endif

constexpr int64_t kForwardBytes = 1 << 19, kBackwardBytes = 3 << 19;

// Plane (n, c), and how far in n and c the one is that follows it.
struct PlaneIndex {
  int64_t n, c, next_n, next_c;
};

// One plane of a map: columns side by side, or one number for all of them, or nothing. While it is read, the plane that
// follows is called into cache.
template <class T, class A, int W>
struct Plane {
  using R = VectorRow<A, W>;
  T* data;
  int64_t sy, sx, ahead;

  Plane(const Map& m, const PlaneIndex& i)
      : data(m.data == nullptr ? nullptr : static_cast<T*>(m.data) + i.n * m.sn + i.c * m.sc), sy(m.sy), sx(m.sx),
        ahead(i.next_n * m.sn + i.next_c * m.sc) {}
  explicit operator bool() const { return data != nullptr; }
  PDECNN_INLINE R read(int64_t y) const {
    const T* p = data + y * sy;
    if (sx == 0) return R::all(widen(*p));
    for (int64_t i = 0; i < int64_t(W * sizeof(T)); i += 64)
      __builtin_prefetch(reinterpret_cast<const char*>(p + ahead) + i, 0, 2);
    return R::read(p);
  }
  PDECNN_INLINE void write(int64_t y, const R& row) const { row.write(data + y * sy); }
};

template <class T, class A, int W>
struct PlaneFields {
  Plane<const T, A, W> h, h_prev, u, v, D_x, D_y, f;
  PlaneFields(const Problem& p, const PlaneIndex& i)
      : h(p.h, i), h_prev(p.h_prev, i), u(p.u, i), v(p.v, i), D_x(p.D_x, i), D_y(p.D_y, i), f(p.f, i) {}
};

// Coefficients a, b, c+, c-, d+, d-, s, r of a row, side by side; `kRows` of them are kept.
template <class A, int W, int kRows>
struct ResidentRow {
  using R = VectorRow<A, W>;
  static constexpr int kStride = kRows * R::kStride;

  static void make(const Scheme<A>& q, const R& u, const R& v, const R& v_plus, const R& v_minus, const R& D_x, const R& D_y,
                   const R& f, A* to) {
    const R A_x = q.A_x * u, A_y = q.A_y * v, B_x = q.B2_x * D_x, B_y = q.B2_y * D_y;
    const R r = A(1) / (A(1) + B_x + B_y);
    const R divergence = q.A_x * (u.next() - u.previous()) + q.A_y * (v_plus - v_minus);
    ((A(1) - B_x - B_y) * r).store(to);
    (A(-1) * divergence * r).store(to + R::kStride);
    ((B_x - A_x) * r).store(to + 2 * R::kStride);
    ((B_x + A_x) * r).store(to + 3 * R::kStride);
    ((B_y - A_y) * r).store(to + 4 * R::kStride);
    ((B_y + A_y) * r).store(to + 5 * R::kStride);
    (q.dt2 * f * r).store(to + 6 * R::kStride);
    if constexpr (kRows > 7) r.store(to + 7 * R::kStride);
  }
};

// Reads a plane: its coefficients, h^0 and h^{-1}.
template <class T, class A, int W, int kRows>
void read_plane(const Scheme<A>& q, const PlaneFields<T, A, W>& in, int64_t H, A* coefficients, A* h, A* h_prev) {
  using R = VectorRow<A, W>;
  R v_minus = in.v.read(H - 1), v = in.v.read(0);
  for (int64_t y = 0; y < H; ++y) {
    const R v_plus = in.v.read(y + 1 < H ? y + 1 : 0), row = in.h.read(y);
    row.store(h + y * R::kStride);
    (in.h_prev ? in.h_prev.read(y) : row).store(h_prev + y * R::kStride);
    ResidentRow<A, W, kRows>::make(q, in.u.read(y), v, v_plus, v_minus, in.D_x.read(y), in.D_y.read(y),
                                   in.f ? in.f.read(y) : R::all(0), coefficients + y * ResidentRow<A, W, kRows>::kStride);
    v_minus = v, v = v_plus;
  }
}

// One step of a whole plane; `next` may be the memory of h_prev.
template <class A, int W, int kRows>
void step_plane(const A* coefficients, const A* h, const A* h_prev, A* next, int64_t H) {
  using R = VectorRow<A, W>;
  R minus = R::load(h + (H - 1) * R::kStride), centre = R::load(h);
  for (int64_t y = 0; y < H; ++y) {
    const R plus = R::load(h + (y + 1 < H ? y + 1 : 0) * R::kStride), xp = centre.next(), xm = centre.previous();
    const A* c = coefficients + y * ResidentRow<A, W, kRows>::kStride;
    auto k = [&](int j) { return R::load(c + j * R::kStride); };
    ((k(0) * R::load(h_prev + y * R::kStride) + k(6)) + (k(1) * centre + k(2) * xp) + (k(3) * xm + k(4) * plus) + k(5) * minus)
        .store(next + y * R::kStride);
    minus = centre, centre = plus;
  }
}

template <class T, int W>
void solve_plane(const ForwardCall& call, const Scheme<arithmetic_t<T>>& q, const PlaneIndex& plane, arithmetic_t<T>* scratch) {
  using A = arithmetic_t<T>;
  using R = VectorRow<A, W>;
  const Problem& p = call.problem;
  const int64_t size = p.H * R::kStride;
  A* states[2] = {scratch + 7 * size, scratch + 8 * size};
  read_plane<T, A, W, 7>(q, PlaneFields<T, A, W>(p, plane), p.H, scratch, states[0], states[1]);
  for (int64_t k = 1; k <= p.K; ++k)
    step_plane<A, W, 7>(scratch, states[(k - 1) % 2], states[k % 2], states[k % 2], p.H);
  const Plane<T, A, W> out(call.out, plane);
  for (int64_t y = 0; y < p.H; ++y) out.write(y, R::load(states[p.K % 2] + y * R::kStride));
}

// One adjoint step of a whole plane, from the gradients G of h^{k+1} and `older` of h^{k+2} (none in the first) to that of h^k.
template <class A, int W, bool kFirst>
void adjoint_plane(const A* coefficients, const A* G, const A* older, A* to, int64_t H) {
  using R = VectorRow<A, W>;
  using C = ResidentRow<A, W, 8>;
  auto k = [&](int64_t y, int j) { return R::load(coefficients + y * C::kStride + j * R::kStride); };
  auto row = [&](const A* from, int64_t y) { return R::load(from + y * R::kStride); };
  R G_y = row(G, 0), pushed = k(H - 1, 4) * row(G, H - 1);
  for (int64_t y = 0; y < H; ++y) {
    const int64_t up = y + 1 < H ? y + 1 : 0;
    const R G_yp = row(G, up);
    R sum = k(y, 1) * G_y + (k(y, 2) * G_y).previous() + (k(y, 3) * G_y).next() + pushed + k(up, 5) * G_yp;
    if (!kFirst) sum = sum + k(y, 0) * row(older, y);
    sum.store(to + y * R::kStride);
    pushed = k(y, 4) * G_y;
    G_y = G_yp;
  }
}

// Sums over the steps of one row, as `Sums` in scheme.h.
template <class A, int W>
struct RowSums {
  using R = VectorRow<A, W>;
  R G = R::all(0), Gh = G, A_x = G, A_y = G, B_x = G, B_y = G;

  // h(k) and gradient(k) are the planes of h^k and of its gradient.
  template <class States, class Gradients>
  RowSums(int64_t y, int64_t H, int64_t K, const States& h, const Gradients& gradient) {
    const int64_t here = y * R::kStride, up = (y + 1 < H ? y + 1 : 0) * R::kStride, down = (y > 0 ? y - 1 : H - 1) * R::kStride;
    R next = R::load(h(K) + here), state = R::load(h(K - 1) + here);
    for (int64_t k = K - 1; k >= 0; --k) {
      const R g = R::load(gradient(k + 1) + here), previous = R::load(h(k - 1) + here), both = previous + next;
      const R xp = state.next(), xm = state.previous(), yp = R::load(h(k) + up), ym = R::load(h(k) + down);
      G = G + g;
      Gh = Gh + g * state;
      A_x = A_x + g * (xm - xp);
      A_y = A_y + g * (ym - yp);
      B_x = B_x + g * (xp + xm - both);
      B_y = B_y + g * (yp + ym - both);
      next = state, state = previous;
    }
  }
};

template <class T, class A, int W>
struct PlaneGradient {
  Plane<T, A, W> map;
  double* sum;
  PlaneGradient(const Gradient& g, const Problem& p, const PlaneIndex& i)
      : map(g.map, i), sum(g.sums == nullptr ? nullptr : static_cast<double*>(g.sums) + i.n * p.C + i.c) {
    if (sum != nullptr) *sum = 0;
  }
  explicit operator bool() const { return bool(map) || sum != nullptr; }
  PDECNN_INLINE void write(int64_t y, const VectorRow<A, W>& row) const {
    if (map) map.write(y, row);
    else *sum += row.sum();
  }
};

// Planes of scratch that solve_plane_back takes: coefficients, three sums, the states from h^{-1} on, and their gradients.
inline int64_t backward_planes(int64_t K) { return 8 + 3 + (K + 2) + (K + 1); }

template <class T, int W>
void solve_plane_back(const BackwardCall& call, const Scheme<arithmetic_t<T>>& q, const PlaneIndex& plane,
                      arithmetic_t<T>* scratch) {
  using A = arithmetic_t<T>;
  using R = VectorRow<A, W>;
  using C = ResidentRow<A, W, 8>;
  const Problem& p = call.problem;
  const int64_t H = p.H, K = p.K, size = H * R::kStride;
  A *coefficients = scratch, *sums = scratch + 8 * size, *states = sums + 3 * size, *gradients = states + (K + 2) * size;
  auto h = [&](int64_t k) { return states + (k + 1) * size; };
  auto G = [&](int64_t k) { return gradients + k * size; };

  const PlaneFields<T, A, W> in(p, plane);
  read_plane<T, A, W, 8>(q, in, H, coefficients, h(0), h(-1));
  for (int64_t k = 1; k <= K; ++k) step_plane<A, W, 8>(coefficients, h(k - 1), h(k - 2), h(k), H);
  const Plane<const T, A, W> grad(call.grad_out, plane);
  for (int64_t y = 0; y < H; ++y) grad.read(y).store(G(K) + y * R::kStride);
  adjoint_plane<A, W, true>(coefficients, G(K), nullptr, G(K - 1), H);
  for (int64_t k = K - 2; k >= 0; --k) adjoint_plane<A, W, false>(coefficients, G(k + 1), G(k + 2), G(k), H);

  const PlaneGradient<T, A, W> to_h(call.h, p, plane), to_h_prev(call.h_prev, p, plane), to_u(call.u, p, plane),
      to_v(call.v, p, plane), to_D_x(call.D_x, p, plane), to_D_y(call.D_y, p, plane), to_f(call.f, p, plane);
  auto k = [&](int64_t y, int j) { return R::load(coefficients + y * C::kStride + j * R::kStride); };
  auto sum = [&](int64_t y, int j) { return sums + (3 * y + j) * R::kStride; };
  for (int64_t y = 0; y < H; ++y) {
    const RowSums<A, W> s(y, H, K, h, G);
    const R r = k(y, 7), G_prev = k(y, 0) * R::load(G(1) + y * R::kStride), G_0 = R::load(G(0) + y * R::kStride);
    if (to_h) to_h.write(y, in.h_prev ? G_0 : G_0 + G_prev);
    if (to_h_prev) to_h_prev.write(y, G_prev);
    if (to_D_x) to_D_x.write(y, q.B2_x * r * s.B_x);
    if (to_D_y) to_D_y.write(y, q.B2_y * r * s.B_y);
    if (to_f) to_f.write(y, q.dt2 * r * s.G);
    (r * s.Gh).store(sum(y, 0));
    (r * s.A_x).store(sum(y, 1));
    (r * s.A_y).store(sum(y, 2));
  }
  auto P = [&](int64_t y) { return R::load(sum(y, 0)); };
  for (int64_t y = 0; y < H; ++y) {
    if (to_u) to_u.write(y, q.A_x * (R::load(sum(y, 1)) - P(y).previous() + P(y).next()));
    if (to_v) to_v.write(y, q.A_y * (R::load(sum(y, 2)) - P(y > 0 ? y - 1 : H - 1) + P(y + 1 < H ? y + 1 : 0)));
  }
}

// Runs `solve(plane, scratch)` over all planes with one scratch of `numbers` per thread.
template <class A, class Solve>
Status for_each_plane(const Problem& p, int64_t numbers, const Solve& solve) {
  int32_t failed = 0;
  const int64_t grain = max<int64_t>(1, 32768 / (p.H * p.W * p.K));
  const Status status = parallel_for(p.N * p.C, grain, [&](int64_t begin, int64_t end) {
    const Arena arena(size_t(numbers) * sizeof(A));
    if (!arena.ok()) {
      failed = 1;
      return;
    }
    PlaneIndex i{begin / p.C, begin % p.C, 0, 0};
    for (; begin < end; ++begin) {
      const bool wraps = i.c + 1 == p.C, last = begin + 1 == end;
      i.next_n = !last && wraps ? 1 : 0;
      i.next_c = last ? 0 : wraps ? 1 - p.C : 1;
      solve(i, reinterpret_cast<A*>(arena.data()));
      i.n += i.next_n, i.c += i.next_c;
    }
  });
  return failed ? kOutOfMemory : status;
}

// Whether the columns of a map are side by side or all one.
inline bool has_rows(const Map& m) { return m.data == nullptr || m.sx == 1 || m.sx == 0; }
inline bool has_rows(const Problem& p) {
  return p.boundary == kPeriodic && has_rows(p.h) && has_rows(p.h_prev) && has_rows(p.u) && has_rows(p.v) &&
         has_rows(p.D_x) && has_rows(p.D_y) && has_rows(p.f);
}

template <class T>
bool resident_forward(const ForwardCall& call, Status& status) {
  using A = arithmetic_t<T>;
  const Problem& p = call.problem;
  if (!has_rows(p) || call.out.sx != 1) return false;
  const Scheme<A> q(kPeriodic, p.dt, p.dx, p.dy);
#define PDECNN_WIDTH(width)                                                                                   \
  if (p.W == width) {                                                                                         \
    const int64_t numbers = 9 * p.H * VectorRow<A, width>::kStride;                                           \
    if (numbers * int64_t(sizeof(A)) > kForwardBytes) return false;                                           \
    status = for_each_plane<A>(p, numbers, [&](const PlaneIndex& i, A* to) { solve_plane<T, width>(call, q, i, to); }); \
    return true; \
  }
  PDECNN_FOR_WIDTHS(PDECNN_WIDTH)
#undef PDECNN_WIDTH
  return false;
}

template <class T>
bool resident_backward(const BackwardCall& call, Status& status) {
  using A = arithmetic_t<T>;
  const Problem& p = call.problem;
  const Gradient* gradients[] = {&call.h, &call.h_prev, &call.u, &call.v, &call.D_x, &call.D_y, &call.f};
  for (const Gradient* g : gradients)
    if (g->map.data != nullptr && g->map.sx != 1) return false;
  if (!has_rows(p) || !has_rows(call.grad_out)) return false;
  const Scheme<A> q(kPeriodic, p.dt, p.dx, p.dy);
#define PDECNN_WIDTH(width)                                                                                        \
  if (p.W == width) {                                                                                              \
    const int64_t numbers = backward_planes(p.K) * p.H * VectorRow<A, width>::kStride;                     \
    if (numbers * int64_t(sizeof(A)) > kBackwardBytes) return false;                                               \
    status = for_each_plane<A>(p, numbers, [&](const PlaneIndex& i, A* to) { solve_plane_back<T, width>(call, q, i, to); }); \
    return true;                                                                                                   \
  }
  PDECNN_FOR_WIDTHS(PDECNN_WIDTH)
#undef PDECNN_WIDTH
  return false;
}

}  // namespace PDECNN_NS

#else
namespace PDECNN_NS {
template <class T>
bool resident_forward(const ForwardCall&, Status&) { return false; }
template <class T>
bool resident_backward(const BackwardCall&, Status&) { return false; }
}  // namespace PDECNN_NS
#endif
