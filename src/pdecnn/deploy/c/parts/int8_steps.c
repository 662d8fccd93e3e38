/* As `halo`, in 16 bits. */
static inline fixed16 mirrored(int32_t v, int sign)
{
    return (fixed16)limit(sign * v, -32768, 32767);
}

static void halo16(fixed16 *q, int H, int W, int pitch, int periodic, int parity)
{
    const int sign = periodic ? 1 : parity, last_x = periodic ? 0 : W - 1, last_y = periodic ? 0 : H - 1;
    for (int y = 0; y < H; y++) {
        fixed16 *row = q + y * pitch;
        row[-1] = mirrored(row[W - 1 - last_x], sign);
        row[W] = mirrored(row[last_x], sign);
    }
    for (int x = 0; x < W; x++) {
        q[x - pitch] = mirrored(q[x + (H - 1 - last_y) * pitch], sign);
        q[x + H * pitch] = mirrored(q[x + last_y * pitch], sign);
    }
}

/* A Global layer in 16 bits: coefficients have `fraction` bits after the point, the weights of a step `weight` bits, and
   six of these times six states fit in 32 bits. The planes are those of `global_layer`. */
typedef struct {
    int H, W, radius, pitch, size, periodic, state_parity, velocity_parity;
    int channels, maps, side, pairs, has_source, previous_is_input, residual;
    int fraction, weight, coefficient_shift, shift, zero_h, zero_x, zero; /* both shifts are of upper halves */
    int32_t state[2], before[2], source[2]; /* from 8 bits: multiplier and shift */
    int32_t coefficient_low[4], coefficient_high[4], D[2], low, high, more;
    const int *taps;
} global_shape16;

enum { SCALE_BITS = 13, MOST = 10900, FINE = 12, STATE_BITS = 15 };

static void read_plane16(fixed16 *q, const int8_t *h, const global_shape16 *s, int zero, const int32_t *factor)
{
    const int W = s->W, H = s->H, pitch = s->pitch, multiplier = factor ? factor[0] : 1, shift = factor ? factor[1] : 0;
    memset(q - s->radius * (pitch + 1), 0, (size_t)s->size * sizeof *q);
    for (int y = 0; y < H; y++, q += pitch, h += W)
        if (shift)
            for (int x = 0; x < W; x++)
                q[x] = (fixed16)limit(rounded((h[x] - zero) * multiplier, shift), -32768, 32767);
        else
            for (int x = 0; x < W; x++)
                q[x] = (fixed16)((h[x] - zero) * multiplier);
}

/* The stencils of a channel, on words of two rows. These lie in two planes that are not in use yet, the sums in those of
   the states, which are read again after: as many places at a time as there is room for. */
static void coefficients16(fixed16 *const *q, const global_shape16 *s, const int16_t *w, const int32_t *bias,
                           const int32_t *multiplier, sum32 *words)
{
    const int start = s->radius * (s->pitch + 1), n = (s->H - 1) * s->pitch + s->W, side = s->side, maps = s->maps;
    const int apart = s->size / 4, room = (apart - LANES) / 2 * 2, many = maps == 4 ? 4 : 1;
    const fixed16 *in = q[STATE] - start;
    sum32 *const stacked = (void *)(q[HERE] - start), *const sums = (void *)(q[STATE] - start);
    for (int i = 0; i < s->size; i++)
        stacked[i] = word_of(in[i], i + s->pitch < s->size ? in[i + s->pitch] : 0);
    for (int m = 0; m < maps; m++)
        for (int k = 0; k < s->pairs; k++) {
            const int16_t *v = w + (m * side + k / side * 2) * side + k % side;
            words[many == 4 ? 4 * k + m : m * s->pairs + k] = word_of(v[0], k / side * 2 + 1 < side ? v[side] : 0);
        }
    for (int p = 0; p < n; p += room) {
        const int now = room < n - p ? room : n - p;
        for (int m = 0; m < maps; m += many) {
            sums_of_pairs(sums, apart, stacked + p, 1, 0, s->taps, s->pairs, words + m * s->pairs, many, now);
            for (int k = 0; k < many; k++) {
                fixed16 *restrict to = q[RIGHT + m + k] + p;
                const sum32 *restrict sum = sums + k * apart;
                const int32_t b = bias[m + k], factor = multiplier[m + k], shift = s->coefficient_shift;
                const int32_t low = s->coefficient_low[m + k], high = s->coefficient_high[m + k];
                for (int i = 0; i < now; i++)
                    to[i] = (fixed16)limit(rounded(upper(sum[i] + b, factor), shift), low, high);
            }
        }
    }
    for (int i = 0; maps == 2 && i < n; i++)
        q[DOWN][i] = (fixed16)s->D[0], q[UP][i] = (fixed16)s->D[1];
}

static inline int32_t weight16(int32_t v, int32_t scale, int shift)
{
    return limit(rounded(v * scale, shift), -MOST, MOST);
}

/* As `weights_of_steps`; the weight of the state before makes the sum of the weights exact. */
static void weights_of_steps16(fixed16 *const *q, const global_shape16 *s)
{
    const int n = (s->H - 1) * s->pitch + s->W, pitch = s->pitch, shift = s->fraction + SCALE_BITS - s->weight;
    const int32_t half = 1 << s->fraction >> 1, top = 1 << (s->fraction + SCALE_BITS), one = 1 << s->weight;
    fixed16 *right = q[RIGHT], *left = q[LEFT], *down = q[DOWN], *up = q[UP];
    fixed16 *here = q[HERE], *previous = q[PREVIOUS], *f = q[SOURCE];
    halo16(right, s->H, s->W, pitch, s->periodic, s->velocity_parity);
    halo16(left, s->H, s->W, pitch, s->periodic, s->velocity_parity);
    for (int i = 0; i < n; i++) {
        const int32_t D = half + down[i] + up[i], scale = (top + D / 2) / D;
        previous[i] = (fixed16)scale;
        here[i] = (fixed16)weight16((right[i - 1] - right[i + 1]) + (left[i - pitch] - left[i + pitch]), scale, shift);
    }
    for (int i = 0; s->has_source && i < n; i++)
        f[i] = (fixed16)rounded(f[i] * previous[i], SCALE_BITS);
    for (int i = 0; i < n; i++) {
        const int32_t scale = previous[i], a_x = right[i], a_y = left[i], b_x = down[i], b_y = up[i];
        const int32_t r = weight16(b_x - a_x, scale, shift), l = weight16(b_x + a_x, scale, shift);
        const int32_t d = weight16(b_y - a_y, scale, shift), u = weight16(b_y + a_y, scale, shift);
        right[i] = (fixed16)r, left[i] = (fixed16)l, down[i] = (fixed16)d, up[i] = (fixed16)u;
        previous[i] = (fixed16)limit(one - r - l - d - u, -MOST, MOST);
    }
}

/* One step; with Arm's products of 16-bit halves two places at a time. Returns the number of places that are done. */
#if defined(__ARM_FEATURE_SIMD32) && !defined(__ARM_BIG_ENDIAN)
static inline int32_t word_at(const fixed16 *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline int32_t add_low(int32_t sum, int32_t a, int32_t b)
{
    return sum + (int16_t)a * (int16_t)b;
}
static inline int32_t add_high(int32_t sum, int32_t a, int32_t b)
{
    return sum + (a >> 16) * (b >> 16);
}
static int march_pairs(fixed16 *next, const fixed16 *h, fixed16 *const *q, int n, int pitch, int shift)
{
    const fixed16 *right = q[RIGHT], *left = q[LEFT], *down = q[DOWN], *up = q[UP];
    const fixed16 *here = q[HERE], *previous = q[PREVIOUS], *f = q[SOURCE];
    int i = 0;
    for (; i + 2 <= n; i += 2) {
        const int32_t before = word_at(h + i - 1), after = word_at(h + i + 1);
        int32_t w = word_at(here + i), a = 1 << (shift - 1), v = 0, b = a;
        a += (int16_t)w * (before >> 16), b += (w >> 16) * (int16_t)after;
        w = word_at(left + i), a = add_low(a, w, before), b = add_high(b, w, before);
        w = word_at(right + i), a = add_low(a, w, after), b = add_high(b, w, after);
        w = word_at(down + i), v = word_at(h + i + pitch), a = add_low(a, w, v), b = add_high(b, w, v);
        w = word_at(up + i), v = word_at(h + i - pitch), a = add_low(a, w, v), b = add_high(b, w, v);
        w = word_at(previous + i), v = word_at(next + i), a = add_low(a, w, v), b = add_high(b, w, v);
        w = word_at(f + i);
        next[i] = (fixed16)limit((a >> shift) + (int16_t)w, -32768, 32767);
        next[i + 1] = (fixed16)limit((b >> shift) + (w >> 16), -32768, 32767);
    }
    return i;
}
#else
static int march_pairs(fixed16 *next, const fixed16 *h, fixed16 *const *q, int n, int pitch, int shift)
{
    return (void)next, (void)h, (void)q, (void)n, (void)pitch, (void)shift, 0;
}
#endif

static void march16(fixed16 *next, const fixed16 *h, fixed16 *const *q, const global_shape16 *s)
{
    const int n = (s->H - 1) * s->pitch + s->W, pitch = s->pitch, shift = s->weight, half = 1 << (shift - 1);
    const fixed16 *right = q[RIGHT], *left = q[LEFT], *down = q[DOWN], *up = q[UP];
    const fixed16 *here = q[HERE], *previous = q[PREVIOUS], *f = q[SOURCE];
    for (int i = march_pairs(next, h, q, n, pitch, shift); i < n; i++) {
        const int32_t sum = right[i] * h[i + 1] + left[i] * h[i - 1] + down[i] * h[i + pitch] + up[i] * h[i - pitch]
                            + here[i] * h[i] + previous[i] * next[i];
        next[i] = (fixed16)limit(((sum + half) >> shift) + f[i], -32768, 32767);
    }
}

static void global_layer16(int8_t *y, const int8_t *h, const int8_t *x, const int16_t *w, const int32_t *bias,
                           const int32_t *multiplier, const int32_t *scale, const int32_t *shift,
                           const global_shape16 *s, int K, void *scratch)
{
    const int H = s->H, W = s->W, pixels = H * W, last_shift = s->shift, residual = s->residual, zero_x = s->zero_x;
    const int32_t least = s->low, most = s->high, more = s->more, zero = s->zero;
    sum32 *words = (sum32 *)scratch + PLANES * s->size / 2;
    fixed16 *q[PLANES];
    for (int i = 0; i < PLANES; i++)
        q[i] = (fixed16 *)scratch + i * s->size + s->radius * (s->pitch + 1);
    memset(scratch, 0, (size_t)(PLANES * s->size) * sizeof(fixed16));
    for (int c = 0; c < s->channels; c++, h += pixels, x += pixels, y += pixels) {
        read_plane16(q[STATE], h, s, s->zero_h, 0);
        coefficients16(q, s, w, bias, multiplier, words);
        w += s->maps * s->side * s->side;
        bias += s->maps;
        multiplier += s->maps;
        if (s->has_source)
            read_plane16(q[SOURCE], x, s, zero_x, s->source);
        weights_of_steps16(q, s);
        read_plane16(q[STATE], h, s, s->zero_h, s->state);
        if (s->previous_is_input)
            read_plane16(q[BEFORE], x, s, zero_x, s->before);
        else
            read_plane16(q[BEFORE], h, s, s->zero_h, s->state);
        fixed16 *last = q[STATE], *before = q[BEFORE];
        for (int k = 0; k < K; k++) {
            halo16(last, H, W, s->pitch, s->periodic, s->state_parity);
            march16(before, last, q, s);
            fixed16 *const next = before;
            before = last;
            last = next;
        }
        const int32_t factor = scale[c], offset = shift[c];
        for (int r = 0; r < H; r++, last += s->pitch)
            for (int i = 0; i < W; i++) {
                int32_t v = limit(rounded(upper(last[i] * (1 << STATE_BITS), factor), last_shift) + offset, least, most);
                v += residual ? (x[r * W + i] - zero_x) * more : 0;
                y[r * W + i] = (int8_t)limit(rounded(v, FINE) + zero, -128, 127);
            }
    }
}
