/* y[m][n] = bias[n] + a[m][k] b[k][n]; bias may be null. Long sums are sums of sums of 256, whose rounding is small. */
static void product(float *y, const float *a, const float *b, const float *bias, int m, int k, int n)
{
    for (int i = 0; i < m; i++, a += k, y += n) {
        if (bias)
            memcpy(y, bias, (size_t)n * sizeof *y);
        else
            memset(y, 0, (size_t)n * sizeof *y);
        for (int first = 0; first < k; first += 256) {
            const int end = first + 256 < k ? first + 256 : k;
            int j = 0;
            for (; j + 4 * LANES <= n; j += 4 * LANES) {
                lanes s0 = splat(0.0f), s1 = s0, s2 = s0, s3 = s0;
                for (int p = first; p < end; p++) {
                    const float *q = b + p * n + j;
                    s0 += a[p] * load(q), s1 += a[p] * load(q + LANES);
                    s2 += a[p] * load(q + 2 * LANES), s3 += a[p] * load(q + 3 * LANES);
                }
                store(y + j, load(y + j) + s0), store(y + j + LANES, load(y + j + LANES) + s1);
                store(y + j + 2 * LANES, load(y + j + 2 * LANES) + s2);
                store(y + j + 3 * LANES, load(y + j + 3 * LANES) + s3);
            }
            for (; j + LANES <= n; j += LANES) {
                lanes s = splat(0.0f);
                for (int p = first; p < end; p++)
                    s += a[p] * load(b + p * n + j);
                store(y + j, load(y + j) + s);
            }
            for (; j < n; j++) {
                float s = 0.0f;
                for (int p = first; p < end; p++)
                    s += a[p] * b[p * n + j];
                y[j] += s;
            }
        }
    }
}
