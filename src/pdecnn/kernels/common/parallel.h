// Threads, and the memory of each.
#pragma once

#include "pdecnn.h"

// torch's own thread pool, handed over when the library is loaded; null means serial. Returns 0 on success.
using ParallelFor = int32_t (*)(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*), void*);
extern "C" ParallelFor pdecnn_parallel_for;

namespace PDECNN_NS {

// Memory at a multiple of 64 bytes, released at the end of its scope.
class AlignedMemory {
 public:
  explicit AlignedMemory(size_t bytes) : AlignedMemory(bytes, std::malloc(bytes + 64)) {}
  ~AlignedMemory() { std::free(raw_); }
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;
  bool ok() const { return raw_ != nullptr; }
  char* data() const { return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(raw_) + 63) / 64 * 64); }

 protected:
  AlignedMemory(size_t, void* raw) : raw_(raw) {}

 private:
  void* raw_;
};

// The same, zeroed; one per thread and call.
class Arena : public AlignedMemory {
 public:
  explicit Arena(size_t bytes) : AlignedMemory(bytes, std::calloc(bytes + 64, 1)) {}
};

// Calls body(begin, end) over [0, n) in parts. How it is split depends on the threads: body must not.
template <class F>
Status parallel_for(int64_t n, int64_t grain, const F& body) {
  if (n == 0) return kOk;
  if (pdecnn_parallel_for == nullptr || n <= grain) {
    body(int64_t(0), n);
    return kOk;
  }
  auto call = [](int64_t begin, int64_t end, void* f) { (*static_cast<const F*>(f))(begin, end); };
  int32_t error = pdecnn_parallel_for(0, n, grain, call, const_cast<void*>(static_cast<const void*>(&body)));
  return error == 0 ? kOk : kThreadPool;
}

// How many pieces of work of so many multiply-adds are worth a thread.
PDECNN_INLINE int64_t grain(int64_t work) { return max<int64_t>(1, 32768 / max<int64_t>(1, work)); }

// The same with `bytes` of zeroed memory for each part: body(begin, end, memory).
template <class F>
Status parallel_for(int64_t n, int64_t grain, size_t bytes, const F& body) {
  int32_t failed = 0;
  const Status status = parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    const Arena arena(bytes);
    if (arena.ok()) body(begin, end, arena.data());
    else failed = 1;
  });
  return failed ? kOutOfMemory : status;
}

}  // namespace PDECNN_NS
