/* Run a network of 8-bit integers (lab 04), whose layers call `layer`.
 *
 *   compute IN OUT ROWS K N      one call, on codes, weights, biases and scales as float32; writes the codes as float32
 *   run NET IMAGES OUT SECONDS   all images, repeatedly for SECONDS; writes the last layer's codes, and prints the
 *                                seconds of the median pass. NET and IMAGES are as `labkit.models.integer_net` writes.
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "integer_net.h"

enum { POOL, CONVOLUTION, DENSE, MOST_LAYERS = 64, MOST_PASSES = 100000 };
typedef struct { int kind, K, N; int8_t *weights; int32_t *bias; float *scale; } Layer;
static Layer layers[MOST_LAYERS];
static int layer_count, size, channels; /* of the images, size × size pixels */

static void *allocate(long bytes) { /* zeros; rows of codes begin where a cache line does */
    long lines = (bytes + 64) / 64 * 64;
    void *memory = aligned_alloc(64, lines);
    if (!memory) exit((fprintf(stderr, "not enough memory\n"), 1));
    return memset(memory, 0, lines);
}

static void *get(FILE *file, long bytes) {
    void *memory = allocate(bytes);
    if (fread(memory, 1, bytes, file) != (size_t)bytes) exit((fprintf(stderr, "a file is incomplete\n"), 1));
    return memory;
}

static void read_network(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) exit((perror(path), 1));
    int *head = get(file, 3 * sizeof *head);
    layer_count = head[0], size = head[1], channels = head[2];
    if (layer_count > MOST_LAYERS) exit((fprintf(stderr, "too many layers\n"), 1));
    for (Layer *l = layers; l < layers + layer_count; l++) {
        int *shape = get(file, 3 * sizeof *shape);
        l->kind = shape[0], l->K = shape[1], l->N = shape[2];
        if (l->kind == POOL) continue;
        l->weights = get(file, (long)l->K * l->N);
        l->bias = get(file, 4L * l->N);
        l->scale = get(file, 4L * l->N);
    }
    fclose(file);
}

/* 'Same' convolution of 3 × 3: for each row of pixels, copy the codes under each kernel side by side, and multiply. */
static void convolve(const Layer *l, const uint8_t *in, uint8_t *padded, uint8_t *rows, uint8_t *out, int side, int C) {
    int wide = (side + 2) * C;
    memset(padded, 0, wide * (side + 2)); /* code 0 is the number 0 */
    for (int h = 0; h < side; h++) memcpy(padded + (h + 1) * wide + C, in + h * side * C, side * C);
    for (int h = 0; h < side; h++, out += side * l->N) {
        for (int w = 0; w < side; w++)
            for (int i = 0; i < 3; i++) memcpy(rows + w * l->K + 3 * i * C, padded + (h + i) * wide + w * C, 3 * C);
        layer(rows, l->weights, l->bias, l->scale, out, side, l->K, l->N);
    }
}

static void pool(const uint8_t *in, uint8_t *out, int side, int C) { /* the largest of 2 × 2 codes */
    for (int h = 0; h < side / 2; h++)
        for (int w = 0; w < side / 2; w++, out += C)
            for (int c = 0; c < C; c++) {
                const uint8_t *at = in + (2 * h * side + 2 * w) * C + c, *below = at + side * C;
                uint8_t above = at[0] > at[C] ? at[0] : at[C], under = below[0] > below[C] ? below[0] : below[C];
                out[c] = above > under ? above : under;
            }
}

static void pass(const uint8_t *images, int count, uint8_t *results, long outputs) {
    long most = (long)size * size * channels, row = 0;
    int side = size, C = channels, deep = channels;
    for (Layer *l = layers; l < layers + layer_count; l++) {
        if (l->kind == POOL) { side /= 2; continue; }
        if (l->kind == DENSE) side = 1;
        C = l->N, deep = C > deep ? C : deep;
        most = side * side * C > most ? side * side * C : most;
        row = l->K > row ? l->K : row;
    }
    #pragma omp parallel
    {
        uint8_t *a = allocate(most + row), *b = allocate(most + row), *rows = allocate(size * row), *spare;
        uint8_t *padded = allocate((long)(size + 2) * (size + 2) * deep);
        #pragma omp for
        for (int n = 0; n < count; n++) {
            int s = size, c = channels;
            memcpy(a, images + (long)n * s * s * c, s * s * c);
            for (Layer *l = layers; l < layers + layer_count; l++, spare = a, a = b, b = spare) {
                if (l->kind == POOL) {
                    pool(a, b, s, c);
                    s /= 2;
                    continue;
                }
                if (l->kind == CONVOLUTION)
                    convolve(l, a, padded, rows, b, s, c);
                else {
                    memset(a + s * s * c, 0, l->K - s * s * c); /* up to K; their weights are 0 too */
                    layer(a, l->weights, l->bias, l->scale, b, 1, l->K, l->N);
                    s = 1;
                }
                c = l->N;
            }
            memcpy(results + n * outputs, a, outputs);
        }
        free(a), free(b), free(rows), free(padded);
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int run(char **argv) {
    static double seconds[MOST_PASSES];
    read_network(argv[2]);
    FILE *file = fopen(argv[3], "rb"), *result = fopen(argv[4], "wb");
    if (!file || !result) exit((perror("images or results"), 1));
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file), each = (long)size * size * channels, count = bytes / each, outputs = 0;
    rewind(file);
    for (int i = 0; i < layer_count; i++)
        if (layers[i].kind != POOL) outputs = layers[i].N;
    uint8_t *images = get(file, bytes), *results = allocate(count * outputs);
    pass(images, count, results, outputs);
    double total = 0, least = atof(argv[5]);
    int passes = 0;
    while (!passes || (total < least && passes < MOST_PASSES)) {
        double began = omp_get_wtime();
        pass(images, count, results, outputs);
        total += seconds[passes++] = omp_get_wtime() - began;
    }
    qsort(seconds, passes, sizeof *seconds, compare);
    printf("%.6g\n", seconds[passes / 2]);
    fwrite(results, 1, count * outputs, result);
    return fclose(result);
}

static int compute(char **argv) {
    FILE *file = fopen(argv[2], "rb"), *result = fopen(argv[3], "wb");
    int rows = atoi(argv[4]), K = atoi(argv[5]), N = atoi(argv[6]);
    float *x = get(file, 4L * rows * K), *w = get(file, 4L * N * K), *b = get(file, 4L * N), *scale = get(file, 4L * N);
    /* Exactly as long as needed, so that the sanitizers find a wrong index. */
    uint8_t *in = malloc(rows * K), *out = calloc(rows * N, 1);
    int8_t *weights = malloc(N * K);
    int32_t *bias = malloc(4 * N);
    float *scales = malloc(4 * N);
    for (int i = 0; i < rows * K; i++) in[i] = x[i];
    for (int i = 0; i < N * K; i++) weights[i] = w[i];
    for (int i = 0; i < N; i++) bias[i] = b[i], scales[i] = scale[i];
    layer(in, weights, bias, scales, out, rows, K, N);
    for (int i = 0; i < rows * N; i++) fwrite(&(float){out[i]}, sizeof(float), 1, result);
    return fclose(result);
}

int main(int argc, char **argv) {
    if (argc == 7 && !strcmp(argv[1], "compute")) return compute(argv);
    if (argc == 6 && !strcmp(argv[1], "run")) return run(argv);
    return fprintf(stderr, "compute or run\n"), 2;
}
