// Solves a plane in cache: the rows above and below are kept in registers while a step goes down the plane.
#include "resident.h"

#if defined(__GNUC__)
#include "vector_row.h"

namespace PDECNN_NS {
namespace {

// The two gradients that need P of the neighbours wait for it, as r Gh, r A_x and r A_y.
constexpr int kWeights = 7, kWaiting = 3;

template <int W>
struct Resident {
  using R = VectorRow<float, W>;
  using V = typename R::V;
  static constexpr int64_t n = R::kStride;

  // One plane of a map. While it is read, the plane that follows is called into cache.
  struct Plane {
    float* data;
    int64_t sy, sx, ahead;

    Plane(const Map& m, const PlaneIndex& i)
        : data(m.data == nullptr ? nullptr : static_cast<float*>(m.data) + i.n * m.sn + i.c * m.sc), sy(m.sy), sx(m.sx),
          ahead(i.next_n * m.sn + i.next_c * m.sc) {}
    explicit operator bool() const { return data != nullptr; }
    PDECNN_INLINE R read(int64_t y) const {
      const float* p = data + y * sy;
      if (sx == 0) return R::all(*p);
      for (int64_t i = 0; i < W; i += 16) __builtin_prefetch(p + ahead + i, 0, 2);
      return R::read(p);
    }
  };

  // One gradient: a plane, or the sum over it, or neither.
  struct PlaneGradient {
    Plane map;
    double* sum;
    PlaneGradient(const Gradient& g, const Problem& p, const PlaneIndex& i)
        : map(g.map, i), sum(g.sums == nullptr ? nullptr : static_cast<double*>(g.sums) + i.n * p.C + i.c) {
      if (sum != nullptr) *sum = 0;
    }
    PDECNN_INLINE void write(int64_t y, const R& row) const {
      if (map) row.write(map.data + y * map.sy);
      else if (sum != nullptr) *sum += row.sum();
    }
  };

  static Weights<V> PDECNN_INLINE weights_at(const float* w, int i) {
    auto at = [&](int j) { return R::vector(w + j * n, i); };
    return {at(0), at(1), at(2), at(3), at(4), at(5), at(6), V{}};
  }

  // Reads a plane: its weights, h^0 and h^{-1}; r too if it is wanted.
  static void read(const Scheme<float>& q, const Problem& p, const PlaneIndex& plane, float* to, float* r, float* h,
                   float* h_prev) {
    const Plane in_h(p.h, plane), in_h_prev(p.h_prev, plane), in_u(p.u, plane), in_v(p.v, plane), in_D_x(p.D_x, plane),
        in_D_y(p.D_y, plane), in_f(p.f, plane);
    R v_ym = in_v.read(p.H - 1), v = in_v.read(0);
    for (int64_t y = 0; y < p.H; ++y, to += kWeights * n) {
      const R v_yp = in_v.read(y + 1 < p.H ? y + 1 : 0), row = in_h.read(y), u = in_u.read(y), u_xp = u.next(),
              u_xm = u.previous();
      const R D_x = in_D_x.read(y), D_y = in_D_y.read(y), f = in_f ? in_f.read(y) : R::all(0);
      row.store(h + y * n);
      (in_h_prev ? in_h_prev.read(y) : row).store(h_prev + y * n);
      PDECNN_UNROLL
      for (int i = 0; i < R::kVectors; ++i) {
        const Weights<V> w = weights(q, u.v[i], u_xp.v[i], u_xm.v[i], v.v[i], v_yp.v[i], v_ym.v[i], D_x.v[i], D_y.v[i], f.v[i]);
        R::put(to, i, w.a), R::put(to + n, i, w.b), R::put(to + 2 * n, i, w.c_plus), R::put(to + 3 * n, i, w.c_minus);
        R::put(to + 4 * n, i, w.d_plus), R::put(to + 5 * n, i, w.d_minus), R::put(to + 6 * n, i, w.s);
        if (r != nullptr) R::put(r + y * n, i, w.r);
      }
      v_ym = v, v = v_yp;
    }
  }

  // One step of a whole plane; `next` may be the memory of h_prev.
  static void step_plane(const float* w, const float* h, const float* h_prev, float* next, int64_t H) {
    R ym = R::load(h + (H - 1) * n), centre = R::load(h);
    for (int64_t y = 0; y < H; ++y) {
      const R yp = R::load(h + (y + 1 < H ? y + 1 : 0) * n), xp = centre.next(), xm = centre.previous();
      PDECNN_UNROLL
      for (int i = 0; i < R::kVectors; ++i) {
        const Around<V> around{centre.v[i], xp.v[i], xm.v[i], yp.v[i], ym.v[i]};
        R::put(next + y * n, i, step(weights_at(w + y * kWeights * n, i), R::vector(h_prev + y * n, i), around));
      }
      ym = centre, centre = yp;
    }
  }

  static void forward(const ForwardCall& call, const Scheme<float>& q, const PlaneIndex& plane, float* scratch) {
    const Problem& p = call.problem;
    const int64_t size = p.H * n;
    float* states[2] = {scratch + kWeights * size, scratch + (kWeights + 1) * size};
    read(q, p, plane, scratch, nullptr, states[0], states[1]);
    for (int64_t k = 1; k <= p.K; ++k) step_plane(scratch, states[(k - 1) % 2], states[k % 2], states[k % 2], p.H);
    const Plane out(call.out, plane);
    for (int64_t y = 0; y < p.H; ++y) R::load(states[p.K % 2] + y * n).write(out.data + y * out.sy);
  }

  // One adjoint step of a whole plane, from G, the gradient of h^{k+1}, and `older`, that of h^{k+2}, whose rows are
  // `older_row` apart (0: it is one row of zeros).
  static void adjoint_plane(const float* w, const float* G, const float* older, int64_t older_row, float* to, int64_t H) {
    auto row = [&](int64_t y, int j) { return R::load(w + (y * kWeights + j) * n); };
    R G_y = R::load(G), ym = row(H - 1, 4) * R::load(G + (H - 1) * n);
    for (int64_t y = 0; y < H; ++y) {
      const int64_t up = y + 1 < H ? y + 1 : 0;
      const R G_yp = R::load(G + up * n), xm = (row(y, 2) * G_y).previous(), xp = (row(y, 3) * G_y).next();
      PDECNN_UNROLL
      for (int i = 0; i < R::kVectors; ++i) {
        auto at = [&](int64_t y, int j) { return R::vector(w + (y * kWeights + j) * n, i); };
        const V yp = at(up, 5) * G_yp.v[i], old = R::vector(older + y * older_row, i);
        R::put(to + y * n, i, adjoint_step<V>(at(y, 0), old, at(y, 1), G_y.v[i], xm.v[i], xp.v[i], ym.v[i], yp));
        ym.v[i] = at(y, 4) * G_y.v[i];
      }
      G_y = G_yp;
    }
  }

  static void backward(const BackwardCall& call, const Scheme<float>& q, const PlaneIndex& plane, float* scratch) {
    const Problem& p = call.problem;
    const int64_t H = p.H, K = p.K, size = H * n;
    float *zeros = scratch, *w = zeros + n, *r = w + kWeights * size, *waiting = r + size, *states = waiting + kWaiting * size;
    auto h = [&](int64_t k) { return states + (k + 1) * size; };
    auto G = [&](int64_t k) { return states + (K + 2 + k) * size; };

    R::all(0).store(zeros);
    read(q, p, plane, w, r, h(0), h(-1));
    for (int64_t k = 1; k <= K; ++k) step_plane(w, h(k - 1), h(k - 2), h(k), H);
    const Plane grad(call.grad_out, plane);
    for (int64_t y = 0; y < H; ++y) grad.read(y).store(G(K) + y * n);
    for (int64_t k = K - 1; k >= 0; --k) adjoint_plane(w, G(k + 1), k + 2 <= K ? G(k + 2) : zeros, k + 2 <= K ? n : 0, G(k), H);

    const PlaneGradient to_h(call.h, p, plane), to_h_prev(call.h_prev, p, plane), to_u(call.u, p, plane),
        to_v(call.v, p, plane), to_D_x(call.D_x, p, plane), to_D_y(call.D_y, p, plane), to_f(call.f, p, plane);
    const bool one_start = p.h_prev.data == nullptr;
    for (int64_t y = 0; y < H; ++y) {
      const int64_t here = y * n, up = (y + 1 < H ? y + 1 : 0) * n, down = (y > 0 ? y - 1 : H - 1) * n;
      R of_h, of_h_prev, of_D_x, of_D_y, of_f;
      for (int i = 0; i < R::kVectors; ++i) {
        Sums<V> s{};
        for (int64_t k = K - 1; k >= 0; --k) {
          const float* h_k = h(k);
          const Around<V> around{R::vector(h_k + here, i), R::next(h_k + here, i), R::previous(h_k + here, i),
                                 R::vector(h_k + up, i), R::vector(h_k + down, i)};
          s.add(R::vector(G(k + 1) + here, i), around, R::vector(h(k - 1) + here, i), R::vector(h(k + 1) + here, i));
        }
        const V R_i = R::vector(r + here, i);
        of_h_prev.v[i] = R::vector(w + y * kWeights * n, i) * R::vector(G(1) + here, i);
        of_h.v[i] = R::vector(G(0) + here, i) + (one_start ? of_h_prev.v[i] : V{});
        of_D_x.v[i] = gradient_of_term(q.B2_x, R_i, s.B_x);
        of_D_y.v[i] = gradient_of_term(q.B2_y, R_i, s.B_y);
        of_f.v[i] = gradient_of_term(q.dt2, R_i, s.G);
        R::put(waiting + here, i, R_i * s.Gh);
        R::put(waiting + size + here, i, s.A_x);
        R::put(waiting + 2 * size + here, i, s.A_y);
      }
      to_h.write(y, of_h), to_h_prev.write(y, of_h_prev), to_D_x.write(y, of_D_x), to_D_y.write(y, of_D_y), to_f.write(y, of_f);
    }
    for (int64_t y = 0; y < H; ++y) {
      const int64_t here = y * n, up = (y + 1 < H ? y + 1 : 0) * n, down = (y > 0 ? y - 1 : H - 1) * n;
      R of_u, of_v;
      for (int i = 0; i < R::kVectors; ++i) {
        const V R_i = R::vector(r + here, i), A_x = R::vector(waiting + size + here, i),
                A_y = R::vector(waiting + 2 * size + here, i);
        of_u.v[i] = gradient_of_velocity(q.A_x, R_i, A_x, R::previous(waiting + here, i), R::next(waiting + here, i));
        of_v.v[i] = gradient_of_velocity(q.A_y, R_i, A_y, R::vector(waiting + down, i), R::vector(waiting + up, i));
      }
      to_u.write(y, of_u), to_v.write(y, of_v);
    }
  }

  static constexpr PlaneSolver kSolver{n, forward, backward};
};

}  // namespace

// Feature maps of images of 32, 28 and 224 pixels. A build with sanitizers takes one of each kind: columns that do not fill
// their vector, that do, and that take two.
const PlaneSolver* plane_solver(int64_t W) {
  switch (W) {
    case 7: return &Resident<7>::kSolver;
    case 8: return &Resident<8>::kSolver;
    case 28: return &Resident<28>::kSolver;
#if !defined(PDECNN_FEW_WIDTHS)
    case 14: return &Resident<14>::kSolver;
    case 16: return &Resident<16>::kSolver;
    case 32: return &Resident<32>::kSolver;
    case 56: return &Resident<56>::kSolver;
    case 112: return &Resident<112>::kSolver;
#endif
  }
  return nullptr;
}

}  // namespace PDECNN_NS
#else
const PDECNN_NS::PlaneSolver* PDECNN_NS::plane_solver(int64_t) { return nullptr; }
#endif
