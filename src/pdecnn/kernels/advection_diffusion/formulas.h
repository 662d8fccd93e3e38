// The Du Fort-Frankel scheme, its adjoint and its gradients: their one text. README.md derives what is computed here.
//
// V is a number, where a loop goes over a row, or a vector of numbers, where registers hold a row.
#pragma once

#include "rows.h"

namespace PDECNN_NS {

// Calls f with each of the fields of problems, or with each of their gradients.
template <class F, class... Owner>
PDECNN_INLINE void each_field(const F& f, Owner&... of) {
  f(of.h...), f(of.h_prev...), f(of.u...), f(of.v...), f(of.D_x...), f(of.D_y...), f(of.f...);
}
// The same for the maps that calls read, and for what they write.
template <class Call>
inline constexpr bool is_backward = false;
template <>
inline constexpr bool is_backward<BackwardCall> = true;
template <>
inline constexpr bool is_backward<const BackwardCall> = true;

template <class F, class Call>
void each_input(const F& f, Call& call) {
  each_field(f, call.problem);
  if constexpr (is_backward<Call>) f(call.grad_out);
}
template <class F, class Call, class... More>
void each_result(const F& f, Call& call, More&... more) {
  if constexpr (is_backward<Call>) each_field(f, call, more...);
  else f(call.out, more.out...);
}

template <class A>
struct Scheme {
  Boundary boundary;
  A dt2;         // 2 dt
  A A_x, A_y;    // dt/dx, dt/dy: times u, v
  A B2_x, B2_y;  // 2 dt/dx^2, 2 dt/dy^2: times D_x, D_y

  Scheme(int64_t boundary, double dt, double dx, double dy)
      : boundary(Boundary(boundary)), dt2(A(2 * dt)), A_x(A(dt / dx)), A_y(A(dt / dy)), B2_x(A(2 * dt / (dx * dx))),
        B2_y(A(2 * dt / (dy * dy))) {}
  explicit Scheme(const Problem& p) : Scheme(p.boundary, p.dt, p.dx, p.dy) {}

  bool periodic() const { return boundary == kPeriodic; }
  // Mirror signs beyond a border that is not periodic, for the velocity through it and for the state.
  A velocity_parity() const { return boundary == kNeumann ? A(-1) : A(1); }
  A state_parity() const { return boundary == kNeumann ? A(1) : A(0); }
};

// h_next = a h_prev + b h + c_plus h[x+1] + c_minus h[x-1] + d_plus h[y+1] + d_minus h[y-1] + s;   r = 1 / L
template <class V>
struct Weights {
  V a, b, c_plus, c_minus, d_plus, d_minus, s, r;
};

// A field and its neighbours.
template <class V>
struct Around {
  V h, xp, xm, yp, ym;
};

template <class A, class V>
PDECNN_INLINE Weights<V> weights(const Scheme<A>& q, const V& u, const V& u_xp, const V& u_xm, const V& v, const V& v_yp,
                                 const V& v_ym, const V& D_x, const V& D_y, const V& f) {
  const V A_x = q.A_x * u, A_y = q.A_y * v, B_x = q.B2_x * D_x, B_y = q.B2_y * D_y;
  const V r = A(1) / (A(1) + B_x + B_y), divergence = q.A_x * (u_xp - u_xm) + q.A_y * (v_yp - v_ym);
  return {(A(1) - B_x - B_y) * r, -divergence * r, (B_x - A_x) * r, (B_x + A_x) * r,
          (B_y - A_y) * r,        (B_y + A_y) * r, q.dt2 * f * r,   r};
}

template <class V>
PDECNN_INLINE V step(const Weights<V>& w, const V& h_prev, const Around<V>& n) {
  return (w.a * h_prev + w.s) + (w.b * n.h + w.c_plus * n.xp) + (w.c_minus * n.xm + w.d_plus * n.yp) + w.d_minus * n.ym;
}

// The gradient of h^k, from those of h^{k+2} and h^{k+1}, the latter here and as its neighbours pass it on: each is the
// gradient there times the weight that it gave to this pixel.
template <class V>
PDECNN_INLINE V adjoint_step(const V& a, const V& older, const V& b, const V& G, const V& xm, const V& xp, const V& ym,
                             const V& yp) {
  return (a * older + b * G) + (xm + xp) + (ym + yp);
}

// Sums over the steps that the gradients of the fields are made from, with G the gradient of h^{k+1}.
template <class V>
struct Sums {
  V G, Gh, A_x, A_y, B_x, B_y;

  PDECNN_INLINE void add(const V& g, const Around<V>& n, const V& h_prev, const V& h_next) {
    const V both = h_prev + h_next;
    G += g;
    Gh += g * n.h;
    A_x += g * (n.xm - n.xp);
    A_y += g * (n.ym - n.yp);
    B_x += g * (n.xp + n.xm - both);
    B_y += g * (n.yp + n.ym - both);
  }
};

// The gradients of the fields, from the sums and from P = r Gh of the neighbours: of u and v with A_x and A_y of the scheme,
// of D_x, D_y and f with B2_x, B2_y and dt2.
template <class A, class V>
PDECNN_INLINE V gradient_of_velocity(A scale, const V& r, const V& sum, const V& P_minus, const V& P_plus) {
  return scale * (r * sum - P_minus + P_plus);
}
template <class A, class V>
PDECNN_INLINE V gradient_of_term(A scale, const V& r, const V& sum) {
  return scale * r * sum;
}

}  // namespace PDECNN_NS
