/* Run a convolution of lab 02, or measure a limit of the machine.
 *
 *   compute IN OUT N H W C K     read images and weights, as float32, and write the result
 *   time SECONDS N H W C K       print the seconds of the median call, of calls for SECONDS
 *   peak SECONDS                 print the multiply-adds per second, on registers, of all threads
 *   read SECONDS BYTES           print the bytes per second that all threads read from so large an array
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "convolution.h"

/* Used unless the files that it is linked with have their own; without `convolve`, it only measures limits. */
#define DEFAULT __attribute__((weak))
DEFAULT void convolve(const float *x, const float *w, float *y, int H, int W, int C, int K);
DEFAULT void pack(const float *w, float *packed, int C, int K) { memcpy(packed, w, 9L * C * K * sizeof *w); }
DEFAULT void convolve_batch(const float *x, const float *w, float *y, int N, int H, int W, int C, int K) {
    for (int n = 0; n < N; n++) convolve(x + (long)n * H * W * C, w, y + (long)n * H * W * K, H, W, C, K);
}

static float *numbers(long count, float value) { /* each thread first touches its part: on its NUMA node */
    float *array = malloc(count * sizeof *array + 1);
    if (!array) exit((fprintf(stderr, "not enough memory\n"), 1));
    #pragma omp parallel for
    for (long i = 0; i < count; i++) array[i] = value;
    return array;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double repeated(double least, double (*run)(void *), void *with) { /* seconds of the median run */
    enum { MOST = 100000 };
    static double seconds[MOST];
    run(with);
    double total = 0;
    int runs = 0;
    while (!runs || (total < least && runs < MOST)) total += seconds[runs++] = run(with);
    qsort(seconds, runs, sizeof *seconds, compare);
    return seconds[runs / 2];
}

typedef struct { int N, H, W, C, K; float *x, *w, *y; } Convolution;

static double one_call(void *with) {
    Convolution *of = with;
    double began = omp_get_wtime();
    convolve_batch(of->x, of->w, of->y, of->N, of->H, of->W, of->C, of->K);
    return omp_get_wtime() - began;
}

#ifdef __x86_64__
#define KEEP(v) __asm__ volatile("" : "+v"(v)) /* so that the compiler doesn't compute it in advance */
#else
#define KEEP(v) __asm__ volatile("" : "+w"(v))
#endif
enum { SUMS = REGISTERS == 32 ? 24 : 12, REPETITIONS = 1000000 };

static double multiply_adds(void *with) {
    double began = omp_get_wtime();
    #pragma omp parallel
    {
        vec a = {0}, b = {0}, sum[SUMS] = {0};
        KEEP(a);
        KEEP(b);
        for (int r = 0; r < REPETITIONS; r++) {
            #pragma GCC unroll 24
            for (int i = 0; i < SUMS; i++) {
                sum[i] += a * b;
                KEEP(sum[i]);
            }
        }
    }
    return omp_get_wtime() - began;
}

typedef struct { long count; float *array; } Memory;

static double read_all(void *with) {
    Memory *of = with;
    float total = 0;
    double began = omp_get_wtime();
    #pragma omp parallel reduction(+ : total)
    {
        long share = of->count / omp_get_num_threads() / (4 * LANES) * (4 * LANES);
        const float *p = of->array + share * omp_get_thread_num();
        vec sum[4] = {0};
        for (long i = 0; i < share; i += 4 * LANES)
            for (int s = 0; s < 4; s++) sum[s] += *(const vec *)(p + i + s * LANES);
        for (int s = 0; s < 4; s++) total += sum[s][0];
    }
    double seconds = omp_get_wtime() - began;
    return total < 0 ? -1 : seconds; /* so that it is computed */
}

static void transfer(const char *path, const char *mode, float *first, long n, float *second, long m) {
    FILE *file = fopen(path, mode);
    int reads = *mode == 'r';
    long done = !file ? -1 : reads ? fread(first, 4, n, file) + fread(second, 4, m, file) : fwrite(first, 4, n, file);
    if (done != n + m || fclose(file)) exit((fprintf(stderr, "%s: incomplete\n", path), 1));
}

int main(int argc, char **argv) {
    double least = argc > 2 ? atof(argv[2]) : 0;
    if (argc == 3 && !strcmp(argv[1], "peak")) {
        double seconds = repeated(least, multiply_adds, NULL);
        printf("%.6g\n", (double)REPETITIONS * SUMS * LANES * omp_get_max_threads() / seconds);
    } else if (argc == 4 && !strcmp(argv[1], "read")) {
        Memory of = {atol(argv[3]) / 4};
        of.array = numbers(of.count, 1);
        printf("%.6g\n", 4.0 * of.count / repeated(least, read_all, &of));
    } else if (argc == 9 || argc == 8) {
        if (!convolve) return fprintf(stderr, "there is no function convolve\n"), 1;
        int *size = (int[5]){0};
        for (int i = 0; i < 5; i++) size[i] = atoi(argv[argc - 5 + i]);
        Convolution of = {size[0], size[1], size[2], size[3], size[4]};
        long in = (long)of.N * of.H * of.W * of.C, out = (long)of.N * of.H * of.W * of.K, weights = 9L * of.C * of.K;
        float *w = numbers(weights, 0.5);
        of.x = numbers(in, 1);
        of.y = numbers(out, 0.0f / 0.0f); /* NaN, in case something is not written */
        of.w = numbers(9L * of.C * ((of.K + BLOCK - 1) / BLOCK * BLOCK), 0);
        if (argc == 9) transfer(argv[2], "rb", of.x, in, w, weights);
        pack(w, of.w, of.C, of.K);
        if (argc == 9) {
            one_call(&of);
            transfer(argv[3], "wb", of.y, out, NULL, 0);
        } else
            printf("%.6g\n", repeated(least, one_call, &of));
    } else
        return fprintf(stderr, "compute, time, peak or read\n"), 2;
}
