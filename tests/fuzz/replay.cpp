// Feeds files to a fuzz target, where there is no libFuzzer.
#include <cstdint>
#include <cstdio>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::FILE* file = std::fopen(argv[i], "rb");
    if (file == nullptr) return std::perror(argv[i]), 1;
    std::vector<uint8_t> data(1 << 16);
    data.resize(std::fread(data.data(), 1, data.size(), file));
    std::fclose(file);
    LLVMFuzzerTestOneInput(data.data(), data.size());
  }
  std::printf("%d files\n", argc - 1);
  return 0;
}
