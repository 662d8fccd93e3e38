static void means(float *y, const float *x, int rows, int n)
{
    for (int r = 0; r < rows; r++, x += n) {
        float s[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        int i = 0;
        for (; i + 8 <= n; i += 8)
            for (int j = 0; j < 8; j++)
                s[j] += x[i + j];
        for (; i < n; i++)
            s[0] += x[i];
        y[r] = (((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))) / (float)n;
    }
}

static inline float squares(const float *x, int n, float mean)
{
    float s = 0.0f;
    for (int i = 0; i < n; i++)
        s += (x[i] - mean) * (x[i] - mean);
    return s;
}

static void variances(float *y, const float *x, int rows, int n, float correction)
{
    for (int r = 0; r < rows; r++, x += n) {
        float mean;
        means(&mean, x, 1, n);
        y[r] = squares(x, n, mean) / ((float)n - correction);
    }
}

static void normalise(float *y, const float *x, const float *weight, const float *bias, int rows, int n, int per,
                      int count, float eps)
{
    for (int r = 0; r < rows; r++) {
        const float *row = x + r * n;
        float mean;
        means(&mean, row, 1, n);
        const float scale = 1.0f / root(squares(row, n, mean) / (float)n + eps);
        for (int i = 0; i < n; i++) {
            const int k = (r * n + i) / per % count;
            const float v = (row[i] - mean) * scale;
            y[r * n + i] = (weight ? v * weight[k] : v) + (bias ? bias[k] : 0.0f);
        }
    }
}

static void softmax(float *y, const float *x, int outer, int n, int inner)
{
    for (int o = 0; o < outer; o++)
        for (int i = 0; i < inner; i++) {
            const int at = o * n * inner + i;
            float most = x[at], sum = 0.0f;
            for (int k = 1; k < n; k++)
                most = larger(x[at + k * inner], most);
            for (int k = 0; k < n; k++)
                sum += y[at + k * inner] = exponential(x[at + k * inner] - most);
            for (int k = 0; k < n; k++)
                y[at + k * inner] /= sum;
        }
}

static void log_softmax(float *y, const float *x, int outer, int n, int inner)
{
    for (int o = 0; o < outer; o++)
        for (int i = 0; i < inner; i++) {
            const int at = o * n * inner + i;
            float most = x[at], sum = 0.0f;
            for (int k = 1; k < n; k++)
                most = larger(x[at + k * inner], most);
            for (int k = 0; k < n; k++)
                sum += exponential(x[at + k * inner] - most);
            const float all = most + logarithm(sum);
            for (int k = 0; k < n; k++)
                y[at + k * inner] = x[at + k * inner] - all;
        }
}
