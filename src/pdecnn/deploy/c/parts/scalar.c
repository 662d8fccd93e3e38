static inline float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float relu(float x)
{
    return x < 0.0f ? 0.0f : x;
}

static inline float at_least(float x, float low)
{
    return x < low ? low : x;
}

static inline float at_most(float x, float high)
{
    return x > high ? high : x;
}

static inline float clamp(float x, float low, float high)
{
    return at_most(at_least(x, low), high);
}

static inline float larger(float a, float b)
{
    return a > b || a != a ? a : b;
}

static inline float smaller(float a, float b)
{
    return a < b || a != a ? a : b;
}

static inline float magnitude(float x)
{
    return x < 0.0f ? -x : x;
}

static inline float sign_of(float x)
{
    return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f;
}

static inline float pick(float condition, float a, float b)
{
    return condition != 0.0f ? a : b;
}

static inline float leaky(float x, float slope)
{
    return x > 0.0f ? x : slope * x;
}

/* e^x by 2^n times a polynomial on |r| <= ln 2 / 2; 0 where it would be subnormal. */
static inline float exponential(float x)
{
    const float low = x > -86.9f ? x : -86.9f, y = low < 88.5f ? low : 88.5f; /* not a number: -86.9 */
    const int n = (int)(y * 1.44269504f + (y < 0.0f ? -0.5f : 0.5f));
    const float r = (y - (float)n * 0.693359375f) + (float)n * 2.12194440e-4f;
    const float p = 0.5f + r * (1.6666665459e-1f + r * (4.1665795894e-2f + r * (8.3334519073e-3f
                    + r * (1.3981999507e-3f + r * 1.9875691500e-4f))));
    const float e = ((r * r) * p + r + 1.0f) * from_bits((uint32_t)(n + 126) << 23) * 2.0f;
    return x > 88.5f ? from_bits(0x7f800000u) : x < -86.9f ? 0.0f : x != x ? x : e;
}

static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + exponential(-x));
}

static inline float tangent_h(float x)
{
    const float a = magnitude(x), z = x * x;
    const float near = x + x * z * (-3.33332819422e-1f + z * (1.33314422036e-1f + z * (-5.37397155531e-2f
                       + z * (2.06390887954e-2f + z * -5.70498872745e-3f))));
    const float far = 1.0f - 2.0f / (exponential(2.0f * a) + 1.0f);
    return a < 0.625f ? near : x < 0.0f ? -far : far;
}

/* The error function, to 2e-7 [Abramowitz and Stegun, 7.1.26]. */
static inline float error_function(float x)
{
    const float a = magnitude(x), t = 1.0f / (1.0f + 0.3275911f * a);
    const float p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f
                    + t * 1.061405429f))));
    const float e = 1.0f - p * exponential(-a * a);
    return x < 0.0f ? -e : e;
}

static inline float gelu(float x)
{
    return 0.5f * x * (1.0f + error_function(x * 0.70710678f));
}

/* Newton's steps for 1 / sqrt(x), then one for sqrt(x). */
static inline float root(float x)
{
    const int tiny = x < 1.0e-30f;
    const float s = tiny ? x * 1.0e30f : x;
    if (!(s > 0.0f) || s > 3.4e38f) /* 0, infinite, negative or not a number */
        return s < 0.0f ? from_bits(0x7fc00000u) : s;
    float r = from_bits(0x5f3759dfu - (to_bits(s) >> 1));
    for (int i = 0; i < 3; i++)
        r = r * (1.5f - 0.5f * s * r * r);
    const float q = s * r, y = q + 0.5f * r * (s - q * q);
    return tiny ? y * 1.0e-15f : y;
}

static inline float reciprocal_root(float x)
{
    return 1.0f / root(x);
}

/* ln x: the exponent, and a polynomial of the fraction in [sqrt(1/2), sqrt(2)). */
static inline float logarithm(float x)
{
    if (!(x > 0.0f) || x > 3.4e38f)
        return x == 0.0f ? from_bits(0xff800000u) : x < 0.0f ? from_bits(0x7fc00000u) : x;
    const int tiny = x < 1.17549435e-38f;
    const uint32_t bits = to_bits(tiny ? x * 8388608.0f : x) + (0x3f800000u - 0x3f3504f3u);
    const float n = (float)((int)(bits >> 23) - 127 - (tiny ? 23 : 0));
    const float f = from_bits((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f, z = f * f;
    const float p = 3.3333331174e-1f + f * (-2.4999993993e-1f + f * (2.0000714765e-1f + f * (-1.6668057665e-1f
                    + f * (1.4249322787e-1f + f * (-1.2420140846e-1f + f * (1.1676998740e-1f
                    + f * (-1.1514610310e-1f + f * 7.0376836292e-2f)))))));
    return n * 0.693359375f + (f * z * p - n * 2.12194440e-4f - 0.5f * z + f);
}

static inline float power(float x, int n)
{
    float y = 1.0f;
    for (int i = n < 0 ? -n : n; i > 0; i--)
        y *= x;
    return n < 0 ? 1.0f / y : y;
}

static inline float both(float a, float b)
{
    return a != 0.0f && b != 0.0f ? 1.0f : 0.0f;
}

static inline float either(float a, float b)
{
    return a != 0.0f || b != 0.0f ? 1.0f : 0.0f;
}

static inline float elu(float x, float alpha, float steepness)
{
    return x > 0.0f ? x : alpha * (exponential(x * steepness) - 1.0f);
}

static inline float gelu_by_tanh(float x)
{
    return 0.5f * x * (1.0f + tangent_h(0.79788456f * (x + 0.044715f * (x * x * x))));
}
