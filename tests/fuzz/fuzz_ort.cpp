// libFuzzer on the operators of ONNX Runtime: whatever a model file holds is computed or refused by name.
#include "fake_ort.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool is_ready = RegisterCustomOps(nullptr, &fake::base) == nullptr && fake::layer && fake::solver;
  REQUIRE(is_ready, "the operators could not be registered");
  Bytes bytes(data, size);
  fake::node(bytes);
  return 0;
}
