// The Du Fort-Frankel scheme, its adjoint and its gradients: their one text. README.md derives what is computed here.
//
// V is a number, where a loop goes over a row, or a vector of numbers, where registers hold a row.
#pragma once

#include "rows.h"

namespace PDECNN_NS {

// Calls f with each of the fields of problems, or with each of their gradients.
template <class F, class... Owner>
PDECNN_INLINE void each_field(const F& f, Owner&... of) {
  f(of.h...), f(of.h_prev...), f(of.u...), f(of.v...), f(of.w...), f(of.D_x...), f(of.D_y...), f(of.D_z...), f(of.f...);
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
  A dt2;      // 2 dt
  A A_x[3];   // dt/dx, dt/dy, dt/dz: times u, v, w
  A B2_x[3];  // 2 dt/dx^2, ...: times D_x, D_y, D_z

  Scheme(int64_t boundary, double dt, double dx, double dy, double dz = 1)
      : boundary(Boundary(boundary)), dt2(A(2 * dt)), A_x{A(dt / dx), A(dt / dy), A(dt / dz)},
        B2_x{A(2 * dt / (dx * dx)), A(2 * dt / (dy * dy)), A(2 * dt / (dz * dz))} {}
  explicit Scheme(const Problem& p) : Scheme(p.boundary, p.dt, p.dx, p.dy, p.dz) {}

  bool periodic() const { return boundary == kPeriodic; }
  // Mirror signs beyond a border that is not periodic, for the velocity through it and for the state.
  A velocity_parity() const { return boundary == kNeumann ? A(-1) : A(1); }
  A state_parity() const { return boundary == kNeumann ? A(1) : A(0); }
};

// The coefficients along one axis: the velocity here and at the neighbours, and the diffusivity.
template <class V>
struct Along {
  V u, u_plus, u_minus, D;
};

// h_next = a h_prev + b h + s + the sum over the axes of  plus h[+1] + minus h[-1];   r = 1 / L
template <int kAxes, class V>
struct Weights {
  V a, b, s, r, plus[kAxes], minus[kAxes];
};

// A field and its neighbours.
template <int kAxes, class V>
struct Around {
  V h, plus[kAxes], minus[kAxes];
};

template <int kAxes, class A, class V>
PDECNN_INLINE Weights<kAxes, V> weights(const Scheme<A>& q, const Along<V> (&axes)[kAxes], const V& f) {
  V A_x[kAxes], B_x[kAxes], B, divergence;
  for (int i = 0; i < kAxes; ++i) {
    const Along<V>& c = axes[i];
    A_x[i] = q.A_x[i] * c.u, B_x[i] = q.B2_x[i] * c.D;
    const V change = q.A_x[i] * (c.u_plus - c.u_minus);
    B = i == 0 ? B_x[i] : B + B_x[i], divergence = i == 0 ? change : divergence + change;
  }
  const V r = A(1) / (A(1) + B);
  Weights<kAxes, V> w{(A(1) - B) * r, -divergence * r, q.dt2 * f * r, r, {}, {}};
  for (int i = 0; i < kAxes; ++i) w.plus[i] = (B_x[i] - A_x[i]) * r, w.minus[i] = (B_x[i] + A_x[i]) * r;
  return w;
}

// One step, and one step of the adjoint: the gradient of h^k from those of h^{k+2} and h^{k+1}, with the weights that the
// neighbours gave to this pixel.
template <int kAxes, class V>
PDECNN_INLINE V step(const Weights<kAxes, V>& w, const V& h_prev, const Around<kAxes, V>& n) {
  V sum = (w.a * h_prev + w.s) + w.b * n.h;
  for (int i = 0; i < kAxes; ++i) sum += w.plus[i] * n.plus[i] + w.minus[i] * n.minus[i];
  return sum;
}

// Sums over the steps that the gradients of the fields are made from, with G the gradient of h^{k+1}.
template <int kAxes, class V>
struct Sums {
  V G, Gh, A_x[kAxes], B_x[kAxes];

  PDECNN_INLINE void add(const V& g, const Around<kAxes, V>& n, const V& h_prev, const V& h_next) {
    const V both = h_prev + h_next;
    G += g;
    Gh += g * n.h;
    for (int i = 0; i < kAxes; ++i) {
      A_x[i] += g * (n.minus[i] - n.plus[i]);
      B_x[i] += g * (n.plus[i] + n.minus[i] - both);
    }
  }
};

// The gradients of the fields, from the sums and from P = r Gh of the neighbours: of a velocity with A_x of the scheme, of a
// diffusivity and f with B2_x and dt2.
template <class A, class V>
PDECNN_INLINE V gradient_of_velocity(A scale, const V& r, const V& sum, const V& P_minus, const V& P_plus) {
  return scale * (r * sum - P_minus + P_plus);
}
template <class A, class V>
PDECNN_INLINE V gradient_of_term(A scale, const V& r, const V& sum) {
  return scale * r * sum;
}

}  // namespace PDECNN_NS
