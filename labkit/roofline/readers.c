/* Reads an array in four streams, so that a core has more cache lines on their way than with one, and adds it up.
 * `labkit.roofline.readers` calls it. */
#include <stdint.h>

typedef float vector __attribute__((vector_size(32), aligned(4), may_alias));

#ifdef __x86_64__
__attribute__((target_clones("avx2", "default")))
#endif
float read_floats(const float *numbers, int64_t count) {
    int64_t each = count / 4 / 8;
    const vector *a = (const vector *)numbers, *b = a + each, *c = b + each, *d = c + each;
    vector w = {0}, x = {0}, y = {0}, z = {0};
    for (int64_t i = 0; i < each; i++) {
        w += a[i];
        x += b[i];
        y += c[i];
        z += d[i];
    }
    w += x + y + z;
    return w[0] + w[1] + w[2] + w[3] + w[4] + w[5] + w[6] + w[7];
}
