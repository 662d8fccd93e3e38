#if LANES > 1
typedef int32_t lanes32 __attribute__((vector_size(4 * LANES)));
typedef int8_t lanes8 __attribute__((vector_size(LANES)));
#else
typedef int32_t lanes32;
#endif

static inline lanes32 widen(const int8_t *p)
{
#if LANES > 1
    lanes8 v;
    memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, lanes32);
#else
    return *p;
#endif
}

static inline void store32(sum32 *p, lanes32 v)
{
    memcpy(p, &v, sizeof v);
}

/* Sums over channels and taps for `many` (four or one) output channels, at n places side by side: out[many][apart]. */
static void sums8(sum32 *out, int apart, const int8_t *in, int channels, int plane, const int *taps, int count,
                  const int8_t *weight, int many, int n)
{
    int p = 0;
    for (; many == 4 && p + LANES <= n; p += LANES) {
        const int8_t *w = weight;
        const lanes32 none = {0};
        lanes32 a0 = none, a1 = none, a2 = none, a3 = none;
        for (int c = 0; c < channels; c++) {
            const int8_t *x = in + c * plane + p;
            for (int t = 0; t < count; t++, w += 4) {
                const lanes32 a = widen(x + taps[t]);
                a0 += w[0] * a, a1 += w[1] * a, a2 += w[2] * a, a3 += w[3] * a;
            }
        }
        store32(out + p, a0), store32(out + p + apart, a1);
        store32(out + p + 2 * apart, a2), store32(out + p + 3 * apart, a3);
    }
    for (; many == 1 && p + LANES <= n; p += LANES) {
        const int8_t *w = weight;
        lanes32 a = {0};
        for (int c = 0; c < channels; c++)
            for (int t = 0; t < count; t++, w++)
                a += w[0] * widen(in + c * plane + p + taps[t]);
        store32(out + p, a);
    }
    for (; p < n; p++)
        for (int m = 0; m < many; m++) {
            const int8_t *w = weight + m;
            int32_t a = 0;
            for (int c = 0; c < channels; c++)
                for (int t = 0; t < count; t++, w += many)
                    a += w[0] * in[c * plane + p + taps[t]];
            out[p + m * apart] = a;
        }
}

/* to[r][c] = from[y + r step_y][x + c step_x], the zero of the scale beyond the border. */
static void gather8(int8_t *to, int rows, int pitch, const int8_t *from, int H, int W, int y, int x, int step_y,
                    int step_x, int zero)
{
    int first = x < 0 ? (step_x - 1 - x) / step_x : 0, last = (W - x + step_x - 1) / step_x;
    first = first < pitch ? first : pitch;
    last = last < first ? first : last < pitch ? last : pitch;
    for (int r = 0; r < rows; r++, to += pitch, y += step_y) {
        memset(to, zero, (size_t)pitch);
        if (y >= 0 && y < H)
            for (int c = first; c < last; c++)
                to[c] = from[y * W + x + c * step_x];
    }
}

/* From sums to 8 bits: (sum * multiplier[channel] + (residual - its zero) * its factor) / 2^shift + zero. */
typedef struct {
    int zero_in, zero, zero_more, shift;
    int32_t factor_more;
    int8_t low, high;
} scale8;

/* As `convolve`; a strip and its sums lie in scratch, the sums from its byte s->sums on. */
static void convolve8(int8_t *y, const int8_t *x, const int8_t *residual, const int8_t *w, const int32_t *bias,
                      const int32_t *multiplier, const conv_shape *s, const scale8 *q, void *scratch)
{
    const int channels = s->in / s->groups, outputs = s->out / s->groups, size = s->Ho * s->Wo;
    int8_t *strip = scratch;
    sum32 *sums = (void *)(strip + s->sums);
    for (int g = 0; g < s->groups; g++) {
        const int8_t *from = x + g * channels * s->H * s->W;
        const int8_t *weight = w + g * outputs * channels * s->count;
        for (int y0 = 0; y0 < s->Ho; y0 += s->strip) {
            const int rows = s->strip < s->Ho - y0 ? s->strip : s->Ho - y0;
            const int8_t *in = from + y0 * s->W, *v = weight;
            int n = (rows - 1) * s->pitch + s->Wo, plane = s->H * s->W;
            if (s->grids) {
                for (int c = 0; c < channels; c++)
                    for (int i = 0; i < s->grids; i++) {
                        const int *k = s->grid + 5 * i;
                        int8_t *to = strip + c * s->plane + k[3];
                        gather8(to, rows + k[2], s->pitch, from + c * plane, s->H, s->W,
                                y0 * s->step_y + k[0] - s->top, k[1] - s->left, s->step_y, s->step_x, q->zero_in);
                        const int filled = (rows + k[2]) * s->pitch;
                        memset(to + filled, q->zero_in, (size_t)(k[4] - filled));
                    }
                in = strip;
                plane = s->plane;
                n = (n + LANES - 1) / LANES * LANES;
            }
            for (int o = 0; o < outputs;) {
                const int at = g * outputs + o, many = o + 4 <= outputs ? 4 : 1;
                sums8(sums, s->apart, in, channels, plane, s->taps, s->count, v, many, n);
                for (int m = 0; m < many; m++)
                    for (int r = 0; r < rows; r++) {
                        const int place = (at + m) * size + (y0 + r) * s->Wo;
                        const sum32 *sum = sums + m * s->apart + r * s->pitch;
                        for (int i = 0; i < s->Wo; i++) {
                            int64_t t = (int64_t)(sum[i] + bias[at + m]) * multiplier[at + m];
                            if (residual)
                                t += (int64_t)(residual[place + i] - q->zero_more) * q->factor_more;
                            y[place + i] = limit8(rescaled(t, q->shift) + q->zero, q->low, q->high);
                        }
                    }
                v += many * channels * s->count;
                o += many;
            }
        }
    }
}
