/* Sums over channels and taps for four output channels, at n places side by side: out[4][apart]. */
static void sums4(float *out, int apart, const float *in, int channels, int plane, const int *taps, int count,
                  const float *weight, const float *bias, int n)
{
    int p = 0;
    for (; p + 2 * LANES <= n; p += 2 * LANES) {
        const float *w = weight;
        lanes a0 = splat(bias[0]), a1 = splat(bias[1]), a2 = splat(bias[2]), a3 = splat(bias[3]);
        lanes b0 = a0, b1 = a1, b2 = a2, b3 = a3;
        for (int c = 0; c < channels; c++) {
            const float *x = in + c * plane + p;
            for (int t = 0; t < count; t++, w += 4) {
                const lanes a = load(x + taps[t]), b = load(x + taps[t] + LANES);
                a0 += w[0] * a, b0 += w[0] * b;
                a1 += w[1] * a, b1 += w[1] * b;
                a2 += w[2] * a, b2 += w[2] * b;
                a3 += w[3] * a, b3 += w[3] * b;
            }
        }
        float *y = out + p;
        store(y, a0), store(y + LANES, b0), y += apart;
        store(y, a1), store(y + LANES, b1), y += apart;
        store(y, a2), store(y + LANES, b2), y += apart;
        store(y, a3), store(y + LANES, b3);
    }
    for (; p + LANES <= n; p += LANES) {
        const float *w = weight;
        lanes a0 = splat(bias[0]), a1 = splat(bias[1]), a2 = splat(bias[2]), a3 = splat(bias[3]);
        for (int c = 0; c < channels; c++) {
            const float *x = in + c * plane + p;
            for (int t = 0; t < count; t++, w += 4) {
                const lanes a = load(x + taps[t]);
                a0 += w[0] * a, a1 += w[1] * a, a2 += w[2] * a, a3 += w[3] * a;
            }
        }
        float *y = out + p;
        store(y, a0), store(y + apart, a1), store(y + 2 * apart, a2), store(y + 3 * apart, a3);
    }
    for (; p < n; p++) {
        const float *w = weight;
        float a0 = bias[0], a1 = bias[1], a2 = bias[2], a3 = bias[3];
        for (int c = 0; c < channels; c++) {
            const float *x = in + c * plane + p;
            for (int t = 0; t < count; t++, w += 4) {
                const float a = x[taps[t]];
                a0 += w[0] * a, a1 += w[1] * a, a2 += w[2] * a, a3 += w[3] * a;
            }
        }
        out[p] = a0, out[p + apart] = a1, out[p + 2 * apart] = a2, out[p + 3 * apart] = a3;
    }
}

/* The same for one output channel. */
static void sums1(float *out, const float *in, int channels, int plane, const int *taps, int count,
                  const float *weight, float bias, int n)
{
    int p = 0;
    for (; p + 4 * LANES <= n; p += 4 * LANES) {
        const float *w = weight;
        lanes a = splat(bias), b = a, c = a, d = a;
        for (int k = 0; k < channels; k++) {
            const float *x = in + k * plane + p;
            for (int t = 0; t < count; t++, w++) {
                const float *q = x + taps[t];
                a += w[0] * load(q);
                b += w[0] * load(q + LANES);
                c += w[0] * load(q + 2 * LANES);
                d += w[0] * load(q + 3 * LANES);
            }
        }
        store(out + p, a), store(out + p + LANES, b);
        store(out + p + 2 * LANES, c), store(out + p + 3 * LANES, d);
    }
    for (; p + LANES <= n; p += LANES) {
        const float *w = weight;
        lanes a = splat(bias);
        for (int k = 0; k < channels; k++)
            for (int t = 0; t < count; t++, w++)
                a += w[0] * load(in + k * plane + p + taps[t]);
        store(out + p, a);
    }
    for (; p < n; p++) {
        const float *w = weight;
        float a = bias;
        for (int k = 0; k < channels; k++)
            for (int t = 0; t < count; t++, w++)
                a += w[0] * in[k * plane + p + taps[t]];
        out[p] = a;
    }
}

/* to[r][c] = from[y + r step_y][x + c step_x], zero beyond the border. */
static void gather(float *to, int rows, int pitch, const float *from, int H, int W, int y, int x, int step_y,
                   int step_x)
{
    int first = x < 0 ? (step_x - 1 - x) / step_x : 0, last = (W - x + step_x - 1) / step_x;
    first = first < pitch ? first : pitch;
    last = last < first ? first : last < pitch ? last : pitch;
    memset(to, 0, (size_t)(rows * pitch) * sizeof *to);
    for (int r = 0; r < rows; r++, to += pitch, y += step_y) {
        if (y < 0 || y >= H)
            continue;
        const float *row = from + y * W + x;
        if (step_x == 1)
            memcpy(to + first, row + first, (size_t)(last - first) * sizeof *to);
        else
            for (int c = first; c < last; c++)
                to[c] = row[c * step_x];
    }
}

/* Rows of sums, each `pitch` apart, become rows of a map: plus a residual, between two bounds. */
static void finish(float *restrict y, const float *residual, float *restrict sums, int rows, int pitch, int width,
                   float low, float high)
{
    for (int r = 0; r < rows; r++, y += width, sums += pitch) {
        if (residual) {
            const float *restrict more = residual + r * width;
            for (int i = 0; i < width; i++)
                sums[i] += more[i];
        }
        for (int i = 0; i < width; i++) {
            const float v = sums[i] < low ? low : sums[i];
            y[i] = v > high ? high : v;
        }
    }
}

/* A convolution, computed in strips of rows. Strips are copied with their padding, every `step`-th row and column
   to a grid of its own, so that each tap is one distance from any place; those that need no copy are read in place. */
typedef struct {
    int in, out, groups, H, W, Ho, Wo, step_y, step_x, top, left;
    int pitch, strip, plane, apart, sums, count, grids;
    const int *taps, *grid; /* of each grid: its first row and column, rows beyond the strip, place, length */
} conv_shape;

static void convolve(float *y, const float *x, const float *residual, const float *w, const float *bias,
                     const conv_shape *s, float low, float high, float *scratch)
{
    const int channels = s->in / s->groups, outputs = s->out / s->groups, size = s->Ho * s->Wo;
    for (int g = 0; g < s->groups; g++) {
        const float *from = x + g * channels * s->H * s->W;
        const float *weight = w + g * outputs * channels * s->count;
        for (int y0 = 0; y0 < s->Ho; y0 += s->strip) {
            const int rows = s->strip < s->Ho - y0 ? s->strip : s->Ho - y0;
            const float *in = from + y0 * s->W, *v = weight;
            int n = (rows - 1) * s->pitch + s->Wo, plane = s->H * s->W;
            if (s->grids) {
                for (int c = 0; c < channels; c++)
                    for (int i = 0; i < s->grids; i++) {
                        const int *q = s->grid + 5 * i;
                        float *to = scratch + c * s->plane + q[3];
                        gather(to, rows + q[2], s->pitch, from + c * plane, s->H, s->W, y0 * s->step_y + q[0] - s->top,
                               q[1] - s->left, s->step_y, s->step_x);
                        const int filled = (rows + q[2]) * s->pitch;
                        memset(to + filled, 0, (size_t)(q[4] - filled) * sizeof *to);
                    }
                in = scratch;
                plane = s->plane;
                n = (n + LANES - 1) / LANES * LANES;
            }
            float *sums = scratch + s->sums;
            for (int o = 0; o < outputs;) {
                const int at = g * outputs + o, many = o + 4 <= outputs ? 4 : 1;
                if (many == 4)
                    sums4(sums, s->apart, in, channels, plane, s->taps, s->count, v, bias + at, n);
                else
                    sums1(sums, in, channels, plane, s->taps, s->count, v, bias[at], n);
                for (int r = 0; r < many; r++) {
                    const int place = (at + r) * size + y0 * s->Wo;
                    finish(y + place, residual ? residual + place : 0, sums + r * s->apart, rows, s->pitch, s->Wo, low,
                           high);
                }
                v += many * channels * s->count;
                o += many;
            }
        }
    }
}

/* A map whose rows and columns are apart, with zeros between them. */
static void spread(float *y, const float *x, int C, int H, int W, int step_y, int step_x)
{
    const int rows = (H - 1) * step_y + 1, columns = (W - 1) * step_x + 1;
    memset(y, 0, (size_t)(C * rows * columns) * sizeof *y);
    for (int c = 0; c < C; c++, y += rows * columns)
        for (int r = 0; r < H; r++)
            for (int s = 0; s < W; s++)
                y[r * step_y * columns + s * step_x] = *x++;
}
