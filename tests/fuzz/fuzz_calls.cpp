// libFuzzer on the C interface: every call once in uneven parts from the last to the first and, where that made a
// difference to how it ran, once more in one piece, with the same bits.
#include "calls.h"

namespace {

bool was_split = false;

int32_t in_parts(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*), void* context) {
  was_split = true;
  for (int64_t size = grain; begin < end; size = size % 3 + grain) {
    const int64_t from = end - size > begin ? end - size : begin;
    body(from, end, context);
    end = from;
  }
  return 0;
}

void run(const char* name, calls::Run function, const void* call, Memory& memory, bool may_refuse) {
  was_split = false;
  memory.mark();
  pdecnn_set_parallel_for(in_parts);
  const int32_t status = function(call);
  if (may_refuse && status == kBadArgument) return;
  REQUIRE(status == kOk, "%s answered %d", name, status);
  memory.require_written(name);
  if (!was_split) return;
  const std::vector<char> parts = memory.copy();
  memory.mark();
  pdecnn_set_parallel_for(nullptr);
  function(call);
  REQUIRE(memory.copy() == parts, "%s has other bits in parts", name);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  calls::any(bytes, {false, run});
  return 0;
}
