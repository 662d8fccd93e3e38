/* Words of two 16-bit values, the first in the low half, so that one instruction multiplies and adds both, where the
   target has it. */
#if LANES > 1
typedef int32_t lanes32 __attribute__((vector_size(4 * LANES)));
typedef int16_t halves __attribute__((vector_size(4 * LANES)));
#else
typedef int32_t lanes32;
#endif
#if defined(__ARM_FEATURE_SIMD32)
#include <arm_acle.h>
#endif

static inline lanes32 load32(const sum32 *p)
{
    lanes32 v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void store32(sum32 *p, lanes32 v)
{
    memcpy(p, &v, sizeof v);
}

static inline int32_t word_of(int low, int high)
{
    return (int32_t)(((uint32_t)low & 0xffffu) | (uint32_t)high << 16);
}

static inline lanes32 add_pairs(lanes32 sum, lanes32 x, int32_t word)
{
#if defined(__ARM_FEATURE_SIMD32) && LANES == 1
    return __smlad(x, word, sum);
#elif LANES > 1
    const lanes32 w = word - (lanes32){0};
#if defined(__AVX2__) && LANES == 8
    return sum + (lanes32)__builtin_ia32_pmaddwd256((halves)x, (halves)w);
#elif defined(__SSE2__) && LANES == 4
    return sum + (lanes32)__builtin_ia32_pmaddwd128((halves)x, (halves)w);
#else
    return sum + (x << 16 >> 16) * (w << 16 >> 16) + (x >> 16) * (w >> 16);
#endif
#else
    return sum + (int16_t)x * (int16_t)word + (x >> 16) * (word >> 16);
#endif
}

/* Sums over channels and taps for `many` (four or one) output channels, at n places side by side: out[many][apart].
   Beyond n, to a multiple of the lanes, anything is written. */
static void sums_of_pairs(sum32 *out, int apart, const sum32 *in, int channels, int plane, const int *taps, int count,
                          const sum32 *weight, int many, int n)
{
    int p = 0;
    for (; many == 4 && p + LANES < n; p += 2 * LANES) {
        const sum32 *w = weight;
        const lanes32 none = {0};
        lanes32 a0 = none, a1 = none, a2 = none, a3 = none, b0 = none, b1 = none, b2 = none, b3 = none;
        for (int c = 0; c < channels; c++) {
            const sum32 *x = in + c * plane + p;
            for (int t = 0; t < count; t++, w += 4) {
                const lanes32 a = load32(x + taps[t]), b = load32(x + taps[t] + LANES);
                a0 = add_pairs(a0, a, w[0]), b0 = add_pairs(b0, b, w[0]);
                a1 = add_pairs(a1, a, w[1]), b1 = add_pairs(b1, b, w[1]);
                a2 = add_pairs(a2, a, w[2]), b2 = add_pairs(b2, b, w[2]);
                a3 = add_pairs(a3, a, w[3]), b3 = add_pairs(b3, b, w[3]);
            }
        }
        sum32 *y = out + p;
        store32(y, a0), store32(y + LANES, b0), y += apart;
        store32(y, a1), store32(y + LANES, b1), y += apart;
        store32(y, a2), store32(y + LANES, b2), y += apart;
        store32(y, a3), store32(y + LANES, b3);
    }
    for (; many == 1 && p + 3 * LANES < n; p += 4 * LANES) {
        const sum32 *w = weight;
        lanes32 a = {0}, b = {0}, d = {0}, e = {0};
        for (int c = 0; c < channels; c++) {
            const sum32 *x = in + c * plane + p;
            for (int t = 0; t < count; t++, w++) {
                const sum32 *q = x + taps[t];
                a = add_pairs(a, load32(q), w[0]);
                b = add_pairs(b, load32(q + LANES), w[0]);
                d = add_pairs(d, load32(q + 2 * LANES), w[0]);
                e = add_pairs(e, load32(q + 3 * LANES), w[0]);
            }
        }
        store32(out + p, a), store32(out + p + LANES, b);
        store32(out + p + 2 * LANES, d), store32(out + p + 3 * LANES, e);
    }
    for (; p < n; p += LANES)
        for (int m = 0; m < many; m++) {
            const sum32 *w = weight + m;
            lanes32 a = {0};
            for (int c = 0; c < channels; c++)
                for (int t = 0; t < count; t++, w += many)
                    a = add_pairs(a, load32(in + c * plane + p + taps[t]), w[0]);
            store32(out + m * apart + p, a);
        }
}

/* to[r][c] = the words of a and b at [y + r step_y][x + c step_x], less their zero; 0 beyond the border and without b. */
static void gather_pairs(sum32 *to, int rows, int pitch, const int8_t *a, const int8_t *b, int H, int W, int y, int x,
                         int step_y, int step_x, int zero)
{
    int first = x < 0 ? (step_x - 1 - x) / step_x : 0, last = (W - x + step_x - 1) / step_x;
    first = first < pitch ? first : pitch;
    last = last < first ? first : last < pitch ? last : pitch;
    for (int r = 0; r < rows; r++, to += pitch, y += step_y) {
        const int inside = y >= 0 && y < H, from = inside ? first : pitch, end = inside ? last : pitch;
        int k = y * W + x + from * step_x;
        for (int c = 0; c < from; c++)
            to[c] = 0;
        for (int c = from; b && c < end; c++, k += step_x)
            to[c] = word_of(a[k] - zero, b[k] - zero);
        for (int c = from; !b && c < end; c++, k += step_x)
            to[c] = word_of(a[k] - zero, 0);
        for (int c = end; c < pitch; c++)
            to[c] = 0;
    }
}

/* From sums to 8 bits: (sum * multiplier[channel] + (residual - its zero) * its factor) / 2^(32 + shift) + zero. */
typedef struct {
    int zero_in, zero, zero_more, shift;
    int32_t factor_more; /* in units of 1 / 4096 */
    int8_t low, high;
} scale8;

static void finish8(int8_t *y, const int8_t *residual, const sum32 *sums, int n, int32_t bias, int32_t multiplier,
                    const scale8 *q)
{
    const int shift = q->shift, zero = q->zero, low = q->low, high = q->high, other = q->zero_more;
    const int32_t factor = q->factor_more;
    if (residual)
        for (int i = 0; i < n; i++) {
            const int64_t t = (int64_t)(sums[i] + bias) * multiplier + (int64_t)((residual[i] - other) * 4096) * factor;
            y[i] = (int8_t)limit(rounded((int32_t)(t >> 32), shift) + zero, low, high);
        }
    else
        for (int i = 0; i < n; i++)
            y[i] = (int8_t)limit(rounded(upper(sums[i] + bias, multiplier), shift) + zero, low, high);
}

/* As `convolve`, two channels at a time. In scratch lie the words of a strip, from its word s->sums on the sums of up to
   four output channels, and then their weights as words. */
static void convolve8(int8_t *y, const int8_t *x, const int8_t *residual, const int8_t *w, const int32_t *bias,
                      const int32_t *multiplier, const conv_shape *s, const scale8 *q, void *scratch)
{
    const int channels = s->in / s->groups, outputs = s->out / s->groups, size = s->Ho * s->Wo, pixels = s->H * s->W;
    const int pairs = (channels + 1) / 2;
    sum32 *strip = scratch, *sums = strip + s->sums, *words = sums + 4 * s->apart;
    for (int g = 0; g < s->groups; g++) {
        const int8_t *from = x + g * channels * pixels;
        for (int y0 = 0; y0 < s->Ho; y0 += s->strip) {
            const int rows = s->strip < s->Ho - y0 ? s->strip : s->Ho - y0;
            const int8_t *v = w + g * outputs * channels * s->count;
            for (int c = 0; c < pairs; c++)
                for (int i = 0; i < s->grids; i++) {
                    const int *k = s->grid + 5 * i, filled = (rows + k[2]) * s->pitch;
                    const int8_t *first = from + 2 * c * pixels;
                    sum32 *to = strip + c * s->plane + k[3];
                    gather_pairs(to, rows + k[2], s->pitch, first, 2 * c + 1 < channels ? first + pixels : 0, s->H, s->W,
                                 y0 * s->step_y + k[0] - s->top, k[1] - s->left, s->step_y, s->step_x, q->zero_in);
                    memset(to + filled, 0, (size_t)(k[4] - filled) * sizeof *to);
                }
            for (int o = 0, many; o < outputs; o += many) {
                many = o + 4 <= outputs ? 4 : 1;
                sum32 *word = words;
                for (int i = channels / 2 * s->count * many; i > 0; i--, v += 2)
                    *word++ = word_of(v[0], v[1]);
                for (int i = channels % 2 * s->count * many; i > 0; i--)
                    *word++ = word_of(*v++, 0);
                sums_of_pairs(sums, s->apart, strip, pairs, s->plane, s->taps, s->count, words, many,
                              (rows - 1) * s->pitch + s->Wo);
                for (int m = 0; m < many; m++)
                    for (int r = 0; r < rows; r++) {
                        const int at = g * outputs + o + m, place = at * size + (y0 + r) * s->Wo;
                        finish8(y + place, residual ? residual + place : 0, sums + m * s->apart + r * s->pitch, s->Wo,
                                bias[at], multiplier[at], q);
                    }
            }
        }
    }
}
