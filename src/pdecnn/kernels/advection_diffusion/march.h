// The order in which rows are computed so that the K steps of a plane need one pass over memory.
//
// Level k of row y (the state h^k there) needs level k-1 of rows y-1, y and y+1. So the levels follow each other down the
// plane like a wave: at time t row t is read, level 1 is computed at row t-1, level 2 at row t-2, ... Only the rows under
// the wave are held. With a periodic border the first rows need the last ones, hence level k starts at row k and ends,
// having wrapped around, at row k-1: rows are counted on ("virtual rows" H, H+1, ...), and the first rows are kept.
// Nothing is computed twice, and two buffers per row suffice: level k overwrites level k-2.
#pragma once

#include "scheme.h"

namespace PDECNN_NS {

// Which of the kept rows holds row y: the first `reserved` rows stay, the others share a ring of `ring` rows.
class Slots {
 public:
  Slots(int64_t H, int64_t reserved, int64_t ring) : H_(H), reserved_(reserved), ring_(ring) {}
  int64_t count() const { return min(H_, reserved_ + ring_); }
  // The table of all rows, so that no loop divides.
  void fill(int32_t* slot) const {
    for (int64_t y = 0; y < H_; ++y)
      slot[y] = int32_t(H_ <= reserved_ + ring_ || y < reserved_ ? y : reserved_ + (y - reserved_) % ring_);
  }

 private:
  int64_t H_, reserved_, ring_;
};

PDECNN_INLINE int64_t actual_row(int64_t virtual_row, int64_t H) {
  return virtual_row < H ? virtual_row : virtual_row % H;
}

// The rows kept of one group: `per_slot` rows of numbers for each slot, and `extra` ones.
template <class A>
class Kept {
 public:
  Kept(const RowLayout& l, const Slots& slots, int64_t H, int64_t per_slot, int64_t extra)
      : l_(l), per_slot_(per_slot), H_(H), table_bytes_(round_up(H * int64_t(sizeof(int32_t)), 64)),
        arena_(size_t(table_bytes_ + (slots.count() * per_slot + extra) * l.stride * int64_t(sizeof(A)))) {
    if (!arena_.ok()) return;
    slots.fill(table());
    rows_ = reinterpret_cast<A*>(arena_.data() + table_bytes_) + l.front;
    extra_ = rows_ + slots.count() * per_slot * l.stride;
  }
  bool ok() const { return arena_.ok(); }
  // Row i of the numbers kept for row y.
  A* at(int64_t y, int64_t i) const { return rows_ + (table()[y] * per_slot_ + i) * l_.stride; }
  A* extra(int64_t i) const { return extra_ + i * l_.stride; }

 private:
  int32_t* table() const { return reinterpret_cast<int32_t*>(arena_.data()); }
  RowLayout l_;
  int64_t per_slot_, H_, table_bytes_;
  Arena arena_;
  A *rows_ = nullptr, *extra_ = nullptr;
};

// Rows y+1 and y-1; beyond a border that is not periodic stands `self` (mirrored) or `zero`.
template <class A, class At>
PDECNN_INLINE void rows_beside(const Scheme<A>& q, int64_t y, int64_t H, const At& at, A* zero, A*& plus, A*& minus) {
  const bool mirrored = q.boundary == kNeumann;
  plus = y + 1 < H ? at(y + 1) : q.periodic() ? at(0) : mirrored ? at(y) : zero;
  minus = y > 0 ? at(y - 1) : q.periodic() ? at(H - 1) : mirrored ? at(y) : zero;
}

template <class A>
PDECNN_INLINE void copy_row(A* PDECNN_RESTRICT to, const A* PDECNN_RESTRICT from, int64_t n) {
  PDECNN_VECTORIZE
  for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

// What the forward march keeps: per row the coefficients and two states; besides, the fields of the newest row and zeros.
template <class A>
struct ForwardRows {
  static constexpr int kStates = Coefficients<A>::kRows, kPerSlot = kStates + 2;
  static constexpr int kFields = 8, kZero = kFields, kExtra = kFields + 1;

  static Kept<A> keep(const RowLayout& l, int64_t H, int64_t K) {
    return Kept<A>(l, Slots(H, K + 1, K + 2), H, kPerSlot, kExtra);
  }
};

// Solves the K steps for one group. `read(y, h, h_prev) -> Fields` brings row y; `write(y, h)` takes row y of h^K.
template <class A, class Read, class Write>
void march(const Scheme<A>& q, const RowLayout& l, int64_t H, int64_t K, const Kept<A>& kept, Read&& read, Write&& write) {
  using R = ForwardRows<A>;
  A* zero = kept.extra(R::kZero);
  for (int64_t t = 0; t < H + 2 * K; ++t) {
    if (t < H) {
      A *h = kept.at(t, R::kStates), *h_prev = kept.at(t, R::kStates + 1);
      const Fields<A> fields = read(t, h, h_prev);
      coefficients_row(q, l, fields, Coefficients<A>::at(kept.at(t, 0), l.stride), t, H, false);
      q.state_halos(h, l);
    }
    // level k at row t - k, while k <= t - k <= H + k - 1
    for (int64_t k = max<int64_t>(1, (t - H + 2) / 2); k <= min(K, t / 2); ++k) {
      const int64_t y = actual_row(t - k, H), from = R::kStates + (k - 1) % 2, to = R::kStates + k % 2;
      A *plus, *minus, *next = kept.at(y, to);
      rows_beside(q, y, H, [&](int64_t i) { return kept.at(i, from); }, zero, plus, minus);
      step_row(l.length, l.lanes, Coefficients<A>::at(kept.at(y, 0), l.stride), next, kept.at(y, from), plus, minus);
      if (k == K) write(y, next);
      else q.state_halos(next, l);
    }
  }
}

}  // namespace PDECNN_NS
