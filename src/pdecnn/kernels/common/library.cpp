// The parts of the library that belong to no kernel.
#if defined(_WIN32)
#define PDECNN_EXPORT extern "C" __declspec(dllexport)
#else
#define PDECNN_EXPORT extern "C" __attribute__((visibility("default")))
#endif

// Bumped whenever the signature of an exported function changes; Python refuses a library of another number.
PDECNN_EXPORT int pdecnn_abi_version() { return 1; }
