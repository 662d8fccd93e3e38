/* As many floats as the target computes at once. The bits of the results do not depend on it. */
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#elif defined(__SSE2__) || defined(__aarch64__) || defined(__wasm_simd128__)
#define LANES 4
#else
#define LANES 1
#endif
#if LANES > 1
typedef float lanes __attribute__((vector_size(4 * LANES)));
#else
typedef float lanes;
#endif

static inline lanes load(const float *p)
{
    lanes v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void store(float *p, lanes v)
{
    memcpy(p, &v, sizeof v);
}

static inline lanes splat(float x)
{
#if LANES > 1
    lanes v;
    for (int i = 0; i < LANES; i++)
        v[i] = x;
    return v;
#else
    return x;
#endif
}
