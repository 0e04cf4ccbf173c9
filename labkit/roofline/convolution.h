/* What a convolution and the program that runs it (convolution.c) agree on. */
#ifdef __AVX512F__
enum { LANES = 16, REGISTERS = 32 }; /* floats in a vector register, and vector registers */
#elif defined __AVX__
enum { LANES = 8, REGISTERS = 16 };
#elif defined __aarch64__
enum { LANES = 4, REGISTERS = 32 };
#else
enum { LANES = 4, REGISTERS = 16 };
#endif

/* *(vec *)p are the LANES floats that begin at p. vec + vec, vec * vec and float * vec work on all of them at once. */
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* A tile: PIXELS pixels, each with VECTORS registers of output channels. */
#ifndef PIXELS
enum { PIXELS = REGISTERS == 32 ? 14 : 6 };
#endif
#ifndef VECTORS
enum { VECTORS = 2 };
#endif
enum { BLOCK = VECTORS * LANES };

#define INLINE static inline __attribute__((always_inline))

/* Convolve one image of H × W pixels, from C channels to K, with kernels of 3 × 3 and 'same' padding. */
void convolve(const float *in, const float *weights, float *out, int H, int W, int C, int K);

/* Convolve N images. */
void convolve_batch(const float *in, const float *weights, float *out, int N, int H, int W, int C, int K);

/* Copy the weights into the layout that `convolve` reads. Before, `packed` is all zeros. */
void pack(const float *weights, float *packed, int C, int K);
