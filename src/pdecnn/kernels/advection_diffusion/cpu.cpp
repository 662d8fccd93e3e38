// K steps of advection-diffusion and their adjoint on the CPU. The C ABI is at the end; op.py calls it.
#include "adjoint.h"
#include "interleaved.h"
#include "reader.h"

namespace PDECNN_NS {

template <class T>
Status forward(const ForwardCall& call) {
  using A = arithmetic_t<T>;
  const Problem& p = call.problem;
  Status status;
  if (resident_forward<T>(call, status) || interleaved_forward<T>(call, status)) return status;
  const Scheme<A> q(Boundary(p.boundary), p.dt, p.dx, p.dy);
  auto keep = [&](const RowLayout& l) { return ForwardRows<A>::keep(l, p.H, p.K); };
  return for_each_group<A>(p, kForwardRow, keep, [&](const Group& g, const RowLayout& l, const Kept<A>& kept) {
    Reader<T, A> read(p, q, g, l, kept, 0);
    march(q, l, p.H, p.K, kept, read, [&](int64_t y, const A* h) { store_row<T>(h, call.out, g, l, y); });
  });
}

// Writes rows of one gradient, or adds them up plane by plane.
template <class T, class A>
class GradientWriter {
 public:
  GradientWriter(const Gradient& to, const Problem& p, const Group& g, const RowLayout& l) : to_(to), p_(p), g_(g), l_(l) {
    if (to.sums != nullptr)
      for (int64_t i = 0; i < l.segments * l.lanes; ++i) sums()[plane(i)] = 0;
  }
  bool wanted() const { return to_.map.data != nullptr || to_.sums != nullptr; }
  void operator()(int64_t y, const A* row) const {
    if (to_.map.data != nullptr) store_row<T>(row, to_.map, g_, l_, y);
    if (to_.sums == nullptr) return;
    for (int64_t s = 0; s < l_.segments; ++s)
      for (int64_t c = 0; c < l_.lanes; ++c) {
        const A* q = row + l_.pixel0(s) + c;
        double sum = 0;
        for (int64_t x = 0; x < l_.W; ++x) sum += double(q[x * l_.lanes]);
        sums()[plane(s * l_.lanes + c)] += sum;
      }
  }

 private:
  double* sums() const { return static_cast<double*>(to_.sums); }
  int64_t plane(int64_t i) const {
    const int64_t s = i / l_.lanes;
    return g_.n[s] * p_.C + g_.c[s] + i % l_.lanes;
  }
  const Gradient& to_;
  const Problem& p_;
  const Group& g_;
  const RowLayout& l_;
};

template <class T>
Status backward(const BackwardCall& call) {
  using A = arithmetic_t<T>;
  const Problem& p = call.problem;
  Status status;
  if (resident_backward<T>(call, status) || interleaved_backward<T>(call, status)) return status;
  const Scheme<A> q(Boundary(p.boundary), p.dt, p.dx, p.dy);
  auto keep = [&](const RowLayout& l) { return BackwardRows<A>{p.K}.keep(l, p.H); };
  return for_each_group<A>(p, kBackwardRow, keep, [&](const Group& g, const RowLayout& l, const Kept<A>& kept) {
    Reader<T, A> read(p, q, g, l, kept, 0);
    const GradientWriter<T, A> to_h(call.h, p, g, l), to_h_prev(call.h_prev, p, g, l), to_u(call.u, p, g, l),
        to_v(call.v, p, g, l), to_D_x(call.D_x, p, g, l), to_D_y(call.D_y, p, g, l), to_f(call.f, p, g, l);
    A* result = kept.extra(BackwardRows<A>::kResult);
    const int64_t n = l.length, e = l.lanes;
    auto read_grad = [&](int64_t y, A* row) { load_row<T>(row, call.grad_out, g, l, y); };
    auto emit = [&](const GradientWriter<T, A>& to, int64_t y, auto&& value) {
      if (!to.wanted()) return;
      PDECNN_VECTORIZE
      for (int64_t i = 0; i < n; ++i) result[i] = value(i);
      to(y, result);
    };
    march_back(q, l, p.H, p.K, kept, read, read_grad, [&](int64_t y, const AdjointRow<A>& r) {
      const A *a = r.k.a, *R = r.k.r, *G0 = r.G0, *G1 = r.G1, *P = r.sums.Gh, *P_yp = r.P_yp, *P_ym = r.P_ym;
      const A *sG = r.sums.G, *sAx = r.sums.A_x, *sAy = r.sums.A_y, *sBx = r.sums.B_x, *sBy = r.sums.B_y;
      if (p.h_prev.data == nullptr) emit(to_h, y, [&](int64_t i) { return G0[i] + a[i] * G1[i]; });
      else emit(to_h, y, [&](int64_t i) { return G0[i]; });
      emit(to_h_prev, y, [&](int64_t i) { return a[i] * G1[i]; });
      emit(to_u, y, [&](int64_t i) { return q.A_x * (R[i] * sAx[i] - P[i - e] + P[i + e]); });
      emit(to_v, y, [&](int64_t i) { return q.A_y * (R[i] * sAy[i] - P_ym[i] + P_yp[i]); });
      emit(to_D_x, y, [&](int64_t i) { return q.B2_x * R[i] * sBx[i]; });
      emit(to_D_y, y, [&](int64_t i) { return q.B2_y * R[i] * sBy[i]; });
      emit(to_f, y, [&](int64_t i) { return q.dt2 * R[i] * sG[i]; });
    });
  });
}

template <class F>
Status by_dtype(int64_t dtype, const F& f) {
  switch (dtype) {
    case kFloat32: return f(float{});
    case kFloat64: return f(double{});
    case kBFloat16: return f(bfloat16{});
  }
  return kBadArgument;
}

}  // namespace PDECNN_NS

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_advection_diffusion_forward)(const void* call) {
  using namespace PDECNN_NS;
  const auto& c = *static_cast<const ForwardCall*>(call);
  return by_dtype(c.problem.dtype, [&](auto t) { return forward<decltype(t)>(c); });
}

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_advection_diffusion_backward)(const void* call) {
  using namespace PDECNN_NS;
  const auto& c = *static_cast<const BackwardCall*>(call);
  return by_dtype(c.problem.dtype, [&](auto t) { return backward<decltype(t)>(c); });
}
