/* All that a generated file needs of libc: instructions of WebAssembly, with -mbulk-memory. */
#define memcpy __builtin_memcpy
#define memset __builtin_memset
