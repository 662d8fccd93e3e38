// Rows of several planes side by side, as the kernels hold them in cache.
//
// A group of planes is worked on together, in one of two layouts:
//   planar        `segments` planes one after another in a row, lanes = 1      (NCHW)
//   interleaved   one segment whose pixels hold `lanes` channels side by side  (channels_last)
// Either way a row is   [pad] (halo | W pixels | halo) (halo | W pixels | halo) ... [pad]   with every pixel `lanes`
// numbers wide: the neighbour in x is at distance `lanes`, and no loop needs code for the edges.
#pragma once

#include "lanes.h"

namespace PDECNN_NS {

constexpr int64_t kMaxSegments = 64;

struct RowLayout {
  int64_t W, segments, lanes;
  int64_t segment;  // numbers from one segment to the next
  int64_t front;    // numbers before the first segment
  int64_t length;   // numbers that the row loops run over
  int64_t stride;   // numbers from one row to the next

  RowLayout(int64_t W, int64_t segments, int64_t lanes, size_t size) : W(W), segments(segments), lanes(lanes) {
    segment = (W + 2) * lanes;
    front = round_up(lanes, 16);
    length = round_up(segments * segment, 16);
    stride = front + length + front;
    // Rows at a multiple of a power of two would all fall into the same few sets of the cache.
    if ((stride * int64_t(size)) % 512 == 0) stride += 16;
  }

  // The first pixel of a segment, from the start of a row's segments.
  int64_t pixel0(int64_t s) const { return s * segment + lanes; }
};

// The planes of one group: plane s is (n[s], c[s]); interleaved lanes are channels c[0], c[0] + 1, ...
struct Group {
  int64_t n[kMaxSegments], c[kMaxSegments];
};

// How the N*C planes of a problem are cut into groups. It depends on the shapes alone, never on the threads.
struct Grouping {
  int64_t C, segments, lanes, blocks, count, planes;
  bool interleaved;

  Grouping(int64_t N, int64_t C, int64_t W, bool interleaved, int64_t target) : C(C), interleaved(interleaved) {
    planes = N * C;
    int64_t wanted = max<int64_t>(1, target / (W + 2));
    if (interleaved) {
      blocks = max<int64_t>(1, C / max<int64_t>(16, wanted));
      lanes = (C + blocks - 1) / blocks;
      blocks = (C + lanes - 1) / lanes;
      segments = 1;
      count = N * blocks;
    } else {
      segments = min(min(wanted, kMaxSegments), max<int64_t>(planes, 1));
      lanes = 1;
      blocks = 1;
      count = (planes + segments - 1) / segments;
    }
  }

  // Fills in group i and returns its layout: the last group of a kind may be narrower.
  RowLayout group(int64_t i, int64_t W, size_t size, Group& g) const {
    if (interleaved) {
      g.n[0] = i / blocks;
      g.c[0] = i % blocks * lanes;
      return RowLayout(W, 1, min(lanes, C - g.c[0]), size);
    }
    int64_t first = i * segments, many = min(segments, planes - first);
    for (int64_t s = 0; s < many; ++s) {
      g.n[s] = (first + s) / C;
      g.c[s] = (first + s) % C;
    }
    return RowLayout(W, many, 1, size);
  }
};

// W pixels of some lanes each; the distances of pixels and of lanes are those in memory.
template <class To, class From>
PDECNN_INLINE void copy_pixels(To* to, int64_t to_pixel, int64_t to_lane, const From* from, int64_t from_pixel,
                               int64_t from_lane, int64_t W, int64_t lanes) {
  if (lanes == 1) return copy_strided(to, to_pixel, from, from_pixel, W);
  if (to_lane == 1 && from_lane == 1 && to_pixel == lanes && from_pixel == lanes) return copy_numbers(to, from, W * lanes);
  for (int64_t x = 0; x < W; ++x) copy_strided(to + x * to_pixel, to_lane, from + x * from_pixel, from_lane, lanes);
}

// Some rows of the map's planes, from row y on, into the segments of rows at `row`, and back; halos are left as they are.
template <class T, class A>
void load_rows(A* row, int64_t stride, const Map& m, const Group& g, const RowLayout& l, int64_t y, int64_t rows) {
  for (int64_t s = 0; s < l.segments; ++s) {
    const T* from = static_cast<const T*>(m.data) + g.n[s] * m.sn + g.c[s] * m.sc + y * m.sy;
    A* to = row + l.pixel0(s);
    // The plane that follows is called into cache: no prefetcher of the processor foresees so many short ones.
    for (int64_t i = 0; m.sy == l.W && i < min<int64_t>(rows * l.W, 2048); i += 64 / int64_t(sizeof(T)))
      PDECNN_PREFETCH(from + rows * l.W + i);
    if (l.lanes == 1 && m.sx == 1 && m.sy == l.W && stride == l.W) copy_row(to, from, rows * l.W);
    else
      for (int64_t r = 0; r < rows; ++r, to += stride, from += m.sy)
        copy_pixels(to, l.lanes, 1, from, m.sx, m.sc, l.W, l.lanes);
  }
}
template <class T, class A>
void store_rows(const A* row, int64_t stride, const Map& m, const Group& g, const RowLayout& l, int64_t y, int64_t rows) {
  for (int64_t s = 0; s < l.segments; ++s) {
    T* to = static_cast<T*>(m.data) + g.n[s] * m.sn + g.c[s] * m.sc + y * m.sy;
    const A* from = row + l.pixel0(s);
    if (l.lanes == 1 && m.sx == 1 && m.sy == l.W && stride == l.W) copy_row(to, from, rows * l.W);
    else
      for (int64_t r = 0; r < rows; ++r, from += stride, to += m.sy)
        copy_pixels(to, m.sx, m.sc, from, l.lanes, 1, l.W, l.lanes);
  }
}

// These two, by the type that maps are stored in.
template <class A>
struct Storage {
  void (*load_rows)(A* row, int64_t stride, const Map&, const Group&, const RowLayout&, int64_t y, int64_t rows);
  void (*store_rows)(const A* row, int64_t stride, const Map&, const Group&, const RowLayout&, int64_t y, int64_t rows);

  void load(A* row, const Map& m, const Group& g, const RowLayout& l, int64_t y) const { load_rows(row, 0, m, g, l, y, 1); }
  void store(const A* row, const Map& m, const Group& g, const RowLayout& l, int64_t y) const {
    store_rows(row, 0, m, g, l, y, 1);
  }
};
template <class T>
inline constexpr Storage<arithmetic_t<T>> kStorage{load_rows<T, arithmetic_t<T>>, store_rows<T, arithmetic_t<T>>};

// Halos take the opposite border, or the near one times `parity`; 0 stands for zeros, whatever is near.
template <class A>
PDECNN_INLINE void set_halos(A* row, const RowLayout& l, bool wrap, A parity) {
  const int64_t lanes = l.lanes, last = (l.W - 1) * lanes, left = wrap ? last : 0, right = wrap ? 0 : last;
  auto set = [&](const auto& value) {
    for (int64_t s = 0; s < l.segments; ++s) {
      A* q = row + l.pixel0(s);
      auto both = [&](int64_t c) { q[c - lanes] = value(q[left + c]), q[last + lanes + c] = value(q[right + c]); };
      if (lanes == 1) both(0);  // no loop, which the compiler would make long
      else
        for (int64_t c = 0; c < lanes; ++c) both(c);
    }
  };
  if (wrap) set([](A from) { return from; });
  else if (parity == 0) set([](A) { return A(0); });
  else set([&](A from) { return parity * from; });
}

}  // namespace PDECNN_NS
