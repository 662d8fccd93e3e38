// As much of ONNX Runtime as the operators call, made from bytes: any attributes, any shapes, inputs that are not there,
// and entries that fail. It counts what it hands out, so that nothing may be kept or given back twice.
#pragma once

#include <atomic>
#include <string>

#include "bytes.h"
#include "onnxruntime_abi.h"

struct OrtStatus {
  std::string text;
};
struct OrtValue {
  std::vector<int64_t> dims;
  void* data;
};
struct OrtTensorTypeAndShapeInfo {
  const std::vector<int64_t>* dims;
};
struct OrtKernelInfo {
  Bytes* bytes;
  bool good = true;  // whether all that was read is allowed
};
struct OrtKernelContext {
  Bytes* bytes;
  std::vector<const OrtValue*> inputs;
  Memory* memory;
  OrtValue out{{}, nullptr};
};

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const ort::ApiBase* base);

namespace fake {

inline thread_local int statuses = 0, infos = 0;
inline thread_local bool may_fail = false;
inline std::atomic<const ort::CustomOp*> layer{nullptr}, solver{nullptr};

inline OrtStatus* create_status(int, const char* message) {
  ++statuses;
  return new OrtStatus{message};
}
inline void release_status(OrtStatus* status) {
  --statuses;
  delete status;
}
// Now and then an entry fails.
inline OrtStatus* outcome(Bytes* bytes) {
  return may_fail && bytes->byte() == 255 ? create_status(ort::kFail, "pdecnn:: of the runtime") : nullptr;
}

inline OrtStatus* get_float(const OrtKernelInfo* info, const char* name, float* out) {
  static constexpr float values[] = {0.2f,
                                     1,
                                     0.5f,
                                     2,
                                     0.2f,
                                     1,
                                     1e-3f,
                                     30,
                                     0,
                                     -1,
                                     1e-45f,
                                     3e38f,
                                     std::numeric_limits<float>::infinity(),
                                     std::numeric_limits<float>::quiet_NaN()};
  if (OrtStatus* status = outcome(info->bytes)) return status;
  const float value = info->bytes->coin() ? info->bytes->one_of(values) : 1;
  const bool may_be_zero = name[0] == 'D';
  *out = value;
  const_cast<OrtKernelInfo*>(info)->good &= std::isfinite(value) && (value > 0 || (value == 0 && may_be_zero));
  return nullptr;
}
inline OrtStatus* get_int(const OrtKernelInfo* info, const char* name, int64_t* out) {
  static constexpr int64_t values[] = {0, 1, 2, 3, 4, -1, 5, 99, std::numeric_limits<int64_t>::min(), int64_t(1) << 62};
  if (OrtStatus* status = outcome(info->bytes)) return status;
  *out = info->bytes->coin() ? info->bytes->one_of(values) : 1;
  const bool is_sign = std::strcmp(name, "flow_sign") == 0, is_act = std::strstr(name, "act") != nullptr;
  const int64_t most = is_act ? 4 : std::strcmp(name, "boundary") == 0 ? 2 : 1;
  const_cast<OrtKernelInfo*>(info)->good &= is_sign ? *out == 1 || *out == -1 : *out >= 0 && *out <= most;
  return nullptr;
}
inline OrtStatus* get_input(const OrtKernelContext* context, size_t i, const OrtValue** out) {
  if (OrtStatus* status = outcome(context->bytes)) return status;
  REQUIRE(i < context->inputs.size(), "input %zu was asked for", i);
  *out = context->inputs[i];
  return nullptr;
}
inline OrtStatus* get_output(OrtKernelContext* context, size_t i, const int64_t* dims, size_t count, OrtValue** out) {
  if (OrtStatus* status = outcome(context->bytes)) return status;
  REQUIRE(i == 0 && context->out.dims.empty(), "output %zu was asked for, or twice", i);
  int64_t numbers = 1;
  for (size_t d = 0; d < count; ++d) numbers *= dims[d];
  REQUIRE(numbers <= 100000, "an output of %lld numbers", (long long)numbers);
  context->out = {{dims, dims + count}, context->memory->result(kFloat32, numbers)};
  context->memory->mark();
  *out = &context->out;
  return nullptr;
}
inline OrtStatus* get_info(const OrtValue* value, OrtTensorTypeAndShapeInfo** out) {
  ++infos;
  *out = new OrtTensorTypeAndShapeInfo{&value->dims};
  return nullptr;
}

inline const ort::Api* api(uint32_t version) {
  REQUIRE(version == ort::kApiVersion, "another version");
  static const ort::Api table = [] {
    ort::Api a{};
    a.CreateStatus = create_status, a.ReleaseStatus = release_status;
    a.CreateCustomOpDomain = [](const char*, OrtCustomOpDomain**) -> OrtStatus* { return nullptr; };
    a.CustomOpDomain_Add = [](OrtCustomOpDomain*, const ort::CustomOp* op) -> OrtStatus* {
      (std::strcmp(op->GetName(op), "GlobalLayer") == 0 ? layer : solver) = op;
      return nullptr;
    };
    a.AddCustomOpDomain = [](OrtSessionOptions*, OrtCustomOpDomain*) -> OrtStatus* { return nullptr; };
    a.GetTensorMutableData = [](OrtValue* value, void** out) -> OrtStatus* { return *out = value->data, nullptr; };
    a.GetDimensionsCount = [](const OrtTensorTypeAndShapeInfo* info, size_t* out) -> OrtStatus* {
      return *out = info->dims->size(), nullptr;
    };
    a.GetDimensions = [](const OrtTensorTypeAndShapeInfo* info, int64_t* dims, size_t count) -> OrtStatus* {
      REQUIRE(count <= info->dims->size(), "%zu dimensions were asked for", count);
      std::copy(info->dims->begin(), info->dims->begin() + int64_t(count), dims);
      return nullptr;
    };
    a.GetTensorTypeAndShape = get_info;
    a.ReleaseTensorTypeAndShapeInfo = [](OrtTensorTypeAndShapeInfo* info) { --infos, delete info; };
    a.KernelInfoGetAttribute_float = get_float, a.KernelInfoGetAttribute_int64 = get_int;
    a.KernelContext_GetInput = get_input, a.KernelContext_GetOutput = get_output;
    return a;
  }();
  return &table;
}

inline const ort::ApiBase base{api, [] { return "0"; }};

// The shapes that an operator is made for, some of them changed.
inline std::vector<std::vector<int64_t>> shapes(Bytes& b, bool is_layer) {
  static constexpr int64_t widths[] = {1, 3, 7, 8, 9};
  const int64_t N = b.between(0, 2), C = b.between(1, 4), H = b.between(1, 4), W = b.one_of(widths);
  const std::vector<int64_t> like{N, C, H, W}, channel{1, C, 1, 1}, number{};
  std::vector<std::vector<int64_t>> all{like, like};
  if (is_layer) {
    const int64_t maps = b.coin() ? 2 : 4, side = 1 + 2 * b.between(0, 2);
    all.insert(all.end(), {{maps, C, side, side}, {maps, C}, {C}, {C}});
  } else {
    for (int i = 0; i < 4; ++i) all.push_back(b.coin() ? like : b.coin() ? channel : number);
    all.push_back(like);
  }
  all.push_back(b.coin() ? std::vector<int64_t>{1} : number);
  for (auto& dims : all)
    if (b.byte() % 16 == 15) switch (b.byte() % 4) {
        case 0: dims.push_back(b.between(0, 2)); break;
        case 1:
          if (!dims.empty()) dims.pop_back();
          break;
        case 2:  // nothing of something huge, in any order
          dims.assign({0, int64_t(1) << 62, 1, 3});
          std::swap(dims[0], dims[size_t(b.between(0, 3))]), std::swap(dims[1], dims[size_t(b.between(0, 3))]);
          break;
        default:
          for (int64_t& d : dims) d = b.byte() % 3 ? d : b.between(0, 6);
      }
  return all;
}

// Whether a call was refused; it must say which operator did.
inline bool refused(OrtStatus* status) {
  if (status == nullptr) return false;
  REQUIRE(status->text.find("pdecnn::") == 0, "no operator is named: %s", status->text.c_str());
  release_status(status);
  return true;
}

// A kernel with attributes from bytes; null where they are refused.
inline void* create(Bytes& b, const ort::CustomOp* op) {
  OrtKernelInfo info{&b};
  void* kernel = nullptr;
  const int before = statuses;
  const bool is_refused = refused(op->CreateKernelV2(op, api(1), &info, &kernel));
  REQUIRE(statuses == before && is_refused == (kernel == nullptr), "something is left of a refusal");
  REQUIRE(is_refused || info.good, "a bad attribute was taken");
  return kernel;
}

// Runs a kernel on inputs from bytes.
inline void compute(Bytes& b, const ort::CustomOp* op, void* kernel) {
  static constexpr int64_t numbers[] = {1, 2, 3, 1, 2, 3, 0, -1, 10001, int64_t(1) << 62};
  Memory memory;
  Values values(b);
  std::vector<OrtValue> inputs;
  for (auto& dims : shapes(b, op == layer)) {
    int64_t count = 1;
    for (int64_t d : dims) count = d == 0 || count == 0 ? 0 : count * d;
    inputs.push_back({dims, memory.filled(kFloat32, count, values)});
  }
  std::vector<int64_t> K(5000, b.one_of(numbers));
  if (inputs.back().data != nullptr) inputs.back().data = K.data();
  OrtKernelContext context{&b, {}, &memory};
  for (const OrtValue& value : inputs) context.inputs.push_back(b.byte() == 254 ? nullptr : &value);
  const int before = statuses, infos_before = infos;
  if (!refused(op->KernelComputeV2(kernel, &context))) {
    REQUIRE(context.out.dims == inputs[0].dims, "the result has another shape than h");
    REQUIRE(K[0] >= 1 && K[0] <= 10000, "K of %lld was taken", (long long)K[0]);
    memory.require_written("an operator");
  }
  REQUIRE(statuses == before && infos == infos_before, "something was not given back");
}

// One node from bytes: created and, if it was, run.
inline void node(Bytes& b) {
  const ort::CustomOp* op = b.coin() ? layer : solver;
  may_fail = b.byte() % 4 == 3;
  if (void* kernel = create(b, op)) {
    compute(b, op, kernel);
    op->KernelDestroy(kernel);
  }
}

}  // namespace fake
