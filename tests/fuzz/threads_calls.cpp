// Calls of the C interface from two threads, each split over three more; ThreadSanitizer watches, and the bits must be
// those of one thread.
#include <atomic>

#include "calls.h"
#include "on_threads.h"

namespace {

thread_local bool alone = false;
std::atomic<long> split{0};

int32_t parallel_for(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*), void* context) {
  if (alone) return body(begin, end, context), 0;
  ++split;
  const int64_t part = (end - begin + 2) / 3 > grain ? (end - begin + 2) / 3 : grain;
  std::vector<std::thread> threads;
  for (; begin < end; begin += part) threads.emplace_back(body, begin, begin + part < end ? begin + part : end, context);
  for (std::thread& t : threads) t.join();
  return 0;
}

void run(const char* name, calls::Run function, const void* call, Memory& memory, bool may_refuse) {
  memory.mark();
  const int32_t status = function(call);
  if (may_refuse && status == kBadArgument) return;
  REQUIRE(status == kOk, "%s answered %d", name, status);
  memory.require_written(name);
  const std::vector<char> found = memory.copy();
  memory.mark();
  alone = true;
  function(call);
  alone = false;
  REQUIRE(memory.copy() == found, "%s has other bits on threads", name);
}

}  // namespace

int main(int argc, char** argv) {
  pdecnn_set_parallel_for(parallel_for);
  const int code = on_two_threads(argc, argv, [](Bytes& bytes) { calls::any(bytes, {true, run}); });
  std::printf("%ld times the work was split\n", split.load());
  return code;
}
