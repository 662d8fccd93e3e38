// The march of the backward pass: the trajectory is computed again under a first wave, and a second wave runs the adjoint
// behind it, so that what is held of a plane is the rows under the two waves: no memory is kept between the passes.
//
// Level j of the adjoint wave is the gradient G of h^{K-j}. Level 0 (the incoming gradient) is read at row y at time y + K;
// level j follows at time y + K + j, when all states around row y are there. One time later the sums of rows y-1, y and
// y+1 are complete and the gradients of the fields are written.
#pragma once

#include "march.h"

namespace PDECNN_NS {

template <class A>
struct BackwardRows {
  int64_t K;
  static constexpr int kSums = Coefficients<A>::kRows, kG = kSums + Sums<A>::kRows, kStates = kG + 2;
  static constexpr int kFields = 8, kZero = kFields, kNegative = kZero + 1, kResult = kNegative + 1, kExtra = kResult + 1;

  int64_t state(int64_t k) const { return kStates + k + 1; }  // k = -1, 0, ..., K
  Kept<A> keep(const RowLayout& l, int64_t H) const {
    return Kept<A>(l, Slots(H, 2 * K + 2, 2 * K + 3), H, state(K) + 1, kExtra);
  }
};

// Row y of all that a gradient is made from.
template <class A>
struct AdjointRow {
  Coefficients<A> k;
  Sums<A> sums;
  const A *P_yp, *P_ym;  // r * Gh of rows y+1 and y-1
  const A *G0, *G1;      // gradients of h^0 and h^1
};

// `read` as in march; `read_grad(y, row)` brings row y of the incoming gradient; `write(y, AdjointRow, scratch)` takes the
// result.
template <class A, class Read, class ReadGrad, class Write>
void march_back(const Scheme<A>& q, const RowLayout& l, int64_t H, int64_t K, const Kept<A>& kept, Read&& read,
                ReadGrad&& read_grad, Write&& write) {
  using R = BackwardRows<A>;
  const R rows{K};
  A* zero = kept.extra(R::kZero);
  const int64_t n = l.length, e = l.lanes;
  auto coefficients = [&](int64_t y) { return Coefficients<A>::at(kept.at(y, 0), l.stride); };
  auto sums = [&](int64_t y) { return Sums<A>::at(kept.at(y, R::kSums), l.stride); };
  auto gradient_halos = [&](A* G) {
    if (q.periodic()) wrap_halos(G, l);
    else zero_halos(G, l);
  };

  for (int64_t t = 0; t < H + 4 * K + 2; ++t) {
    if (t < H) {
      A *h = kept.at(t, rows.state(0)), *h_prev = kept.at(t, rows.state(-1));
      const Fields<A> fields = read(t, h, h_prev);
      coefficients_row(q, l, fields, coefficients(t), t, H, true);
      q.state_halos(h, l);
    }
    for (int64_t k = max<int64_t>(1, (t - H + 2) / 2); k <= min(K, t / 2); ++k) {
      const int64_t y = actual_row(t - k, H);
      A *plus, *minus, *next = kept.at(y, rows.state(k));
      rows_beside(q, y, H, [&](int64_t i) { return kept.at(i, rows.state(k - 1)); }, zero, plus, minus);
      copy_row(next, kept.at(y, rows.state(k - 2)), n);
      step_row(n, e, coefficients(y), next, kept.at(y, rows.state(k - 1)), plus, minus);
      q.state_halos(next, l);
    }
    if (t >= 2 * K && t < H + 2 * K) {
      const int64_t y = actual_row(t - K, H);
      A* G = kept.at(y, R::kG + K % 2);
      read_grad(y, G);
      gradient_halos(G);
    }
    const int64_t late = t - 2 * K;
    for (int64_t j = max<int64_t>(1, (late - H + 2) / 2); j <= min(K, late / 2); ++j) {
      const int64_t y = actual_row(t - K - j, H), k = K - j;  // the step from h^k to h^{k+1}
      const int64_t from = R::kG + (k + 1) % 2, to = R::kG + k % 2;
      A *plus, *minus, *G_plus = zero, *G_minus = zero, *dm_plus = zero, *dp_minus = zero;
      rows_beside(q, y, H, [&](int64_t i) { return kept.at(i, rows.state(k)); }, zero, plus, minus);
      if (q.periodic() || y + 1 < H) {
        const int64_t up = y + 1 < H ? y + 1 : 0;
        G_plus = kept.at(up, from), dm_plus = coefficients(up).d_minus;
      }
      if (q.periodic() || y > 0) {
        const int64_t down = y > 0 ? y - 1 : H - 1;
        G_minus = kept.at(down, from), dp_minus = coefficients(down).d_plus;
      }
      const Stencil<A> around{kept.at(y, rows.state(k)), plus, minus, kept.at(y, rows.state(k - 1)),
                              kept.at(y, rows.state(k + 1))};
      A *older = kept.at(y, to), *G = kept.at(y, from);
      auto* step = K == 1   ? adjoint_row<A, true, true>
                   : j == 1 ? adjoint_row<A, true, false>
                   : j == K ? adjoint_row<A, false, true>
                            : adjoint_row<A, false, false>;
      step(n, e, coefficients(y), dm_plus, dp_minus, older, G, G_plus, G_minus, around, sums(y));
      gradient_halos(older);
    }
    if (t >= 4 * K + 2) {
      const int64_t y = actual_row(t - 2 * K - 1, H);
      A *P = sums(y).Gh, *P_plus, *P_minus;
      // the divergence reads mirrored velocities beyond the border, so its adjoint mirrors with the other sign
      if (q.periodic()) wrap_halos(P, l);
      else mirror_halos(P, l, -q.velocity_parity());
      A *mirror_plus = P, *mirror_minus = P;
      if (!q.periodic() && q.velocity_parity() > 0 && (y == 0 || y == H - 1)) {
        A* negative = kept.extra(R::kNegative);
        for (int64_t i = 0; i < n; ++i) negative[i] = -P[i];
        mirror_plus = mirror_minus = negative;
      }
      P_plus = y + 1 < H ? sums(y + 1).Gh : q.periodic() ? sums(0).Gh : mirror_plus;
      P_minus = y > 0 ? sums(y - 1).Gh : q.periodic() ? sums(H - 1).Gh : mirror_minus;
      write(y, AdjointRow<A>{coefficients(y), sums(y), P_plus, P_minus, kept.at(y, R::kG), kept.at(y, R::kG + 1)});
    }
  }
}

}  // namespace PDECNN_NS
