/* y[m][n] = bias[n] + a[m][k] b[k][n]; bias may be null. */
static void product(float *y, const float *a, const float *b, const float *bias, int m, int k, int n)
{
    for (int i = 0; i < m; i++, a += k, y += n) {
        int j = 0;
        for (; j + 4 * LANES <= n; j += 4 * LANES) {
            lanes s0 = bias ? load(bias + j) : splat(0.0f), s1 = bias ? load(bias + j + LANES) : splat(0.0f);
            lanes s2 = bias ? load(bias + j + 2 * LANES) : splat(0.0f);
            lanes s3 = bias ? load(bias + j + 3 * LANES) : splat(0.0f);
            for (int p = 0; p < k; p++) {
                const float *q = b + p * n + j;
                s0 += a[p] * load(q), s1 += a[p] * load(q + LANES);
                s2 += a[p] * load(q + 2 * LANES), s3 += a[p] * load(q + 3 * LANES);
            }
            store(y + j, s0), store(y + j + LANES, s1), store(y + j + 2 * LANES, s2), store(y + j + 3 * LANES, s3);
        }
        for (; j + LANES <= n; j += LANES) {
            lanes s = bias ? load(bias + j) : splat(0.0f);
            for (int p = 0; p < k; p++)
                s += a[p] * load(b + p * n + j);
            store(y + j, s);
        }
        for (; j < n; j++) {
            float s = bias ? bias[j] : 0.0f;
            for (int p = 0; p < k; p++)
                s += a[p] * b[p * n + j];
            y[j] = s;
        }
    }
}
