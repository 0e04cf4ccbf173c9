/* Sums an array in four streams, so that a core has more cache lines in flight than with one.
 * Called by `labkit.roofline.readers`. */
#include <stdint.h>

typedef float vector __attribute__((vector_size(32), aligned(4), may_alias));

#ifdef __x86_64__
__attribute__((target_clones("avx2", "default")))
#endif
float read_floats(const float *numbers, int64_t count) {
    int64_t length = count / 4 / 8;
    const vector *a = (const vector *)numbers, *b = a + length, *c = b + length, *d = c + length;
    vector w = {0}, x = {0}, y = {0}, z = {0};
    for (int64_t i = 0; i < length; i++) {
        w += a[i];
        x += b[i];
        y += c[i];
        z += d[i];
    }
    w += x + y + z;
    return w[0] + w[1] + w[2] + w[3] + w[4] + w[5] + w[6] + w[7];
}
