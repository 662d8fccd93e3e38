// Rows of several planes side by side, as the kernels hold them in cache.
//
// A group of planes is worked on together, in one of two layouts:
//   planar        `segments` planes one after another in a row, lanes = 1      (NCHW)
//   interleaved   one segment whose pixels hold `lanes` channels side by side  (channels_last)
// Either way a row is   [pad] (halo | W pixels | halo) (halo | W pixels | halo) ... [pad]   with every pixel `lanes`
// numbers wide: the neighbour in x is at distance `lanes`, and no loop needs code for the edges. Planes whose rows fit into a
// vector may do without halos (`turned`): each vector holds as many of their rows as fit, and its neighbours in x are its
// lanes in another order.
#pragma once

#include "lanes.h"

namespace PDECNN_NS {

constexpr int64_t kMaxSegments = 64;

struct RowLayout {
  int64_t W, segments, lanes;
  int64_t segment;         // numbers from one segment to the next
  int64_t in_vector, gap;  // segments of a vector, and what is left of it; 1 and 0 where segments have halos
  int64_t front;           // numbers before the first segment
  int64_t length;          // numbers that the row loops run over
  int64_t stride;          // numbers from one row to the next

  RowLayout(int64_t W, int64_t segments, int64_t lanes, size_t size)
      : W(W), segments(segments), lanes(lanes), segment((W + 2) * lanes), in_vector(1), gap(0), front(round_up(lanes, 16)),
        length(round_up(segments * segment, 16)), stride(front + length + front) {
    // Rows at a multiple of a power of two would all fall into the same few sets of the cache.
    if ((stride * int64_t(size)) % 512 == 0) stride += 16;
  }
  static RowLayout turned(int64_t W, int64_t segments, int64_t vector) {
    RowLayout l(W, segments, 1, 1);
    l.in_vector = vector / W;
    l.segment = l.in_vector == 1 ? vector : W, l.gap = l.in_vector == 1 ? 0 : vector - l.in_vector * W;
    l.length = (segments + l.in_vector - 1) / l.in_vector * vector;
    return l;
  }

  // The first pixel of a segment, from the start of a row's segments.
  int64_t pixel0(int64_t s) const { return s * segment + (gap == 0 ? 0 : s / in_vector * gap) + lanes; }
};

// The planes of one group: plane s is (n[s], c[s]); interleaved lanes are channels c[0], c[0] + 1, ...
struct Group {
  int64_t n[kMaxSegments], c[kMaxSegments];
};

// How the N*C planes of a problem are cut into groups of `together`, of one sample each where channels lie side by side. It
// depends on the shapes alone, never on the threads.
struct Grouping {
  int64_t C, together, blocks, count, planes;
  bool interleaved;

  Grouping(int64_t N, int64_t C, bool interleaved, int64_t wanted) : C(C), planes(N * C), interleaved(interleaved) {
    together = min(wanted, max<int64_t>(1, interleaved ? C : min(planes, kMaxSegments)));
    blocks = (C + together - 1) / together;
    count = interleaved ? N * blocks : (planes + together - 1) / together;
  }

  // Fills in group i and returns how many planes it has: the last of a kind may have fewer.
  int64_t group(int64_t i, Group& g) const {
    if (interleaved) {
      g.n[0] = i / blocks, g.c[0] = i % blocks * together;
      return min(together, C - g.c[0]);
    }
    const int64_t first = i * together, many = min(together, planes - first);
    int64_t n = first / C, c = first % C;
    for (int64_t s = 0; s < many; ++s) {
      g.n[s] = n, g.c[s] = c;
      if (++c == C) c = 0, ++n;
    }
    return many;
  }
};

// Some rows of W pixels of some lanes each; the distances of rows, pixels and lanes are those in memory.
struct Distances {
  int64_t row, pixel, lane;
};
template <class To, class From>
PDECNN_INLINE void copy_pixels(To* to, const Distances& to_next, const From* from, const Distances& from_next, int64_t rows,
                               int64_t W, int64_t lanes) {
  if (lanes == 1 && to_next.pixel == 1 && from_next.pixel == 1) {
    if (to_next.row == W && from_next.row == W) copy_row(to, from, rows * W);
    else copy_rows(to, to_next.row, from, from_next.row, W, rows);
    return;
  }
  for (int64_t r = 0; r < rows; ++r, to += to_next.row, from += from_next.row) {
    if (lanes == 1) copy_strided(to, to_next.pixel, from, from_next.pixel, W);
    else if (to_next.lane != 1 || from_next.lane != 1)
      for (int64_t x = 0; x < W; ++x)
        copy_strided(to + x * to_next.pixel, to_next.lane, from + x * from_next.pixel, from_next.lane, lanes);
    else if (to_next.pixel == lanes && from_next.pixel == lanes) copy_row(to, from, W * lanes);
    else copy_rows(to, to_next.pixel, from, from_next.pixel, lanes, W);
  }
}

// Some rows of the map's planes, from row y on, into the segments of rows at `row`, and back; halos are left as they are.
template <class T, class A>
void load_rows(A* row, int64_t stride, const Map& m, const Group& g, const RowLayout& l, int64_t y, int64_t rows) {
  for (int64_t s = 0; s < l.segments; ++s) {
    const T* from = static_cast<const T*>(m.data) + g.n[s] * m.sn + g.c[s] * m.sc + y * m.sy;
    copy_pixels(row + l.pixel0(s), {stride, l.lanes, 1}, from, {m.sy, m.sx, m.sc}, rows, l.W, l.lanes);
  }
}
template <class T, class A>
void store_rows(const A* row, int64_t stride, const Map& m, const Group& g, const RowLayout& l, int64_t y, int64_t rows) {
  for (int64_t s = 0; s < l.segments; ++s) {
    T* to = static_cast<T*>(m.data) + g.n[s] * m.sn + g.c[s] * m.sc + y * m.sy;
    copy_pixels(to, {m.sy, m.sx, m.sc}, row + l.pixel0(s), {stride, l.lanes, 1}, rows, l.W, l.lanes);
  }
}

// Calls planes into cache, from row y on: those of a group, or those that follow it. No prefetcher of the processor foresees
// so many short ones.
template <class T>
void call_rows(const Map& m, const Group& g, const RowLayout& l, int64_t y, int64_t rows, bool is_next) {
  const int64_t numbers = rows * l.W * l.lanes;
  if (m.sy != l.W) return;  // they do not lie one after another
  for (int64_t s = 0; s < l.segments; ++s) {
    const T *at = static_cast<const T*>(m.data) + g.n[s] * m.sn + g.c[s] * m.sc + y * m.sy,
            *end = at + min<int64_t>(numbers, 2048);
    for (const int64_t ahead = is_next ? l.segments * numbers : 0; at < end; at += 64 / int64_t(sizeof(T)))
      PDECNN_PREFETCH(at + ahead);
  }
}

// These three, by the type that maps are stored in.
template <class A>
struct Storage {
  void (*load_rows)(A* row, int64_t stride, const Map&, const Group&, const RowLayout&, int64_t y, int64_t rows);
  void (*store_rows)(const A* row, int64_t stride, const Map&, const Group&, const RowLayout&, int64_t y, int64_t rows);
  void (*call_rows)(const Map&, const Group&, const RowLayout&, int64_t y, int64_t rows, bool is_next);

  void load(A* row, const Map& m, const Group& g, const RowLayout& l, int64_t y) const {
    call_rows(m, g, l, y, 1, true);
    load_rows(row, 0, m, g, l, y, 1);
  }
  void store(const A* row, const Map& m, const Group& g, const RowLayout& l, int64_t y) const {
    store_rows(row, 0, m, g, l, y, 1);
  }
};
template <class T>
inline constexpr Storage<arithmetic_t<T>> kStorage{load_rows<T, arithmetic_t<T>>, store_rows<T, arithmetic_t<T>>, call_rows<T>};

// Halos of some rows take the opposite border, or the near one times `parity`; 0 stands for zeros, whatever is near.
template <class A>
PDECNN_INLINE void set_halos(A* row, int64_t stride, int64_t rows, const RowLayout& l, bool wrap, A parity) {
  const int64_t lanes = l.lanes, segments = l.segments, segment = l.segment, last = (l.W - 1) * lanes;
  const int64_t left = wrap ? last : 0, right = wrap ? 0 : last;
  auto set = [=](const auto& value) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t s = 0; s < segments; ++s) {
        A* q = row + r * stride + s * segment + lanes;
        auto both = [=](int64_t c) { q[c - lanes] = value(q[left + c]), q[last + lanes + c] = value(q[right + c]); };
        if (lanes == 1) both(0);  // no loop, which the compiler would make long
        else
          for (int64_t c = 0; c < lanes; ++c) both(c);
      }
  };
  if (wrap) set([](A from) { return from; });
  else if (parity == 0) set([](A) { return A(0); });
  else set([=](A from) { return parity * from; });
}

}  // namespace PDECNN_NS
