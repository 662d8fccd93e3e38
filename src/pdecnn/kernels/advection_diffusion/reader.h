// Brings the fields of a group of planes to the march, row by row, and runs groups on torch's threads.
#pragma once

#include "march.h"

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

}  // namespace PDECNN_NS
