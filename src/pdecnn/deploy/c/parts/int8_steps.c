/* As `halo`, in 16 bits. */
static void halo16(fixed16 *q, int H, int W, int pitch, int periodic, int parity)
{
    const int sign = periodic ? 1 : parity, last_x = periodic ? 0 : W - 1, last_y = periodic ? 0 : H - 1;
    for (int y = 0; y < H; y++) {
        fixed16 *row = q + y * pitch;
        row[-1] = (fixed16)(sign * row[W - 1 - last_x]);
        row[W] = (fixed16)(sign * row[last_x]);
    }
    for (int x = 0; x < W; x++) {
        q[x - pitch] = (fixed16)(sign * q[x + (H - 1 - last_y) * pitch]);
        q[x + H * pitch] = (fixed16)(sign * q[x + last_y * pitch]);
    }
}

/* A Global layer in 16 bits: coefficients have `fraction` bits after the point, the weights of a step `weight` bits, and
   six of these times six states fit in 32 bits. The planes are those of `global_layer`. */
typedef struct {
    int H, W, radius, pitch, size, periodic, state_parity, velocity_parity;
    int channels, maps, count, has_source, previous_is_input, residual;
    int fraction, weight, coefficient_shift, shift, zero_h, zero_x, zero;
    int32_t state[2], before[2], source[2]; /* from 8 bits: multiplier and shift */
    int32_t coefficient_low[4], coefficient_high[4], D[2], low, high, more;
    const int *taps;
} global_shape16;

enum { SCALE_BITS = 13, MOST = 10900, FINE = 12 };

static void read_plane16(fixed16 *q, const int8_t *h, const global_shape16 *s, int zero, const int32_t *factor)
{
    memset(q - s->radius * (s->pitch + 1), 0, (size_t)s->size * sizeof *q);
    for (int y = 0; y < s->H; y++)
        for (int x = 0; x < s->W; x++) {
            const int v = h[y * s->W + x] - zero;
            q[y * s->pitch + x] =
                (fixed16)(factor ? limit(rescaled((int64_t)v * factor[0], factor[1]), -32767, 32767) : v);
        }
}

static void coefficients16(fixed16 *const *q, const global_shape16 *s, const int16_t *w, const int32_t *bias,
                           const int32_t *multiplier)
{
    const int n = (s->H - 1) * s->pitch + s->W, count = s->count;
    const fixed16 *in = q[STATE] - s->radius * (s->pitch + 1);
    for (int i = 0; i < n; i++, in++) {
        int32_t sum[4] = {bias[0], bias[1], 0, 0};
        if (s->maps == 4) {
            int32_t a = bias[0], b = bias[1], c = bias[2], d = bias[3];
            for (int t = 0; t < count; t++) {
                const int32_t v = in[s->taps[t]];
                a += w[t] * v, b += w[t + count] * v, c += w[t + 2 * count] * v, d += w[t + 3 * count] * v;
            }
            sum[0] = a, sum[1] = b, sum[2] = c, sum[3] = d;
        } else {
            for (int t = 0; t < count; t++) {
                const int32_t v = in[s->taps[t]];
                sum[0] += w[t] * v, sum[1] += w[t + count] * v;
            }
            q[DOWN][i] = (fixed16)s->D[0], q[UP][i] = (fixed16)s->D[1];
        }
        for (int m = 0; m < s->maps; m++)
            q[RIGHT + m][i] = (fixed16)limit(rescaled((int64_t)sum[m] * multiplier[m], s->coefficient_shift),
                                             s->coefficient_low[m], s->coefficient_high[m]);
    }
}

static inline fixed16 weight16(int32_t v, int32_t scale, int shift)
{
    return (fixed16)limit((v * scale + (1 << (shift - 1))) >> shift, -MOST, MOST);
}

/* As `weights_of_steps`; the weight of the state before makes the sum of the weights exact. */
static void weights_of_steps16(fixed16 *const *q, const global_shape16 *s)
{
    const int n = (s->H - 1) * s->pitch + s->W, pitch = s->pitch, shift = s->fraction + SCALE_BITS - s->weight;
    fixed16 *right = q[RIGHT], *left = q[LEFT], *down = q[DOWN], *up = q[UP];
    fixed16 *here = q[HERE], *previous = q[PREVIOUS], *f = q[SOURCE];
    halo16(right, s->H, s->W, pitch, s->periodic, s->velocity_parity);
    halo16(left, s->H, s->W, pitch, s->periodic, s->velocity_parity);
    for (int i = 0; i < n; i++) {
        const int32_t D = (1 << s->fraction >> 1) + down[i] + up[i];
        const int32_t scale = ((1 << (s->fraction + SCALE_BITS)) + D / 2) / D;
        previous[i] = (fixed16)scale;
        here[i] = weight16((right[i - 1] - right[i + 1]) + (left[i - pitch] - left[i + pitch]), scale, shift);
    }
    for (int i = 0; i < n; i++) {
        const int32_t scale = previous[i], a_x = right[i], a_y = left[i], b_x = down[i], b_y = up[i];
        right[i] = weight16(b_x - a_x, scale, shift);
        left[i] = weight16(b_x + a_x, scale, shift);
        down[i] = weight16(b_y - a_y, scale, shift);
        up[i] = weight16(b_y + a_y, scale, shift);
        previous[i] = (fixed16)limit((1 << s->weight) - right[i] - left[i] - down[i] - up[i], -MOST, MOST);
        if (s->has_source)
            f[i] = (fixed16)((f[i] * scale + (1 << (SCALE_BITS - 1))) >> SCALE_BITS);
    }
}

static void march16(fixed16 *next, const fixed16 *h, fixed16 *const *q, const global_shape16 *s)
{
    const int n = (s->H - 1) * s->pitch + s->W, pitch = s->pitch, half = 1 << (s->weight - 1);
    const fixed16 *right = q[RIGHT], *left = q[LEFT], *down = q[DOWN], *up = q[UP];
    const fixed16 *here = q[HERE], *previous = q[PREVIOUS], *f = q[SOURCE];
    for (int i = 0; i < n; i++) {
        const int32_t sum = right[i] * h[i + 1] + left[i] * h[i - 1] + down[i] * h[i + pitch] + up[i] * h[i - pitch]
                            + here[i] * h[i] + previous[i] * next[i];
        const int32_t v = ((sum + half) >> s->weight) + (s->has_source ? f[i] : 0);
        next[i] = (fixed16)(v < -32767 ? -32767 : v > 32767 ? 32767 : v);
    }
}

static void global_layer16(int8_t *y, const int8_t *h, const int8_t *x, const int16_t *w, const int32_t *bias,
                           const int32_t *multiplier, const int32_t *scale, const int32_t *shift,
                           const global_shape16 *s, int K, void *scratch)
{
    const int pixels = s->H * s->W;
    fixed16 *q[PLANES];
    for (int i = 0; i < PLANES; i++)
        q[i] = (fixed16 *)scratch + i * s->size + s->radius * (s->pitch + 1);
    memset(scratch, 0, (size_t)(PLANES * s->size) * sizeof(fixed16));
    for (int c = 0; c < s->channels; c++, h += pixels, x += pixels, y += pixels) {
        read_plane16(q[STATE], h, s, s->zero_h, 0);
        coefficients16(q, s, w, bias, multiplier);
        w += s->maps * s->count;
        bias += s->maps;
        multiplier += s->maps;
        if (s->has_source)
            read_plane16(q[SOURCE], x, s, s->zero_x, s->source);
        weights_of_steps16(q, s);
        read_plane16(q[STATE], h, s, s->zero_h, s->state);
        if (s->previous_is_input)
            read_plane16(q[BEFORE], x, s, s->zero_x, s->before);
        else
            read_plane16(q[BEFORE], h, s, s->zero_h, s->state);
        fixed16 *last = q[STATE], *before = q[BEFORE];
        for (int k = 0; k < K; k++) {
            halo16(last, s->H, s->W, s->pitch, s->periodic, s->state_parity);
            march16(before, last, q, s);
            fixed16 *const next = before;
            before = last;
            last = next;
        }
        for (int r = 0; r < s->H; r++)
            for (int i = 0; i < s->W; i++) {
                const int place = r * s->W + i;
                const int64_t exact = rescaled((int64_t)last[r * s->pitch + i] * scale[c], s->shift) + shift[c];
                const int32_t v = limit(exact, s->low, s->high) + (s->residual ? (x[place] - s->zero_x) * s->more : 0);
                y[place] = limit8(rescaled(v, FINE) + s->zero, -128, 127);
            }
    }
}
