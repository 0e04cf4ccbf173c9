/* Observe how `convolve_batch` calls `convolve`: compute IN OUT WHAT N writes, by WHAT, how often each of N images was
 * passed (calls), on how many threads (threads), or a number of each image, 2 x w (results). */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "convolution.h"

enum { MOST = 64, C = 2, K = 3 };
static float in[MOST * C], weights[1] = {2}, out[MOST * K], calls[MOST], threads[MOST];

void convolve(const float *x, const float *w, float *y, int H, int W, int channels, int to) {
    long image = (x - in) / C;
    if (image < 0 || image >= MOST || x != in + image * C || y != out + image * K || w != weights || H != 1 || W != 1)
        exit((fprintf(stderr, "convolve got an address or a size that belongs to no image\n"), 1));
    if (channels != C || to != K) exit((fprintf(stderr, "convolve got other numbers of channels\n"), 1));
    #pragma omp atomic
    calls[image]++;
    threads[omp_get_thread_num()] = 1;
    usleep(2000); /* so that another thread takes the next image */
    *y = 2 * *x;
}

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    int N = atoi(argv[5]), is_threads = !strcmp(argv[4], "threads");
    FILE *source = fopen(argv[2], "rb"), *result = fopen(argv[3], "wb");
    for (int n = 0; n < N; n++)
        if (fread(in + n * C, sizeof *in, 1, source) != 1) return 1;
    convolve_batch(in, weights, out, N, 1, 1, C, K);
    float used = 0;
    for (int t = 0; t < MOST; t++) used += threads[t];
    for (int n = 0; n < (is_threads ? 1 : N); n++)
        fwrite(is_threads ? &used : !strcmp(argv[4], "calls") ? calls + n : out + n * K, sizeof used, 1, result);
    return fclose(result);
}
