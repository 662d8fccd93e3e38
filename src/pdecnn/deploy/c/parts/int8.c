/* Integers in memory that held, or will hold, values of another type. */
#if defined(__GNUC__)
typedef __attribute__((may_alias)) int32_t sum32;
typedef __attribute__((may_alias)) int16_t fixed16;
#else
typedef int32_t sum32;
typedef int16_t fixed16;
#endif

/* v / 2^shift, halves up. */
static inline int64_t rescaled(int64_t v, int shift)
{
    return (v + ((int64_t)1 << (shift - 1))) >> shift;
}

/* The same of 32 bits, and the upper half of a product: a shift by 32 or more in two parts. */
static inline int32_t rounded(int32_t v, int shift)
{
    return (v + (1 << (shift - 1))) >> shift;
}

static inline int32_t upper(int32_t a, int32_t b)
{
    return (int32_t)(((int64_t)a * b) >> 32);
}

static inline int32_t limit(int32_t v, int32_t low, int32_t high)
{
    return v < low ? low : v > high ? high : v;
}

static inline int8_t limit8(int64_t v, int32_t low, int32_t high)
{
    return (int8_t)(v < low ? low : v > high ? high : v);
}

static void quantise(int8_t *y, const float *x, int n, float inverse, int zero)
{
    for (int i = 0; i < n; i++) {
        const float v = x[i] * inverse, w = v > -512.0f ? v : -512.0f, u = w < 512.0f ? w : 512.0f; /* not a number: -512 */
        y[i] = limit8((int)(u + (u < 0.0f ? -0.5f : 0.5f)) + zero, -128, 127);
    }
}

static void dequantise(float *y, const int8_t *x, int n, float scale, int zero)
{
    for (int i = 0; i < n; i++)
        y[i] = (float)(x[i] - zero) * scale;
}

/* From one scale to another. */
static void rescale(int8_t *y, const int8_t *x, int n, int zero, int32_t multiplier, int shift, int to)
{
    for (int i = 0; i < n; i++)
        y[i] = limit8(rescaled((int64_t)(x[i] - zero) * multiplier, shift) + to, -128, 127);
}

/* Means of windows as `mean_of`: (sum * multiplier) / (count * 2^shift), halves up. */
static inline int8_t mean8(const int8_t *x, int W, int top, int bottom, int left, int right, int count, int zero,
                           int32_t multiplier, int shift, int to)
{
    int64_t sum = 0;
    for (int r = top; r < bottom; r++)
        for (int s = left; s < right; s++)
            sum += x[r * W + s] - zero;
    const int64_t all = 2 * (int64_t)count << shift, v = 2 * sum * multiplier + ((int64_t)count << shift);
    return limit8((v - (v < 0 ? all - 1 : 0)) / all + to, -128, 127);
}

static void avg_pool8(int8_t *y, const int8_t *x, int C, int H, int W, int Ho, int Wo, int ky, int kx, int step_y,
                      int step_x, int top, int left, int with_padding, int divisor, int zero, int32_t multiplier,
                      int shift, int to)
{
    for (int c = 0; c < C; c++, x += H * W)
        for (int i = 0; i < Ho; i++)
            for (int j = 0; j < Wo; j++) {
                const int r = i * step_y - top, s = j * step_x - left;
                const int r_end = r + ky < H + top ? r + ky : H + top, s_end = s + kx < W + left ? s + kx : W + left;
                const int r0 = r > 0 ? r : 0, s0 = s > 0 ? s : 0;
                const int r1 = r_end < H ? r_end : H, s1 = s_end < W ? s_end : W;
                const int inside = (r1 - r0) * (s1 - s0), all = (r_end - r) * (s_end - s);
                *y++ = mean8(x, W, r0, r1, s0, s1, divisor ? divisor : with_padding ? all : inside, zero, multiplier,
                             shift, to);
            }
}

static void share_pool8(int8_t *y, const int8_t *x, int C, int H, int W, int Ho, int Wo, int zero, int32_t multiplier,
                        int shift, int to)
{
    for (int c = 0; c < C; c++, x += H * W)
        for (int i = 0; i < Ho; i++)
            for (int j = 0; j < Wo; j++) {
                const int r0 = i * H / Ho, r1 = ((i + 1) * H + Ho - 1) / Ho;
                const int s0 = j * W / Wo, s1 = ((j + 1) * W + Wo - 1) / Wo;
                *y++ = mean8(x, W, r0, r1, s0, s1, (r1 - r0) * (s1 - s0), zero, multiplier, shift, to);
            }
}

static void max_pool8(int8_t *y, const int8_t *x, int C, int H, int W, int Ho, int Wo, int ky, int kx, int step_y,
                      int step_x, int top, int left, int dy, int dx)
{
    for (int c = 0; c < C; c++, x += H * W)
        for (int i = 0; i < Ho; i++)
            for (int j = 0; j < Wo; j++) {
                int8_t most = -128;
                for (int p = 0; p < ky; p++) {
                    const int r = i * step_y - top + p * dy;
                    for (int q = 0; q < kx; q++) {
                        const int s = j * step_x - left + q * dx;
                        if (r >= 0 && r < H && s >= 0 && s < W && x[r * W + s] > most)
                            most = x[r * W + s];
                    }
                }
                *y++ = most;
            }
}

static inline int32_t dot8(const int8_t *a, const int8_t *b, int n)
{
    int32_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Rows of x times W^T plus bias, as 8 bits, or in float by a scale for each output. */
static void product8(int8_t *y, const int8_t *x, const int8_t *w, const int32_t *bias, const int32_t *multiplier,
                     int rows, int n, int outputs, int shift, int zero)
{
    for (int r = 0; r < rows; r++, x += n)
        for (int o = 0; o < outputs; o++)
            *y++ = (int8_t)limit(rounded(upper(bias[o] + dot8(x, w + o * n, n), multiplier[o]), shift) + zero, -128, 127);
}

static void product_to_float(float *y, const int8_t *x, const int8_t *w, const int32_t *bias, const float *scale,
                             int rows, int n, int outputs)
{
    for (int r = 0; r < rows; r++, x += n)
        for (int o = 0; o < outputs; o++)
            *y++ = (float)(bias[o] + dot8(x, w + o * n, n)) * scale[o];
}
