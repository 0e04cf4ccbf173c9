/* The peak multiply-add speed of a core on values in registers: instructions per cycle times the clock, which drops
 * under wide instructions. No program is faster.
 *
 * Each function runs its instruction 16 times per repetition (AVX2, which has 16 registers: 12, and tiles: 4) on
 * separate accumulators, so that none waits for the previous one: on Zen 5, two BF16 instructions start in each cycle,
 * and each takes six. It returns whether it could run. `labkit.roofline.instructions` lists their operations.
 */
#include <immintrin.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TWELVE(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define SIXTEEN(DO) TWELVE(DO) DO(12) DO(13) DO(14) DO(15)
#define KEEP(x) __asm__ volatile("" : "+v"(x)) /* stops the compiler from computing it in advance */

#define LOOP(NAME, TARGET, SUM, NUMBERS, ZERO, ADD)                     \
    __attribute__((target(TARGET))) int NAME(int64_t repetitions) {     \
        NUMBERS a = (NUMBERS)ZERO, b = (NUMBERS)ZERO;                   \
        SUM s[16] = {0};                                                \
        KEEP(a);                                                        \
        KEEP(b);                                                        \
        for (int64_t i = 0; i < repetitions; i++) {                     \
            ADD                                                         \
        }                                                               \
        return 1;                                                       \
    }

#define STEP(i, CALL) s[i] = CALL; KEEP(s[i]);
#define F32_256(i) STEP(i, _mm256_fmadd_ps(a, b, s[i]))
#define F32_512(i) STEP(i, _mm512_fmadd_ps(a, b, s[i]))
#define BF16_512(i) STEP(i, _mm512_dpbf16_ps(s[i], (__m512bh)a, (__m512bh)b))
#define INT8_256(i) STEP(i, _mm256_dpbusd_avx_epi32(s[i], a, b))
#define INT8_512(i) STEP(i, _mm512_dpbusd_epi32(s[i], a, b))

LOOP(float32_avx2, "avx2,fma", __m256, __m256, _mm256_setzero_ps(), TWELVE(F32_256))
LOOP(float32_avx512, "avx512f", __m512, __m512, _mm512_setzero_ps(), SIXTEEN(F32_512))
LOOP(bfloat16_avx512, "avx512f,avx512bf16", __m512, __m512, _mm512_setzero_ps(), SIXTEEN(BF16_512))
LOOP(int8_avx, "avx2,avxvnni", __m256i, __m256i, _mm256_setzero_si256(), TWELVE(INT8_256))
LOOP(int8_avx512, "avx512f,avx512vnni", __m512i, __m512i, _mm512_setzero_si512(), SIXTEEN(INT8_512))

/* Tiles of 16 rows of 64 bytes: 0 to 3 are sums, 4 and 5 one matrix, 6 and 7 the other. Linux enables the
 * registers on request (arch_prctl: ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA). */
static int get_tiles(void) { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

#define TILES(NAME, TARGET, MULTIPLY)                                                             \
    __attribute__((target("amx-tile," TARGET))) int NAME(int64_t repetitions) {                   \
        struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape  \
            __attribute__((aligned(64))) = {.palette = 1};                                        \
        if (!get_tiles()) return 0;                                                               \
        for (int tile = 0; tile < 8; tile++) shape.bytes[tile] = 64, shape.rows[tile] = 16;       \
        _tile_loadconfig(&shape);                                                                 \
        for (int64_t i = 0; i < repetitions; i++) {                                               \
            MULTIPLY(0, 4, 6); MULTIPLY(1, 4, 7); MULTIPLY(2, 5, 6); MULTIPLY(3, 5, 7);           \
        }                                                                                         \
        _tile_release();                                                                          \
        return 1;                                                                                 \
    }

TILES(bfloat16_amx, "amx-bf16", _tile_dpbf16ps)
TILES(int8_amx, "amx-int8", _tile_dpbssd)
