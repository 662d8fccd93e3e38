// What is to be computed, how it is cut into tasks, and the memory of a thread.
#pragma once

#include "abi.h"
#include "plane.h"

namespace PDECNN_NS {
namespace depthwise_norm {

// What the norms saw, and the gradients of their scales and shifts; (maps, C) each.
struct Moments {
  const float *mean, *var;
};
struct NormGradient {
  const float *var, *gamma, *beta;
};

// Some channels of some samples.
struct Task {
  int64_t index, n_begin, n_end, c, channels;
};

// Cuts depend on the shape alone, so that sums are added up in one order however many threads there are.
struct Tasks {
  int64_t N, C, channels, blocks, samples, chunks;

  explicit Tasks(const Problem& p) : N(p.N), C(p.C), channels(p.interleaved ? min(kBlock, p.C) : 1) {
    constexpr int64_t kNumbers = 16384;
    blocks = (C + channels - 1) / channels;
    samples = max<int64_t>(1, min(N, kNumbers / (p.plane() * channels)));
    chunks = (N + samples - 1) / samples;
  }
  int64_t count() const { return blocks * chunks; }
  Task task(int64_t i) const {
    const int64_t n = i % chunks * samples, c = i / chunks * channels;
    return {i, n, min(N, n + samples), c, min(channels, C - c)};
  }
  // The sum over the batch of one of the `many` numbers that each task keeps for channel c.
  double total(const double* partial, int64_t c, int64_t many, int64_t which) const {
    double sum = 0;
    for (int64_t j = 0; j < chunks; ++j) sum += partial[((c / channels * chunks + j) * channels + c % channels) * many + which];
    return sum;
  }
};

// How much of a thread's memory a pass asks for: frames, sets of planes to transpose into, and other numbers.
struct Room {
  int64_t frames, slots, numbers = 0;
};

// A thread's frames and, where channels are interleaved, planes to transpose them into.
class Memory {
 public:
  Memory(const Problem& p, int64_t channels, const Room& room)
      : p_(p), frame_(round_up(Frame::numbers(p.H, p.W, p.side / 2), 16)), stride_(p.interleaved ? p.plane() + 16 : p.plane()),
        slot_(channels * stride_), slots_(room.frames * frame_),
        numbers_(round_up(slots_ + (p.interleaved ? room.slots * slot_ : 0), 16)),
        arena_(size_t(numbers_ + room.numbers) * sizeof(float)) {}
  bool ok() const { return arena_.ok(); }
  int64_t stride() const { return stride_; }  // from one plane to the next
  float* numbers() const { return memory() + numbers_; }
  Frame frame(int64_t i) const { return Frame(memory() + i * frame_, p_.H, p_.W, p_.side / 2); }

  // How far the same plane of the next sample is, to ask for it while this one is worked on: no prefetcher of the
  // processor foresees it, as each plane lies in other pages. 0: it is the last, or planes are transposed first.
  int64_t next(int64_t n) const { return p_.interleaved || n + 1 >= p_.N ? 0 : p_.C * p_.plane(); }

  // The planes of the task's channels of sample n.
  const float* read(const float* map, int64_t n, const Task& t, int64_t slot) const {
    if (!p_.interleaved) return map + (n * p_.C + t.c) * p_.plane();
    float* planes = memory() + slots_ + slot * slot_;
    transpose(map + n * p_.plane() * p_.C + t.c, p_.C, planes, stride_, p_.plane(), t.channels);
    return planes;
  }
  // Where they are written; `wrote` brings them to the map.
  float* target(float* map, int64_t n, const Task& t, int64_t slot) const {
    return p_.interleaved ? memory() + slots_ + slot * slot_ : map + (n * p_.C + t.c) * p_.plane();
  }
  void wrote(float* map, int64_t n, const Task& t, int64_t slot) const {
    if (!p_.interleaved) return;
    transpose(memory() + slots_ + slot * slot_, stride_, map + n * p_.plane() * p_.C + t.c, p_.C, t.channels, p_.plane());
  }

 private:
  float* memory() const { return reinterpret_cast<float*>(arena_.data()); }
  const Problem& p_;
  const int64_t frame_, stride_, slot_, slots_, numbers_;
  Arena arena_;
};

// Calls f(task, memory) for every task, at least `grain` of them on a thread.
template <class F>
Status run(const Problem& p, const Tasks& tasks, const Room& room, const F& f, int64_t grain = 1) {
  int32_t failed = 0;
  const Status status = parallel_for(tasks.count(), grain, [&](int64_t begin, int64_t end) {
    const Memory memory(p, tasks.channels, room);
    if (!memory.ok()) failed = 1;
    else
      for (int64_t i = begin; i < end; ++i) f(tasks.task(i), memory);
  });
  return failed ? kOutOfMemory : status;
}

}  // namespace depthwise_norm
}  // namespace PDECNN_NS
