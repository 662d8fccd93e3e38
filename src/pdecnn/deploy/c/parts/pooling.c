static void max_pool(float *y, const float *x, int C, int H, int W, int Ho, int Wo, int ky, int kx, int step_y,
                     int step_x, int top, int left, int dy, int dx)
{
    for (int c = 0; c < C; c++, x += H * W)
        for (int i = 0; i < Ho; i++)
            for (int j = 0; j < Wo; j++) {
                float most = -from_bits(0x7f800000u);
                for (int p = 0; p < ky; p++) {
                    const int r = i * step_y - top + p * dy;
                    if (r < 0 || r >= H)
                        continue;
                    for (int q = 0; q < kx; q++) {
                        const int s = j * step_x - left + q * dx;
                        if (s < 0 || s >= W)
                            continue;
                        const float v = x[r * W + s];
                        most = v > most || v != v ? v : most;
                    }
                }
                *y++ = most;
            }
}

static inline float mean_of(const float *x, int W, int top, int bottom, int left, int right, int count)
{
    float sum = 0.0f;
    for (int r = top; r < bottom; r++)
        for (int s = left; s < right; s++)
            sum += x[r * W + s];
    return sum / (float)count;
}

static void avg_pool(float *y, const float *x, int C, int H, int W, int Ho, int Wo, int ky, int kx, int step_y,
                     int step_x, int top, int left, int with_padding, int divisor)
{
    for (int c = 0; c < C; c++, x += H * W)
        for (int i = 0; i < Ho; i++)
            for (int j = 0; j < Wo; j++) {
                const int r = i * step_y - top, s = j * step_x - left;
                const int r_end = r + ky < H + top ? r + ky : H + top, s_end = s + kx < W + left ? s + kx : W + left;
                const int r0 = r > 0 ? r : 0, s0 = s > 0 ? s : 0;
                const int r1 = r_end < H ? r_end : H, s1 = s_end < W ? s_end : W;
                const int inside = (r1 - r0) * (s1 - s0), all = (r_end - r) * (s_end - s);
                *y++ = mean_of(x, W, r0, r1, s0, s1, divisor ? divisor : with_padding ? all : inside);
            }
}

static void share_pool(float *y, const float *x, int C, int H, int W, int Ho, int Wo)
{
    for (int c = 0; c < C; c++, x += H * W)
        for (int i = 0; i < Ho; i++)
            for (int j = 0; j < Wo; j++) {
                const int r0 = i * H / Ho, r1 = ((i + 1) * H + Ho - 1) / Ho;
                const int s0 = j * W / Wo, s1 = ((j + 1) * W + Wo - 1) / Wo;
                *y++ = mean_of(x, W, r0, r1, s0, s1, (r1 - r0) * (s1 - s0));
            }
}
