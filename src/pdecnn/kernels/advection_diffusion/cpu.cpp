// K steps of advection-diffusion and their adjoint on the CPU. The C ABI is at the end; op.py calls it.
#include "adjoint.h"
#include "resident.h"

namespace PDECNN_NS {

// Numbers of a row that are worked on together: enough to pay for the row's set-up, few enough to stay in cache.
constexpr int64_t kForwardRow = 256, kBackwardRow = 192;

// Reads the fields of a group row by row, in the order 0, 1, 2, ...
template <class T, class A>
class Reader {
 public:
  Reader(const Problem& p, const Scheme<A>& q, const Group& g, const RowLayout& l, const Kept<A>& kept, int64_t first)
      : p_(p), q_(q), g_(g), l_(l) {
    for (int i = 0; i < 8; ++i) row_[i] = kept.extra(first + i);
    for (int64_t i = -l.front; i < l.length; ++i) row_[7][i] = 0;
    if (p.f.data == nullptr) f_ = row_[7];
  }

  Fields<A> operator()(int64_t y, A* h, A* h_prev) {
    load_row<T>(h, p_.h, g_, l_, y);
    if (p_.h_prev.data == nullptr) copy_row(h_prev, h, l_.length);
    else load_row<T>(h_prev, p_.h_prev, g_, l_, y);
    load_row<T>(row_[0], p_.u, g_, l_, y);
    q_.velocity_halos(row_[0], l_);
    load_row<T>(row_[1], p_.D_x, g_, l_, y);
    load_row<T>(row_[2], p_.D_y, g_, l_, y);
    if (f_ != row_[7]) load_row<T>(f_ = row_[3], p_.f, g_, l_, y);
    if (y == 0) {
      load_v(row_[4], -1);
      load_v(row_[5], 0);
    } else {  // what was v[y] is v[y-1] now
      A* oldest = row_[4];
      row_[4] = row_[5], row_[5] = row_[6], row_[6] = oldest;
    }
    load_v(row_[6], y + 1);
    return {row_[0], row_[5], row_[4], row_[6], row_[1], row_[2], f_};
  }

 private:
  void load_v(A* row, int64_t y) const {
    const int64_t H = p_.H;
    if (y >= 0 && y < H) return load_row<T>(row, p_.v, g_, l_, y);
    if (q_.periodic()) return load_row<T>(row, p_.v, g_, l_, y < 0 ? H - 1 : 0);
    load_row<T>(row, p_.v, g_, l_, y < 0 ? 0 : H - 1);
    if (q_.velocity_parity() < 0)
      for (int64_t i = 0; i < l_.length; ++i) row[i] = -row[i];
  }

  const Problem& p_;
  const Scheme<A>& q_;
  const Group& g_;
  const RowLayout& l_;
  A* row_[8];  // u, D_x, D_y, f, v[y-1], v[y], v[y+1], zeros
  A* f_ = nullptr;
};

// Runs work(group, layout, kept) for every group, with one set of kept rows per thread and layout.
template <class A, class Keep, class Work>
Status for_each_group(const Problem& p, int64_t row, const Keep& keep, const Work& work) {
  if (p.N * p.C == 0) return kOk;
  const Grouping grouping(p.N, p.C, p.W, p.interleaved != 0, row);
  const int64_t elements = grouping.segments * grouping.lanes * p.H * p.W * p.K;
  int32_t failed = 0;
  auto body = [&](int64_t begin, int64_t end) {
    while (begin < end) {
      Group g;
      const RowLayout l = grouping.group(begin, p.W, sizeof(A), g);
      const Kept<A> kept = keep(l);
      if (!kept.ok()) {
        failed = 1;
        return;
      }
      for (; begin < end; ++begin) {
        const RowLayout next = grouping.group(begin, p.W, sizeof(A), g);
        if (next.segments != l.segments || next.lanes != l.lanes) break;
        work(g, l, kept);
      }
    }
  };
  const Status status = parallel_for(grouping.count, max<int64_t>(1, 65536 / elements), body);
  return failed ? kOutOfMemory : status;
}

template <class T>
Status forward(const ForwardCall& call) {
  using A = arithmetic_t<T>;
  const Problem& p = call.problem;
  Status status;
  if (resident_forward<T>(call, status)) return status;
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
  if (resident_backward<T>(call, status)) return status;
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
