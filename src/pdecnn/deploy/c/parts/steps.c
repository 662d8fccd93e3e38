/* Beyond the border of a plane, one place wide: the opposite border, or parity times the value at the border. */
static void halo(float *q, int H, int W, int pitch, int periodic, float parity)
{
    for (int y = 0; y < H; y++) {
        float *row = q + y * pitch;
        row[-1] = row[periodic ? W - 1 : 0];
        row[W] = row[periodic ? 0 : W - 1];
    }
    memcpy(q - pitch, q + (periodic ? H - 1 : 0) * pitch, (size_t)W * sizeof *q);
    memcpy(q + H * pitch, q + (periodic ? 0 : H - 1) * pitch, (size_t)W * sizeof *q);
    if (periodic || parity > 0.0f)
        return;
    for (int y = 0; y < H; y++) {
        float *row = q + y * pitch;
        row[-1] = parity < 0.0f ? -row[-1] : 0.0f;
        row[W] = parity < 0.0f ? -row[W] : 0.0f;
    }
    for (int x = 0; x < W; x++) {
        q[x - pitch] = parity < 0.0f ? -q[x - pitch] : 0.0f;
        q[x + H * pitch] = parity < 0.0f ? -q[x + H * pitch] : 0.0f;
    }
}

/* The planes of one channel; q[i] points to the first pixel. With a = A / 2 and b = B in the letters of the scheme, 2 to 5
   hold a_x, a_y, b_x, b_y first, then the weights of the neighbours. The first seven are `size` floats apart, with a gap
   before each that is the border of both its neighbours: no two of them need theirs at the same time, but for a_x and
   a_y, of which one needs columns and the other rows. */
typedef struct {
    int H, W, radius, pitch, size, gap, periodic;
    float state_parity, velocity_parity, dt;
} grid_shape;

enum { STATE, BEFORE, RIGHT, LEFT, DOWN, UP, HERE, PREVIOUS, SOURCE, PLANES };

static void read_plane(float *restrict q, const float *restrict h, const grid_shape *s)
{
    memset(q - s->gap, 0, (size_t)(s->size + s->gap) * sizeof *q);
    for (int y = 0; y < s->H; y++)
        memcpy(q + y * s->pitch, h + y * s->W, (size_t)s->W * sizeof *q);
}

/* A function of its own: compilers make vectors of a loop over so many arrays if they are arguments. */
static void scale_weights(float *restrict right, float *restrict left, float *restrict down, float *restrict up,
                          float *restrict here, float *restrict previous, int n)
{
    for (int i = 0; i < n; i++) {
        const float scale = 1.0f / (0.5f + down[i] + up[i]);
        const float a_x = right[i] * scale, a_y = left[i] * scale, b_x = down[i] * scale, b_y = up[i] * scale;
        right[i] = b_x - a_x;
        left[i] = b_x + a_x;
        down[i] = b_y - a_y;
        up[i] = b_y + a_y;
        here[i] *= scale;
        previous[i] = scale - 1.0f;
    }
}

/* From the coefficients to the weights of a step: those of the neighbours, of h, of the state before and of f. */
static void weights_of_steps(float *const *q, const grid_shape *s, const float *source)
{
    const int n = (s->H - 1) * s->pitch + s->W, pitch = s->pitch;
    float *restrict right = q[RIGHT], *restrict left = q[LEFT], *restrict down = q[DOWN], *restrict up = q[UP];
    float *restrict here = q[HERE], *restrict previous = q[PREVIOUS], *restrict f = q[SOURCE];
    halo(right, s->H, s->W, pitch, s->periodic, s->velocity_parity);
    halo(left, s->H, s->W, pitch, s->periodic, s->velocity_parity);
    for (int i = 0; i < n; i++)
        here[i] = (right[i - 1] - right[i + 1]) + (left[i - pitch] - left[i + pitch]);
    if (source) {
        for (int y = 0; y < s->H; y++)
            memcpy(f + y * pitch, source + y * s->W, (size_t)s->W * sizeof *f);
        for (int i = 0; i < n; i++)
            f[i] *= s->dt / (0.5f + down[i] + up[i]);
    }
    scale_weights(right, left, down, up, here, previous, n);
}

static void march(float *restrict next, const float *restrict h, float *const *q, const grid_shape *s, int has_source)
{
    const int n = (s->H - 1) * s->pitch + s->W, pitch = s->pitch;
    const float *restrict right = q[RIGHT], *restrict left = q[LEFT], *restrict down = q[DOWN], *restrict up = q[UP];
    const float *restrict here = q[HERE], *restrict previous = q[PREVIOUS], *restrict f = q[SOURCE];
    if (has_source)
        for (int i = 0; i < n; i++)
            next[i] = ((right[i] * h[i + 1] + left[i] * h[i - 1]) + (down[i] * h[i + pitch] + up[i] * h[i - pitch]))
                      + ((here[i] * h[i] + previous[i] * next[i]) + f[i]);
    else
        for (int i = 0; i < n; i++)
            next[i] = ((right[i] * h[i + 1] + left[i] * h[i - 1]) + (down[i] * h[i + pitch] + up[i] * h[i - pitch]))
                      + (here[i] * h[i] + previous[i] * next[i]);
}

/* K steps; returns the plane of the last state. */
static float *solve(float *const *q, const grid_shape *s, int has_source, int K)
{
    float *h = q[STATE], *before = q[BEFORE];
    for (int k = 0; k < K; k++) {
        halo(h, s->H, s->W, s->pitch, s->periodic, s->state_parity);
        march(before, h, q, s, has_source);
        float *const next = before;
        before = h;
        h = next;
    }
    return h;
}

static void planes_of(float **q, float *scratch, const grid_shape *s)
{
    const int n = s->size - s->gap;
    for (int i = 0; i < PLANES; i++)
        q[i] = scratch + s->gap + (i < HERE ? i : HERE) * s->size + (i < HERE ? 0 : i - HERE) * n;
    memset(scratch, 0, (size_t)(q[SOURCE] + n - scratch) * sizeof *scratch);
}

static void activate(float *q, int n, int kind)
{
    switch (kind) {
    case 1:
        for (int i = 0; i < n; i++)
            q[i] = relu(q[i]);
        break;
    case 2:
        for (int i = 0; i < n; i++)
            q[i] = clamp(q[i], 0.0f, 6.0f);
        break;
    case 3:
        for (int i = 0; i < n; i++)
            q[i] = tangent_h(q[i]);
        break;
    case 4:
        for (int i = 0; i < n; i++)
            q[i] = clamp(q[i], -1.0f, 1.0f);
        break;
    default:
        break;
    }
}

/* A whole Global layer after its first guess h; x is its input. */
typedef struct {
    grid_shape grid;
    int channels, maps, count, coefficient_act, output_act, has_source, previous_is_input, residual;
    float scale[4], D_x, D_y;
    const int *taps;
} global_shape;

static void global_layer(float *y, const float *h, const float *x, const float *w, const float *bias,
                         const float *scale, const float *shift, const global_shape *s, int K, float *scratch)
{
    const grid_shape *g = &s->grid;
    const int pixels = g->H * g->W, n = (g->H - 1) * g->pitch + g->W, whole = (n + LANES - 1) / LANES * LANES;
    float *q[PLANES];
    planes_of(q, scratch, g);
    for (int c = 0; c < s->channels; c++, h += pixels, x += pixels, y += pixels) {
        read_plane(q[STATE], h, g);
        const float *in = q[STATE] - g->radius * (g->pitch + 1);
        if (s->maps == 4) {
            sums4(q[RIGHT], g->size, in, 1, 0, s->taps, s->count, w, bias, whole);
        } else {
            sums1(q[RIGHT], in, 1, 0, s->taps, s->count, w, bias[0], whole);
            sums1(q[LEFT], in, 1, 0, s->taps, s->count, w + s->count, bias[1], whole);
            for (int i = 0; i < n; i++)
                q[DOWN][i] = s->D_x, q[UP][i] = s->D_y;
        }
        for (int m = 0; m < s->maps; m++) {
            float *map = q[RIGHT + m];
            const float factor = s->scale[m];
            activate(map, n, s->coefficient_act);
            for (int i = 0; i < n; i++)
                map[i] *= factor;
        }
        w += s->maps * s->count;
        bias += s->maps;
        weights_of_steps(q, g, s->has_source ? x : 0);
        read_plane(q[BEFORE], s->previous_is_input ? x : h, g);
        float *last = solve(q, g, s->has_source, K);
        const float factor = scale[c], offset = shift[c];
        for (int i = 0; i < n; i++)
            last[i] = last[i] * factor + offset;
        activate(last, n, s->output_act);
        for (int r = 0; r < g->H; r++) {
            if (s->residual)
                for (int i = 0; i < g->W; i++)
                    last[r * g->pitch + i] += x[r * g->W + i];
            memcpy(y + r * g->W, last + r * g->pitch, (size_t)g->W * sizeof *y);
        }
    }
}

/* Coefficients as maps, or as one number for each channel or for all. */
typedef struct {
    grid_shape grid;
    int planes, channels, step[4], along[4];
    float scale[4];
} flow_shape;

static void advection_diffusion(float *y, const float *h, const float *before, const float *const *coefficients,
                                const float *f, const flow_shape *s, int K, float *scratch)
{
    const grid_shape *g = &s->grid;
    const int pixels = g->H * g->W;
    float *q[PLANES];
    planes_of(q, scratch, g);
    for (int p = 0; p < s->planes; p++) {
        for (int m = 0; m < 4; m++) {
            const float *from = coefficients[m] + (s->along[m] ? p : p % s->channels) * s->step[m];
            for (int r = 0; r < g->H; r++)
                for (int i = 0; i < g->W; i++)
                    q[RIGHT + m][r * g->pitch + i] = s->scale[m] * from[s->along[m] * (r * g->W + i)];
        }
        weights_of_steps(q, g, f ? f + p * pixels : 0);
        read_plane(q[STATE], h + p * pixels, g);
        read_plane(q[BEFORE], before + p * pixels, g);
        const float *last = solve(q, g, f != 0, K);
        for (int r = 0; r < g->H; r++)
            memcpy(y + p * pixels + r * g->W, last + r * g->pitch, (size_t)g->W * sizeof *y);
    }
}
