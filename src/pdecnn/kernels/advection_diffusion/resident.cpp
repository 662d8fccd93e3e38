// Solves planes in cache. README.md tells the layout in "Planes that stay whole".
#include "resident.h"

namespace PDECNN_NS {

template <class A>
PlaneSolver<A>::PlaneSolver(const Problem& p, const Storage<A>& storage, int64_t lanes)
    : p_(p), q_(p), storage_(storage), layout_(p.W, 1, lanes, sizeof(A)), axes_(p.w.data == nullptr ? 2 : 3) {
  using L = Lanes<A, kVectorBytes>;
  turn_.is_on = L::kTurns && q_.periodic() && lanes == 1 && p.W <= L::count && 2 * p.W > L::count;
  for (int64_t x = 0; x < 16; ++x)
    turn_.next[x] = int32_t(x + 1 == p.W ? 0 : x + 1), turn_.previous[x] = int32_t(x == 0 ? p.W - 1 : x - 1);
  // Rows are padded to whole vectors unless that costs more than to go over their halos.
  constexpr int64_t kLanes = L::count;
  const int64_t dense = (p.W + 2) * lanes, whole = round_up(p.W * lanes, kLanes);
  is_flat_ = !turn_.is_on && 10 * dense < 9 * whole;
  row_ = turn_.is_on ? whole : is_flat_ ? dense : round_up(max(dense, whole + lanes), kLanes);
  front_ = round_up((axes_ == 3 ? p.H : 1) * row_ + lanes, 16);
  plane_ = front_ + round_up(p.D * p.H * row_ + kLanes, 16);
  if (plane_ * int64_t(sizeof(A)) % 1024 == 0) plane_ += 16;  // else planes would fall into the same sets of the cache
}

// Rows one after another that have their neighbours in y and z at the same distances.
template <int kAxes>
struct Strip {
  int64_t begin, rows, row, length;  // its first number, how many rows, their distance, and their numbers
  int64_t plus[kAxes], minus[kAxes];
  bool first[kAxes], last[kAxes];  // whether a border is there that is not periodic
};

// The solver's work on one group.
template <class A>
template <int kAxes>
struct PlaneSolver<A>::Work {
  using L = Lanes<A, kVectorBytes>;
  using V = typename L::V;
  const PlaneSolver& s;
  const Problem& p;
  const Group& g;
  const int64_t rows, n, e;
  const Turn turn;
  const bool is_periodic, is_flat;
  A* next_plane;
  A *u[kAxes], *D[kAxes], *f, *states;
  Weights<kAxes, A*> w;

  Work(const PlaneSolver& s, const Problem& p, const Group& g, A* scratch, bool adjoint)
      : s(s), p(p), g(g), rows(p.D * p.H), n(s.row_), e(s.layout_.lanes), turn(s.turn_), is_periodic(s.q_.periodic()),
        is_flat(s.is_flat_), next_plane(scratch + s.front_) {
    auto take = [&] { return (next_plane += s.plane_) - s.plane_; };
    for (A*& plane : u) plane = take();
    for (A*& plane : D) plane = take();
    f = take();
    w.a = take(), w.b = take(), w.s = take(), w.r = take();
    for (A*& plane : w.plus) plane = take();
    for (A*& plane : w.minus) plane = take();
    states = take();
    // What is beyond a border, where the planes of another group may have been.
    for (int64_t i = 0; i < s.planes(adjoint) && !s.q_.periodic(); ++i)
      std::memset(scratch + i * s.plane_, 0, size_t(s.front_) * sizeof(A));
  }
  A* state(int64_t i) const { return states + i * s.plane_; }

  // Calls f with every strip. Beyond a border that is not periodic is the border itself, or `zero`.
  template <class F>
  PDECNN_INLINE void each_strip(bool zero, bool by_row, const F& f) const {
    const int64_t H = p.H, length = p.W * e;
    for (int64_t z = 0; z < p.D; ++z)
      for (int64_t y = 0, many; y < H; y += many) {
        many = by_row || y == 0 || y == H - 1 ? 1 : H - 2;
        Strip<kAxes> strip{(z * H + y) * n, many, n, length, {e}, {-e}, {}, {}};
        if (is_flat && !by_row) strip.length = many * n, strip.rows = 1;
        auto place = [&](int axis, int64_t i, int64_t size, int64_t distance) {
          const int64_t beyond = zero ? -(strip.begin + s.front_) : 0, around = (size - 1) * distance;
          const bool wraps = is_periodic, last = i + 1 == size, first = i == 0;
          strip.plus[axis] = !last ? distance : wraps ? -around : beyond;
          strip.minus[axis] = !first ? -distance : wraps ? around : beyond;
          strip.last[axis] = last && !wraps, strip.first[axis] = first && !wraps;
        };
        place(1, y, H, n);
        if (many > 1) strip.plus[1] = n, strip.last[1] = false;
        if constexpr (kAxes == 3) place(2, z, p.D, H * n);
        f(strip);
      }
  }
  template <class F>
  PDECNN_INLINE static void each_vector(const Strip<kAxes>& strip, const F& f) {
    for (int64_t r = 0, i = strip.begin; r < strip.rows; ++r, i += strip.row)
      for (int64_t j = i; j < i + strip.length; j += L::count) f(j);
  }
  bool beyond_is_zero() const { return s.q_.boundary == kDirichlet; }
  // The numbers after (before) those at p along an axis.
  PDECNN_INLINE V after(const A* p, int axis, const Strip<kAxes>& strip) const {
    return axis == 0 && turn.is_on ? L::turn(L::load(p), turn.next) : L::load(p + strip.plus[axis]);
  }
  PDECNN_INLINE V before(const A* p, int axis, const Strip<kAxes>& strip) const {
    return axis == 0 && turn.is_on ? L::turn(L::load(p), turn.previous) : L::load(p + strip.minus[axis]);
  }
  PDECNN_INLINE Around<kAxes, V> around(const A* h, const Strip<kAxes>& strip) const {
    Around<kAxes, V> n{L::load(h), {}, {}};
    for (int j = 0; j < kAxes; ++j) n.plus[j] = after(h, j, strip), n.minus[j] = before(h, j, strip);
    return n;
  }

  void load(A* plane, const Map& m) const { s.storage_.load_rows(plane - e, n, m, g, s.layout_, 0, rows); }
  void store(const A* plane, const Map& m) const { s.storage_.store_rows(plane - e, n, m, g, s.layout_, 0, rows); }
  void halos(A* plane, A parity) const {
    if (turn.is_on) return;
    const int64_t right = p.W - 1, wide = p.W;
    if (e == 1 && s.q_.periodic())
      for (A *row = plane, *end = plane + rows * n; row < end; row += n) row[-1] = row[right], row[wide] = row[0];
    else
      for (int64_t r = 0; r < rows; ++r) set_halos(plane + r * n - e, s.layout_, s.q_.periodic(), parity);
  }

  // The weights, h^{-1} and h^0; the latter are `state(0)` and `state(1)`.
  void read(bool adjoint) const {
    const Map *velocity[3] = {&p.u, &p.v, &p.w}, *diffusivity[3] = {&p.D_x, &p.D_y, &p.D_z};
    load(state(1), p.h);
    halos(state(1), s.q_.state_parity());
    if (p.h_prev.data == nullptr) std::memcpy(state(0) - e, state(1) - e, size_t(rows * n + e) * sizeof(A));
    else load(state(0), p.h_prev), halos(state(0), s.q_.state_parity());
    for (int j = 0; j < kAxes; ++j) load(u[j], *velocity[j]), load(D[j], *diffusivity[j]);
    halos(u[0], s.q_.velocity_parity());
    if (p.f.data != nullptr) load(f, p.f);
    else std::memset(f, 0, size_t(rows * n) * sizeof(A));
    const V parity = L::all(s.q_.velocity_parity());
    each_strip(false, false, [&](const Strip<kAxes>& strip) {
      each_vector(strip, [&](int64_t i) {
        Along<V> along[kAxes];
        for (int j = 0; j < kAxes; ++j) {
          const A* at = u[j] + i;
          along[j] = {L::load(at), after(at, j, strip), before(at, j, strip), L::load(D[j] + i)};
          if (strip.last[j]) along[j].u_plus = parity * along[j].u_plus;
          if (strip.first[j]) along[j].u_minus = parity * along[j].u_minus;
        }
        const Weights<kAxes, V> made = weights(s.q_, along, L::load(f + i));
        L::store(w.a + i, made.a), L::store(w.b + i, made.b), L::store(w.s + i, made.s);
        if (adjoint) L::store(w.r + i, made.r);
        for (int j = 0; j < kAxes; ++j) L::store(w.plus[j] + i, made.plus[j]), L::store(w.minus[j] + i, made.minus[j]);
      });
    });
    fold();
    if (!adjoint) return;
    halos(w.plus[0], 0), halos(w.minus[0], 0);
  }

  // What is beyond a border that is not periodic is a multiple of what is inside: its weight moves to the centre.
  void fold() const {
    if (s.q_.periodic()) return;
    const A parity = s.q_.state_parity();
    each_strip(false, true, [&](const Strip<kAxes>& strip) {
      auto edge = [&](A* weight, int64_t from, int64_t to) {
        for (int64_t i = strip.begin + from; i < strip.begin + to; ++i) w.b[i] += parity * weight[i], weight[i] = 0;
      };
      edge(w.minus[0], 0, e), edge(w.plus[0], strip.length - e, strip.length);
      for (int j = 1; j < kAxes; ++j) {
        if (strip.first[j]) edge(w.minus[j], 0, strip.length);
        if (strip.last[j]) edge(w.plus[j], 0, strip.length);
      }
    });
  }

  // One step of all planes, or of the adjoint: there a neighbour passes on its own weights, and there is no source.
  template <bool kAdjoint>
  PDECNN_NOINLINE void advance(const A* h_prev, const A* h, A* next) const {
    const Work me = *this;  // of which the compiler knows that no store changes it
    const Weights<kAxes, A*> w = this->w;
    me.each_strip(kAdjoint || beyond_is_zero(), false, [&](const Strip<kAxes>& at_strip) {
      const Strip<kAxes> strip = at_strip;
      each_vector(strip, [&](int64_t i) {
        Weights<kAxes, V> at{L::load(w.a + i), L::load(w.b + i), kAdjoint ? V{} : L::load(w.s + i), V{}, {}, {}};
        for (int j = 0; j < kAxes; ++j) {
          at.plus[j] = kAdjoint ? me.after(w.minus[j] + i, j, strip) : L::load(w.plus[j] + i);
          at.minus[j] = kAdjoint ? me.before(w.plus[j] + i, j, strip) : L::load(w.minus[j] + i);
        }
        L::store(next + i, step(at, L::load(h_prev + i), me.around(h + i, strip)));
      });
    });
    halos(next, kAdjoint ? A(0) : s.q_.state_parity());
  }

  void forward(const ForwardCall& call) const {
    const int64_t K = p.K;
    read(false);
    for (int64_t k = 1; k <= K; ++k) advance<false>(state((k + 2) % 3), state(k % 3), state((k + 1) % 3));
    store(state((K + 1) % 3), call.out);
  }

  void backward(const BackwardCall& call) const {
    const int64_t K = p.K;
    auto h = [&](int64_t k) { return state(k + 1); };
    auto G = [&](int64_t k) { return state(K + 2 + k); };
    read(true);
    for (int64_t k = 1; k <= K; ++k) advance<false>(h(k - 2), h(k - 1), h(k));
    load(G(K), call.grad_out);
    halos(G(K), 0);
    std::memset(G(K + 1), 0, size_t(rows * n) * sizeof(A));
    for (int64_t k = K - 1; k >= 0; --k) advance<true>(G(k + 2), G(k + 1), G(k));

    const Work me = *this;
    // Results take the place of the fields and of weights that are not read again.
    A *of_h = w.b, *of_h_prev = w.s, *of_f = f, *P = w.plus[0];
    const bool one_start = p.h_prev.data == nullptr;
    const int64_t plane = s.plane_;
    me.each_strip(beyond_is_zero(), false, [&](const Strip<kAxes>& at_strip) {
      const Strip<kAxes> strip = at_strip;
      each_vector(strip, [&](int64_t i) {
        Sums<kAxes, V> sums{};
        const A *g = G(K) + i, *h_k = h(K - 1) + i;
        for (int64_t k = K - 1; k >= 0; --k, g -= plane, h_k -= plane)
          sums.add(L::load(g), me.around(h_k, strip), L::load(h_k - plane), L::load(h_k + plane));
        const V r = L::load(w.r + i), older = L::load(w.a + i) * L::load(G(1) + i);
        L::store(of_h_prev + i, older);
        L::store(of_h + i, one_start ? L::load(G(0) + i) + older : L::load(G(0) + i));
        L::store(of_f + i, gradient_of_term(s.q_.dt2, r, sums.G));
        L::store(P + i, r * sums.Gh);
        for (int j = 0; j < kAxes; ++j) {
          L::store(u[j] + i, sums.A_x[j]);
          L::store(D[j] + i, gradient_of_term(s.q_.B2_x[j], r, sums.B_x[j]));
        }
      });
    });
    const Gradient *velocity[3] = {&call.u, &call.v, &call.w}, *diffusivity[3] = {&call.D_x, &call.D_y, &call.D_z};
    write(call.h, of_h), write(call.h_prev, of_h_prev), write(call.f, of_f);
    for (int j = 0; j < kAxes; ++j) write(*diffusivity[j], D[j]);
    // The divergence reads mirrored velocities beyond the border, so its adjoint mirrors with the other sign.
    halos(P, -s.q_.velocity_parity());
    const V parity = L::all(-s.q_.velocity_parity());
    for (int axis = 0; axis < kAxes; ++axis) {
      if (velocity[axis]->map.data == nullptr && velocity[axis]->sums == nullptr) continue;
      A *sum = u[axis], *result = D[axis];
      each_strip(false, false, [&](const Strip<kAxes>& strip) {
        each_vector(strip, [&](int64_t i) {
          V minus = before(P + i, axis, strip), plus = after(P + i, axis, strip);
          if (strip.first[axis]) minus = parity * minus;
          if (strip.last[axis]) plus = parity * plus;
          L::store(result + i, gradient_of_velocity(s.q_.A_x[axis], L::load(w.r + i), L::load(sum + i), minus, plus));
        });
      });
      write(*velocity[axis], result);
    }
  }
  // A gradient: a map, or the sum over each plane, or neither.
  void write(const Gradient& to, const A* plane) const {
    if (to.map.data != nullptr) store(plane, to.map);
    for (int64_t lane = 0; lane < e && to.sums != nullptr; ++lane) {
      double total = 0;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t x = 0; x < p.W; ++x) total += double(plane[r * n + x * e + lane]);
      static_cast<double*>(to.sums)[g.n[0] * p.C + g.c[0] + lane] = total;
    }
  }
};

template <class A>
void PlaneSolver<A>::solve(const ForwardCall& call, const Group& g, A* scratch) const {
  if (axes_ == 2) Work<2>(*this, call.problem, g, scratch, false).forward(call);
  else Work<3>(*this, call.problem, g, scratch, false).forward(call);
}
template <class A>
void PlaneSolver<A>::solve(const BackwardCall& call, const Group& g, A* scratch) const {
  if (axes_ == 2) Work<2>(*this, call.problem, g, scratch, true).backward(call);
  else Work<3>(*this, call.problem, g, scratch, true).backward(call);
}

template class PlaneSolver<float>;
template class PlaneSolver<double>;

}  // namespace PDECNN_NS
