// Runs a fused ONNX file of pdecnn in C++: ONNX Runtime and libpdecnn_ort, no Python and no torch.
//
//   run_fused net.onnx ./libpdecnn_ort.so input.bin 2,1,28,28
//
// input.bin holds float32 numbers of the shape named last; the outputs are printed one per line.
#include <onnxruntime_cxx_api.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

std::vector<int64_t> parse_shape(const std::string& text) {
  std::vector<int64_t> shape;
  std::stringstream stream(text);
  for (std::string size; std::getline(stream, size, ',');) shape.push_back(std::stoll(size));
  return shape;
}

std::vector<float> read_floats(const std::string& path, const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (int64_t size : shape) count *= static_cast<size_t>(size);
  std::vector<float> values(count);
  const auto bytes = static_cast<std::streamsize>(count * sizeof(float));
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(values.data()), bytes) || file.peek() != EOF) {
    throw std::runtime_error(path + ": expected " + std::to_string(bytes) + " bytes.");
  }
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: run_fused MODEL.onnx LIBPDECNN_ORT INPUT.bin N,C,H,W\n");
    return 2;
  }
  try {
    Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "pdecnn");
    Ort::SessionOptions options;
    options.RegisterCustomOpsLibrary(argv[2]);  // the one line that a fused file asks for
    Ort::Session session(env, argv[1], options);

    const std::vector<int64_t> shape = parse_shape(argv[4]);
    std::vector<float> input = read_floats(argv[3], shape);
    const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    Ort::Value x = Ort::Value::CreateTensor<float>(memory, input.data(), input.size(), shape.data(), shape.size());

    Ort::AllocatorWithDefaultOptions allocator;
    const auto input_name = session.GetInputNameAllocated(0, allocator);
    const auto output_name = session.GetOutputNameAllocated(0, allocator);
    const char* inputs[] = {input_name.get()};
    const char* outputs[] = {output_name.get()};
    std::vector<Ort::Value> answer = session.Run(Ort::RunOptions{nullptr}, inputs, &x, 1, outputs, 1);

    const float* values = answer[0].GetTensorData<float>();
    const size_t count = answer[0].GetTensorTypeAndShapeInfo().GetElementCount();
    for (size_t i = 0; i < count; ++i) std::printf("%.9g\n", values[i]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "run_fused: %s\n", error.what());
    return 1;
  }
  return 0;
}
