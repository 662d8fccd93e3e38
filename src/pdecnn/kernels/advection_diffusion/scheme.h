// The Du Fort-Frankel scheme and its adjoint, one row at a time. README.md derives what is computed here.
#pragma once

#include "rows.h"

namespace PDECNN_NS {

template <class A>
struct Scheme {
  Boundary boundary;
  A dt2;         // 2 dt
  A A_x, A_y;    // dt/dx, dt/dy: times u, v
  A B2_x, B2_y;  // 2 dt/dx^2, 2 dt/dy^2: times D_x, D_y

  Scheme(Boundary boundary, double dt, double dx, double dy)
      : boundary(boundary), dt2(A(2 * dt)), A_x(A(dt / dx)), A_y(A(dt / dy)), B2_x(A(2 * dt / (dx * dx))),
        B2_y(A(2 * dt / (dy * dy))) {}

  bool periodic() const { return boundary == kPeriodic; }
  // Mirror signs beyond a border that is not periodic, for the velocity through it and for the state.
  A velocity_parity() const { return boundary == kNeumann ? A(-1) : A(1); }
  A state_parity() const { return boundary == kNeumann ? A(1) : A(0); }

  void velocity_halos(A* u, const RowLayout& l) const {
    if (periodic()) wrap_halos(u, l);
    else mirror_halos(u, l, velocity_parity());
  }
  void state_halos(A* h, const RowLayout& l) const {
    if (periodic()) wrap_halos(h, l);
    else mirror_halos(h, l, state_parity());
  }
};

// The fields of one row, as they come: what the coefficients are made from.
template <class A>
struct Fields {
  A *u, *v, *v_minus, *v_plus, *D_x, *D_y, *f;
};

// h_next = a h_prev + b h + c_plus h[x+1] + c_minus h[x-1] + d_plus h[y+1] + d_minus h[y-1] + s;   r = 1 / L
template <class A>
struct Coefficients {
  A *a, *b, *c_plus, *c_minus, *d_plus, *d_minus, *s, *r;
  static constexpr int kRows = 8;

  static Coefficients at(A* p, int64_t stride) {
    return {p, p + stride, p + 2 * stride, p + 3 * stride, p + 4 * stride, p + 5 * stride, p + 6 * stride, p + 7 * stride};
  }
};

// What is beyond a border that is not periodic is a multiple of what is inside: its weight moves to the centre.
template <class A>
void fold_edge(A* b, A* weight, const RowLayout& l, int64_t first, int64_t last, A parity) {
  for (int64_t s = 0; s < l.segments; ++s)
    for (int64_t i = l.pixel0(s) + first * l.lanes; i < l.pixel0(s) + last * l.lanes; ++i) {
      b[i] += parity * weight[i];
      weight[i] = 0;
    }
}

// `adjoint`: the transposed scheme reads c+- from neighbours too, so their halos must hold what is beyond the border.
template <class A>
void coefficients_row(const Scheme<A>& q, const RowLayout& l, const Fields<A>& in, const Coefficients<A>& out, int64_t y,
                      int64_t H, bool adjoint) {
  const int64_t n = l.length, e = l.lanes;
  const A *PDECNN_RESTRICT u = in.u, *PDECNN_RESTRICT v = in.v, *PDECNN_RESTRICT v_minus = in.v_minus,
                          *PDECNN_RESTRICT v_plus = in.v_plus, *PDECNN_RESTRICT D_x = in.D_x, *PDECNN_RESTRICT D_y = in.D_y,
                          *PDECNN_RESTRICT f = in.f;
  A *PDECNN_RESTRICT a = out.a, *PDECNN_RESTRICT b = out.b, *PDECNN_RESTRICT cp = out.c_plus,
                    *PDECNN_RESTRICT cm = out.c_minus, *PDECNN_RESTRICT dp = out.d_plus, *PDECNN_RESTRICT dm = out.d_minus,
                    *PDECNN_RESTRICT s = out.s, *PDECNN_RESTRICT r = out.r;
  const A kx = q.A_x, ky = q.A_y, bx = q.B2_x, by = q.B2_y, dt2 = q.dt2;
  PDECNN_VECTORIZE
  for (int64_t i = 0; i < n; ++i) {
    const A Ax = kx * u[i], Ay = ky * v[i], Bx = bx * D_x[i], By = by * D_y[i];
    const A R = A(1) / (A(1) + Bx + By);
    const A divergence = kx * (u[i + e] - u[i - e]) + ky * (v_plus[i] - v_minus[i]);
    r[i] = R;
    a[i] = (A(1) - Bx - By) * R;
    b[i] = -divergence * R;
    cp[i] = (Bx - Ax) * R;
    cm[i] = (Bx + Ax) * R;
    dp[i] = (By - Ay) * R;
    dm[i] = (By + Ay) * R;
    s[i] = dt2 * f[i] * R;
  }
  if (q.periodic()) {
    if (adjoint) {
      wrap_halos(out.c_plus, l);
      wrap_halos(out.c_minus, l);
    }
    return;
  }
  const A parity = q.state_parity();
  fold_edge(out.b, out.c_minus, l, 0, 1, parity);
  fold_edge(out.b, out.c_plus, l, l.W - 1, l.W, parity);
  if (y == 0) fold_edge(out.b, out.d_minus, l, 0, l.W, parity);
  if (y == H - 1) fold_edge(out.b, out.d_plus, l, 0, l.W, parity);
  A* rows[] = {out.a, out.b, out.c_plus, out.c_minus, out.d_plus, out.d_minus, out.s};
  for (A* row : rows) zero_halos(row, l);
}

// `next` holds h^{k-1} on entry and h^{k+1} on return.
template <class A>
void step_row(int64_t n, int64_t e, const Coefficients<A>& k, A* next_, const A* h_, const A* h_yp_, const A* h_ym_) {
  const A *PDECNN_RESTRICT a = k.a, *PDECNN_RESTRICT b = k.b, *PDECNN_RESTRICT cp = k.c_plus,
                          *PDECNN_RESTRICT cm = k.c_minus, *PDECNN_RESTRICT dp = k.d_plus, *PDECNN_RESTRICT dm = k.d_minus,
                          *PDECNN_RESTRICT s = k.s;
  const A *h = h_, *h_yp = h_yp_, *h_ym = h_ym_;
  A* PDECNN_RESTRICT next = next_;
  PDECNN_VECTORIZE
  for (int64_t i = 0; i < n; ++i)
    next[i] = (a[i] * next[i] + s[i]) + (b[i] * h[i] + cp[i] * h[i + e]) + (cm[i] * h[i - e] + dp[i] * h_yp[i]) +
              dm[i] * h_ym[i];
}

// The states around one row that a step read and wrote.
template <class A>
struct Stencil {
  const A *h, *h_yp, *h_ym, *h_prev, *h_next;
};

// Sums over the steps that the gradients of the fields are made from, with G the gradient of h^{k+1}:
//   G, G h, G (h[x-1] - h[x+1]), G (h[y-1] - h[y+1]), G (h[x+1] + h[x-1] - h_prev - h_next), the same in y.
template <class A>
struct Sums {
  A *G, *Gh, *A_x, *A_y, *B_x, *B_y;
  static constexpr int kRows = 6;

  static Sums at(A* p, int64_t stride) {
    return {p, p + stride, p + 2 * stride, p + 3 * stride, p + 4 * stride, p + 5 * stride};
  }
};

// One step of the adjoint at one row: adds to the sums, and turns the gradient of h^{k+2}, held by `older` on entry, into
// the gradient of h^k. `up` and `down` are the coefficients of rows y+1 and y-1. The last step (k = 0) leaves r * Gh in Gh.
template <class A, bool kFirst, bool kLast>
void adjoint_row(int64_t n, int64_t e, const Coefficients<A>& k, const A* dm_yp_, const A* dp_ym_, A* older_, const A* G_,
                 const A* G_yp_, const A* G_ym_, const Stencil<A>& t, const Sums<A>& sums) {
  const A *PDECNN_RESTRICT a = k.a, *PDECNN_RESTRICT b = k.b, *PDECNN_RESTRICT cp = k.c_plus,
                          *PDECNN_RESTRICT cm = k.c_minus, *PDECNN_RESTRICT r = k.r;
  const A *dm_yp = dm_yp_, *dp_ym = dp_ym_, *G = G_, *G_yp = G_yp_, *G_ym = G_ym_;
  const A *h = t.h, *h_yp = t.h_yp, *h_ym = t.h_ym, *h_prev = t.h_prev, *h_next = t.h_next;
  A *PDECNN_RESTRICT older = older_, *PDECNN_RESTRICT sG = sums.G, *PDECNN_RESTRICT sGh = sums.Gh,
                    *PDECNN_RESTRICT sAx = sums.A_x, *PDECNN_RESTRICT sAy = sums.A_y, *PDECNN_RESTRICT sBx = sums.B_x,
                    *PDECNN_RESTRICT sBy = sums.B_y;
  PDECNN_VECTORIZE
  for (int64_t i = 0; i < n; ++i) {
    const A g = G[i], xp = h[i + e], xm = h[i - e], yp = h_yp[i], ym = h_ym[i], both = h_prev[i] + h_next[i];
    const A zero = A(0);
    const A Gh = (kFirst ? zero : sGh[i]) + g * h[i];
    sG[i] = (kFirst ? zero : sG[i]) + g;
    sGh[i] = kLast ? Gh * r[i] : Gh;
    sAx[i] = (kFirst ? zero : sAx[i]) + g * (xm - xp);
    sAy[i] = (kFirst ? zero : sAy[i]) + g * (ym - yp);
    sBx[i] = (kFirst ? zero : sBx[i]) + g * (xp + xm - both);
    sBy[i] = (kFirst ? zero : sBy[i]) + g * (yp + ym - both);
    older[i] = (a[i] * (kFirst ? zero : older[i]) + b[i] * g) + (cp[i - e] * G[i - e] + cm[i + e] * G[i + e]) +
               (dp_ym[i] * G_ym[i] + dm_yp[i] * G_yp[i]);
  }
}

}  // namespace PDECNN_NS
