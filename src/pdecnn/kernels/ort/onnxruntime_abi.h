// The few entries of ONNX Runtime's C interface that a custom operator needs, so that building needs none of its headers.
//
// The interface is a table of function pointers that is only ever appended to: an entry keeps its place in all later
// versions. All entries used here belong to version 1 of the table, which ends with ReleaseCustomOpDomain at place 101,
// so `GetApi(1)` is asked for and the table of every release serves. `OrtCustomOp` also carries a version and grows at its
// end; the fields below are those of version 16, the first whose kernels can report errors: ONNX Runtime 1.16 or later.
#pragma once

#include <cstddef>
#include <cstdint>

struct OrtStatus;
struct OrtValue;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtTensorTypeAndShapeInfo;

#if defined(_WIN32)
#define ORT_CALL __stdcall
#else
#define ORT_CALL
#endif

namespace ort {

constexpr uint32_t kApiVersion = 1, kCustomOpVersion = 16;
constexpr int kFail = 1, kInvalidArgument = 2;  // OrtErrorCode
constexpr int kFloat = 1, kInt64 = 7;           // ONNXTensorElementDataType

struct Api;

struct ApiBase {
  const Api*(ORT_CALL* GetApi)(uint32_t version);
  const char*(ORT_CALL* GetVersionString)();
};

using Entry = void (*)();

// Gaps between the entries in use are counted, not named.
struct Api {
  OrtStatus*(ORT_CALL* CreateStatus)(int code, const char* message);  // 0
  Entry skipped_1[25];
  OrtStatus*(ORT_CALL* CreateCustomOpDomain)(const char* domain, OrtCustomOpDomain** out);         // 26
  OrtStatus*(ORT_CALL* CustomOpDomain_Add)(OrtCustomOpDomain* domain, const struct CustomOp* op);  // 27
  OrtStatus*(ORT_CALL* AddCustomOpDomain)(OrtSessionOptions* options, OrtCustomOpDomain* domain);  // 28
  Entry skipped_29[22];
  OrtStatus*(ORT_CALL* GetTensorMutableData)(OrtValue* value, void** out);  // 51
  Entry skipped_52[9];
  OrtStatus*(ORT_CALL* GetDimensionsCount)(const OrtTensorTypeAndShapeInfo* info, size_t* out);             // 61
  OrtStatus*(ORT_CALL* GetDimensions)(const OrtTensorTypeAndShapeInfo* info, int64_t* dims, size_t count);  // 62
  Entry skipped_63[2];
  OrtStatus*(ORT_CALL* GetTensorTypeAndShape)(const OrtValue* value, OrtTensorTypeAndShapeInfo** out);  // 65
  Entry skipped_66[19];
  OrtStatus*(ORT_CALL* KernelInfoGetAttribute_float)(const OrtKernelInfo* info, const char* name, float* out);  // 85
  OrtStatus*(ORT_CALL* KernelInfoGetAttribute_int64)(const OrtKernelInfo* info, const char* name, int64_t* out);
  Entry skipped_87[3];
  OrtStatus*(ORT_CALL* KernelContext_GetInput)(const OrtKernelContext* context, size_t i, const OrtValue** out);  // 90
  OrtStatus*(ORT_CALL* KernelContext_GetOutput)(OrtKernelContext* context, size_t i, const int64_t* dims, size_t count,
                                                OrtValue** out);  // 91
  Entry skipped_92[1];
  void(ORT_CALL* ReleaseStatus)(OrtStatus* status);  // 93
  Entry skipped_94[5];
  void(ORT_CALL* ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo* info);  // 99
  Entry skipped_100[2];
};
static_assert(sizeof(Api) == 102 * sizeof(Entry), "the table of version 1 has 102 entries");
static_assert(offsetof(Api, KernelContext_GetInput) == 90 * sizeof(Entry), "an entry has lost its place");

struct CustomOp {
  uint32_t version;
  Entry create_kernel;  // replaced by CreateKernelV2
  const char*(ORT_CALL* GetName)(const CustomOp* op);
  const char*(ORT_CALL* GetExecutionProviderType)(const CustomOp* op);
  int(ORT_CALL* GetInputType)(const CustomOp* op, size_t i);
  size_t(ORT_CALL* GetInputTypeCount)(const CustomOp* op);
  int(ORT_CALL* GetOutputType)(const CustomOp* op, size_t i);
  size_t(ORT_CALL* GetOutputTypeCount)(const CustomOp* op);
  Entry kernel_compute;  // replaced by KernelComputeV2
  void(ORT_CALL* KernelDestroy)(void* kernel);
  int(ORT_CALL* GetInputCharacteristic)(const CustomOp* op, size_t i);   // 0: required
  int(ORT_CALL* GetOutputCharacteristic)(const CustomOp* op, size_t i);  // 0: required
  int(ORT_CALL* GetInputMemoryType)(const CustomOp* op, size_t i);       // 0: where the operator runs
  int(ORT_CALL* GetVariadicInputMinArity)(const CustomOp* op);
  int(ORT_CALL* GetVariadicInputHomogeneity)(const CustomOp* op);
  int(ORT_CALL* GetVariadicOutputMinArity)(const CustomOp* op);
  int(ORT_CALL* GetVariadicOutputHomogeneity)(const CustomOp* op);
  OrtStatus*(ORT_CALL* CreateKernelV2)(const CustomOp* op, const Api* api, const OrtKernelInfo* info, void** kernel);
  OrtStatus*(ORT_CALL* KernelComputeV2)(void* kernel, OrtKernelContext* context);
  Entry later[16];  // of later versions, null
};

}  // namespace ort
