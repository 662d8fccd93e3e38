// The order in which rows are computed so that the K steps of a plane need one pass over memory.
// README.md tells the order, in "The wave of rows" and "The two waves of the backward pass". Rows are counted on beyond the
// last one ("virtual rows" H, H+1, ...), for levels wrap around a periodic plane. Level k of the first wave is the state h^k,
// at row t - k at time t; level j of the second one is the gradient of h^{K-j}, at row t - K - j.
#pragma once

#include "formulas.h"

namespace PDECNN_NS {

PDECNN_INLINE int64_t actual_row(int64_t virtual_row, int64_t H) { return virtual_row < H ? virtual_row : virtual_row % H; }

// The rows kept of one group: `per_slot` rows of numbers for each slot, and `extra` ones. The first `reserved` rows of the
// planes stay in a slot of their own, the others share a ring of one more.
template <class A>
class Kept {
 public:
  static size_t bytes(const RowLayout& l, int64_t H, int64_t reserved, int64_t per_slot, int64_t extra) {
    return size_t(table_bytes(H) + (slots(H, reserved) * per_slot + extra) * l.stride * int64_t(sizeof(A)));
  }
  Kept(const RowLayout& l, int64_t H, int64_t reserved, int64_t per_slot, char* memory)
      : stride_(l.stride), per_slot_(per_slot), slots_(slots(H, reserved)), table_(reinterpret_cast<int32_t*>(memory)),
        rows_(reinterpret_cast<A*>(memory + table_bytes(H)) + l.front) {
    for (int64_t y = 0; y < H; ++y)  // a table, so that no loop divides
      table_[y] = int32_t(y < reserved ? y : reserved + (y - reserved) % (reserved + 1));
  }
  // Row i of the numbers kept for row y.
  A* at(int64_t y, int64_t i) const { return rows_ + (table_[y] * per_slot_ + i) * stride_; }
  A* extra(int64_t i) const { return rows_ + (slots_ * per_slot_ + i) * stride_; }
  Weights<2, A*> weights(int64_t y) const {
    auto row = [&](int64_t i) { return at(y, i); };
    return {row(0), row(1), row(2), row(3), {row(4), row(5)}, {row(6), row(7)}};
  }

 private:
  static int64_t slots(int64_t H, int64_t reserved) { return min(H, 2 * reserved + 1); }
  static int64_t table_bytes(int64_t H) { return round_up(H * int64_t(sizeof(int32_t)), 64); }
  const int64_t stride_, per_slot_, slots_;
  int32_t* table_;
  A* rows_;
};

// Solves the groups of one problem. What is kept of a row: 8 weights, then the states and, backward, 6 sums and 2 G.
template <class A>
class March {
 public:
  March(const Problem& p, const Storage<A>& storage, bool adjoint)
      : p_(p), q_(p), storage_(storage), adjoint_(adjoint), first_state_(adjoint ? kStates : kWeights),
        reserved_(adjoint ? 2 * p.K + 2 : p.K + 1), per_slot_(adjoint ? kStates + p.K + 2 : kWeights + 2),
        grouping_(p.N, p.C, p.interleaved != 0, together(p, adjoint ? kBackwardRow : kForwardRow)) {}

  // How many groups there are, multiply-adds of one by and large, bytes of memory, and solving group i in them.
  int64_t groups() const { return grouping_.count; }
  int64_t work() const { return grouping_.together * p_.H * p_.W * p_.K; }
  size_t bytes() const { return Kept<A>::bytes(layout(grouping_.together), p_.H, reserved_, per_slot_, kExtra); }
  template <class Call>
  void solve(const Call& call, int64_t i, char* memory) const {
    Group g;
    const RowLayout l = layout(grouping_.group(i, g));
    const Kept<A> kept(l, p_.H, reserved_, per_slot_, memory);
    std::memset(kept.extra(kZero) - l.front, 0, size_t(l.stride) * sizeof(A));  // a wider group was there, maybe
    solve(call, g, l, kept);
  }

 private:
  void solve(const ForwardCall& call, const Group& g, const RowLayout& l, const Kept<A>& kept) const {
    for (int64_t t = 0; t < p_.H + 2 * p_.K; ++t)
      advance(t, g, l, kept, [&](int64_t y, const A* h) { storage_.store(h, call.out, g, l, y); });
  }
  void solve(const BackwardCall& call, const Group& g, const RowLayout& l, const Kept<A>& kept) const {
    const int64_t H = p_.H, K = p_.K;
    each_field([&](const Gradient& to) { clear(to, g, l); }, call);
    for (int64_t t = 0; t < H + 4 * K + 2; ++t) {
      advance(t, g, l, kept, [](int64_t, const A*) {});
      if (t >= 2 * K && t < H + 2 * K) {
        const int64_t y = actual_row(t - K, H);
        storage_.load(kept.at(y, kG + K % 2), call.grad_out, g, l, y);
        halos(kept.at(y, kG + K % 2), l, 0);
      }
      const int64_t late = t - 2 * K;
      for (int64_t j = max<int64_t>(1, (late - H + 2) / 2); j <= min(K, late / 2); ++j) {
        const int64_t y = actual_row(t - K - j, H);
        if (j == 1) adjoint_row<true>(y, K - j, l, kept);
        else adjoint_row<false>(y, K - j, l, kept);
        halos(kept.at(y, kG + (K - j) % 2), l, 0);
        if (j == K) finish_sums(y, l, kept);
      }
      if (t >= 4 * K + 2) write_gradients(actual_row(t - 2 * K - 1, H), g, l, kept, call);
    }
  }

  static constexpr int kWeights = 8, kSums = kWeights, kG = kSums + 6, kStates = kG + 2;
  // the newest row of u, D_x, D_y, f, and v at y-1, y, y+1; zeros; P with its sign turned; a result
  enum Extra { kU, kD_x, kD_y, kF, kV, kZero = kV + 3, kNegative, kResult, kExtra };
  // Numbers of a row that are worked on together: enough to pay for the row's set-up, few enough to stay in cache.
  static constexpr int64_t kForwardRow = 256, kBackwardRow = 192;
  static int64_t together(const Problem& p, int64_t target) {
    const int64_t wanted = max<int64_t>(p.interleaved ? 16 : 1, target / (p.W + 2)), blocks = max<int64_t>(1, p.C / wanted);
    return p.interleaved ? (p.C + blocks - 1) / blocks : wanted;  // channels in parts of one size
  }
  RowLayout layout(int64_t many) const {
    return RowLayout(p_.W, p_.interleaved ? 1 : many, p_.interleaved ? many : 1, sizeof(A));
  }

  // Where the state h^k of a row is kept: all from h^{-1} on, or two in turn.
  int64_t state(int64_t k) const { return first_state_ + (adjoint_ ? k + 1 : (k + 2) % 2); }

  // The row after (before) y, around a periodic border; -1: there is none.
  int64_t after(int64_t y) const { return y + 1 < p_.H ? y + 1 : q_.periodic() ? 0 : -1; }
  int64_t before(int64_t y) const { return y > 0 ? y - 1 : q_.periodic() ? p_.H - 1 : -1; }
  // Rows y+1 and y-1 of state k; beyond a border that is not periodic stands the row itself (mirrored) or zero.
  void beside(int64_t y, int64_t k, const Kept<A>& kept, const A*& yp, const A*& ym) const {
    const A* self = q_.boundary == kNeumann ? kept.at(y, state(k)) : kept.extra(kZero);
    yp = after(y) < 0 ? self : kept.at(after(y), state(k));
    ym = before(y) < 0 ? self : kept.at(before(y), state(k));
  }
  // Halos of a row take the opposite border, or the near one times `parity`.
  void halos(A* row, const RowLayout& l, A parity) const { set_halos(row, 0, 1, l, q_.periodic(), parity); }

  // Time t of the first wave; write(y, h) takes the rows of h^K.
  template <class Write>
  void advance(int64_t t, const Group& g, const RowLayout& l, const Kept<A>& kept, const Write& write) const {
    if (t < p_.H) read(t, g, l, kept);
    // level k at row t - k, while k <= t - k <= H + k - 1
    for (int64_t k = max<int64_t>(1, (t - p_.H + 2) / 2); k <= min(p_.K, t / 2); ++k) {
      const int64_t y = actual_row(t - k, p_.H);
      const A *yp, *ym;
      A* next = kept.at(y, state(k));
      beside(y, k - 1, kept, yp, ym);
      if (adjoint_) std::memcpy(next, kept.at(y, state(k - 2)), size_t(l.length) * sizeof(A));
      step_row(l.length, l.lanes, kept.weights(y), next, kept.at(y, state(k - 1)), yp, ym);
      if (k == p_.K) write(y, next);
      if (k < p_.K || adjoint_) halos(next, l, q_.state_parity());
    }
  }

  // `next` holds h^{k-1} on entry and h^{k+1} on return. A function of its own, for the addresses fill the registers.
  static PDECNN_NOINLINE void step_row(int64_t n, int64_t e, const Weights<2, A*>& weights, A* next, const A* h, const A* yp,
                                       const A* ym) {
    const Weights<2, A*> w = weights;
    const A *c_plus = w.plus[0], *c_minus = w.minus[0], *d_plus = w.plus[1], *d_minus = w.minus[1];
    PDECNN_VECTORIZE
    for (int64_t i = 0; i < n; ++i) {
      const Weights<2, A> at{w.a[i], w.b[i], w.s[i], A(0), {c_plus[i], d_plus[i]}, {c_minus[i], d_minus[i]}};
      next[i] = step(at, next[i], Around<2, A>{h[i], {h[i + e], yp[i]}, {h[i - e], ym[i]}});
    }
  }

  // Row y of the fields: its states and weights. Rows come in the order 0, 1, 2, ...
  void read(int64_t y, const Group& g, const RowLayout& l, const Kept<A>& kept) const {
    A *h = kept.at(y, state(0)), *h_prev = kept.at(y, state(-1)), *u = kept.extra(kU), *D_x = kept.extra(kD_x),
      *D_y = kept.extra(kD_y);
    const int64_t n = l.length, e = l.lanes;
    storage_.load(h, p_.h, g, l, y);
    if (p_.h_prev.data == nullptr) std::memcpy(h_prev, h, size_t(n) * sizeof(A));
    else storage_.load(h_prev, p_.h_prev, g, l, y);
    halos(h, l, q_.state_parity());
    storage_.load(u, p_.u, g, l, y);
    halos(u, l, q_.velocity_parity());
    storage_.load(D_x, p_.D_x, g, l, y);
    storage_.load(D_y, p_.D_y, g, l, y);
    const A* f = kept.extra(p_.f.data == nullptr ? kZero : kF);
    if (p_.f.data != nullptr) storage_.load(kept.extra(kF), p_.f, g, l, y);
    auto v_row = [&](int64_t i) { return kept.extra(kV + (i + 3) % 3); };
    for (int64_t i = y == 0 ? -1 : y + 1; i <= y + 1; ++i) load_v(v_row(i), i, g, l);
    const A *v = v_row(y), *v_yp = v_row(y + 1), *v_ym = v_row(y - 1);
    const Weights<2, A*> to = kept.weights(y);
    PDECNN_VECTORIZE
    for (int64_t i = 0; i < n; ++i) {
      const Along<A> axes[2] = {{u[i], u[i + e], u[i - e], D_x[i]}, {v[i], v_yp[i], v_ym[i], D_y[i]}};
      const Weights<2, A> w = weights(q_, axes, f[i]);
      to.a[i] = w.a, to.b[i] = w.b, to.s[i] = w.s, to.r[i] = w.r;
      to.plus[0][i] = w.plus[0], to.minus[0][i] = w.minus[0], to.plus[1][i] = w.plus[1], to.minus[1][i] = w.minus[1];
    }
    fold(y, l, to);
  }
  void load_v(A* row, int64_t y, const Group& g, const RowLayout& l) const {
    const int64_t last = p_.H - 1, from = y < 0 ? (q_.periodic() ? last : 0) : y > last ? (q_.periodic() ? 0 : last) : y;
    storage_.load(row, p_.v, g, l, from);
    if (from != y && !q_.periodic())
      for (int64_t i = 0; i < l.length; ++i) row[i] *= q_.velocity_parity();
  }

  // What is beyond a border that is not periodic is a multiple of what is inside: its weight moves to the centre. The
  // adjoint reads c+- from neighbours too, so their halos must hold what is beyond the border.
  void fold(int64_t y, const RowLayout& l, const Weights<2, A*>& w) const {
    const A parity = q_.state_parity();
    auto edge = [&](A* weight, int64_t first, int64_t last) {
      for (int64_t s = 0; s < l.segments; ++s)
        for (int64_t i = l.pixel0(s) + first * l.lanes; i < l.pixel0(s) + last * l.lanes; ++i) {
          w.b[i] += parity * weight[i];
          weight[i] = 0;
        }
    };
    if (!q_.periodic()) edge(w.minus[0], 0, 1), edge(w.plus[0], l.W - 1, l.W);
    if (before(y) < 0) edge(w.minus[1], 0, l.W);
    if (after(y) < 0) edge(w.plus[1], 0, l.W);
    if (adjoint_) halos(w.plus[0], l, 0), halos(w.minus[0], l, 0);
  }

  // One step of the adjoint at one row, from h^{k+1} to h^k: adds to the sums, and turns the gradient of h^{k+2} (none in
  // the first step) into that of h^k.
  template <bool kFirst>
  PDECNN_NOINLINE void adjoint_row(int64_t y, int64_t k, const RowLayout& l, const Kept<A>& kept) const {
    const int64_t n = l.length, e = l.lanes, from = kG + (k + 1) % 2;
    const A *G_yp = kept.extra(kZero), *G_ym = G_yp, *d_minus_yp = G_yp, *d_plus_ym = G_yp, *yp, *ym;
    beside(y, k, kept, yp, ym);
    if (after(y) >= 0) G_yp = kept.at(after(y), from), d_minus_yp = kept.weights(after(y)).minus[1];
    if (before(y) >= 0) G_ym = kept.at(before(y), from), d_plus_ym = kept.weights(before(y)).plus[1];
    const Weights<2, A*> w = kept.weights(y);
    const A *c_plus = w.plus[0], *c_minus = w.minus[0];
    const Sums<2, A*> sums = sums_of(y, kept);
    const A *h = kept.at(y, state(k)), *h_prev = kept.at(y, state(k - 1)), *h_next = kept.at(y, state(k + 1)),
            *G = kept.at(y, from);
    A *to = kept.at(y, kG + k % 2), *A_x = sums.A_x[0], *A_y = sums.A_x[1], *B_x = sums.B_x[0], *B_y = sums.B_x[1];
    PDECNN_VECTORIZE
    for (int64_t i = 0; i < n; ++i) {
      Sums<2, A> s{};
      if (!kFirst) s = {sums.G[i], sums.Gh[i], {A_x[i], A_y[i]}, {B_x[i], B_y[i]}};
      s.add(G[i], Around<2, A>{h[i], {h[i + e], yp[i]}, {h[i - e], ym[i]}}, h_prev[i], h_next[i]);
      const Weights<2, A> at{w.a[i], w.b[i], A(0), A(0), {c_minus[i + e], d_minus_yp[i]}, {c_plus[i - e], d_plus_ym[i]}};
      to[i] = step(at, kFirst ? A(0) : to[i], Around<2, A>{G[i], {G[i + e], G_yp[i]}, {G[i - e], G_ym[i]}});
      sums.G[i] = s.G, sums.Gh[i] = s.Gh, A_x[i] = s.A_x[0], A_y[i] = s.A_x[1], B_x[i] = s.B_x[0], B_y[i] = s.B_x[1];
    }
  }
  Sums<2, A*> sums_of(int64_t y, const Kept<A>& kept) const {
    auto row = [&](int64_t i) { return kept.at(y, kSums + i); };
    return {row(0), row(1), {row(2), row(3)}, {row(4), row(5)}};
  }
  // Turns Gh into P = r Gh. The divergence reads mirrored velocities beyond the border, so its adjoint mirrors with the
  // other sign.
  void finish_sums(int64_t y, const RowLayout& l, const Kept<A>& kept) const {
    A *P = sums_of(y, kept).Gh, *r = kept.weights(y).r;
    const int64_t n = l.length;
    PDECNN_VECTORIZE
    for (int64_t i = 0; i < n; ++i) P[i] *= r[i];
    halos(P, l, -q_.velocity_parity());
  }

  void write_gradients(int64_t y, const Group& g, const RowLayout& l, const Kept<A>& kept, const BackwardCall& call) const {
    const int64_t n = l.length, e = l.lanes;
    const Sums<2, A*> sums = sums_of(y, kept);
    A *P = sums.Gh, *beyond = kept.extra(kNegative);
    if (after(y) < 0 || before(y) < 0)
      for (int64_t i = 0; i < n; ++i) beyond[i] = -q_.velocity_parity() * P[i];
    const A *P_yp = after(y) < 0 ? beyond : sums_of(after(y), kept).Gh,
            *P_ym = before(y) < 0 ? beyond : sums_of(before(y), kept).Gh;
    const A *a = kept.weights(y).a, *r = kept.weights(y).r, *G_0 = kept.at(y, kG), *G_1 = kept.at(y, kG + 1);
    A* result = kept.extra(kResult);
    auto emit = [&](const Gradient& to, auto&& value) {
      if (to.map.data == nullptr && to.sums == nullptr) return;
      PDECNN_VECTORIZE
      for (int64_t i = 0; i < n; ++i) result[i] = value(i);
      if (to.map.data != nullptr) storage_.store(result, to.map, g, l, y);
      if (to.sums != nullptr) add_up(to, result, g, l);
    };
    if (p_.h_prev.data == nullptr) emit(call.h, [&](int64_t i) { return G_0[i] + a[i] * G_1[i]; });
    else emit(call.h, [&](int64_t i) { return G_0[i]; });
    emit(call.h_prev, [&](int64_t i) { return a[i] * G_1[i]; });
    emit(call.u, [&](int64_t i) { return gradient_of_velocity(q_.A_x[0], r[i], sums.A_x[0][i], P[i - e], P[i + e]); });
    emit(call.v, [&](int64_t i) { return gradient_of_velocity(q_.A_x[1], r[i], sums.A_x[1][i], P_ym[i], P_yp[i]); });
    emit(call.D_x, [&](int64_t i) { return gradient_of_term(q_.B2_x[0], r[i], sums.B_x[0][i]); });
    emit(call.D_y, [&](int64_t i) { return gradient_of_term(q_.B2_x[1], r[i], sums.B_x[1][i]); });
    emit(call.f, [&](int64_t i) { return gradient_of_term(q_.dt2, r[i], sums.G[i]); });
  }

  // Gradients that are one number for each plane.
  double& sum_of(const Gradient& to, const Group& g, int64_t s, int64_t lane) const {
    return static_cast<double*>(to.sums)[g.n[s] * p_.C + g.c[s] + lane];
  }
  void clear(const Gradient& to, const Group& g, const RowLayout& l) const {
    if (to.sums == nullptr) return;
    for (int64_t s = 0; s < l.segments; ++s)
      for (int64_t c = 0; c < l.lanes; ++c) sum_of(to, g, s, c) = 0;
  }
  void add_up(const Gradient& to, const A* row, const Group& g, const RowLayout& l) const {
    for (int64_t s = 0; s < l.segments; ++s)
      for (int64_t c = 0; c < l.lanes; ++c) {
        double sum = 0;
        for (int64_t x = 0; x < l.W; ++x) sum += double(row[l.pixel0(s) + x * l.lanes + c]);
        sum_of(to, g, s, c) += sum;
      }
  }

  const Problem& p_;
  const Scheme<A> q_;
  const Storage<A> storage_;
  const bool adjoint_;
  const int64_t first_state_, reserved_, per_slot_;
  const Grouping grouping_;
};

extern template class March<float>;
extern template class March<double>;

}  // namespace PDECNN_NS
