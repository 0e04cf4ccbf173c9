/* What a layer of 8-bit integers and the program that runs a network of them (integer_net.c) agree on. */
#include <stdint.h>

/* Compute `rows` × N codes from `rows` × K codes and N × K weights: the sum of the products and the bias, times the
 * factor, rounded to the nearest code from 0 to 255. */
void layer(const uint8_t *in, const int8_t *weights, const int32_t *bias, const float *factor, uint8_t *out,
           int rows, int K, int N);
