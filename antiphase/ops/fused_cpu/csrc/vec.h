// SIMD vectors, conversion between scalar types, and the exponential.

#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>

// For functions called per row of a tile: inlined, their constants stay in registers.
#define ANTIPHASE_INLINE inline __attribute__((always_inline))
#define ANTIPHASE_INLINE_LAMBDA __attribute__((always_inline))

namespace antiphase {

using at::BFloat16;
using at::Half;
using Vec = at::vec::Vectorized<float>;
using Int = at::vec::Vectorized<int32_t>;

constexpr int64_t VL = Vec::size();  // lanes of a vector
constexpr int64_t kKeyAlign = 64;    // keys are padded to a multiple of this
constexpr int64_t kRowAlign = 16;    // query rows are padded to a multiple of this
constexpr float kLog2e = 1.4426950408889634f;
// Scores within 2^+-60 need no row maximum: their sums neither overflow nor underflow in fp32.
constexpr float kMaxSafeExponent = 60.0f;
constexpr float kInf = std::numeric_limits<float>::infinity();
static_assert(kKeyAlign % (2 * VL) == 0, "padded keys are complete pairs of vectors");

inline int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

inline void load2(const float* p, Vec& a, Vec& b) { a = Vec::loadu(p), b = Vec::loadu(p + VL); }
template <class scalar_t>
inline void load2(const scalar_t* p, Vec& a, Vec& b) {
  std::tie(a, b) = at::vec::convert_to_float<scalar_t>(at::vec::Vectorized<scalar_t>::loadu(p));
}
inline void store2(float* p, const Vec& a, const Vec& b) { a.store(p), b.store(p + VL); }
template <class scalar_t>
inline void store2(scalar_t* p, const Vec& a, const Vec& b) {
  at::vec::convert_from_float<scalar_t>(a, b).store(p);
}

// Maps are stored as matrix operands, two vectors at a time. In bf16, lane i of both vectors share
// a 32-bit word: rounding and loading are a few integer operations without a shuffle. The keys of a
// stored map are therefore interleaved, and the rows it multiplies are packed in the same order.
inline void load_map(const float* p, Vec& a, Vec& b) { load2(p, a, b); }
inline void load_map(const BFloat16* p, Vec& a, Vec& b) {
  const Int words = Int::loadu(p);
  a = at::vec::cast<float>(words << Int(16));
  b = at::vec::cast<float>(words & Int(-65536));
}
inline void load_map(const Half* p, Vec& a, Vec& b) { load2(p, a, b); }
inline void store_map(float* p, const Vec& a, const Vec& b) { store2(p, a, b); }
inline void store_map(Half* p, const Vec& a, const Vec& b) { store2(p, a, b); }
inline void store_map(BFloat16* p, const Vec& a, const Vec& b) {
  const Int half(0x8000);  // rounds half away from zero; keeps infinities and quiet NaN
  const Int low = ((at::vec::cast<int32_t>(a) + half) >> Int(16)) & Int(0xffff);
  (low | ((at::vec::cast<int32_t>(b) + half) & Int(-65536))).store(p);
}
// The key at position i of a stored map.
template <class operand_t>
inline int64_t interleaved_key(int64_t i) {
  if constexpr (sizeof(operand_t) == 4) return i;
  const int64_t at = i % (2 * VL);
  return i - at + at / 2 + (at % 2 ? VL : 0);
}

// Convert n elements from one type to another, for any n.
template <class From, class To>
inline void convert_row(const From* from, To* to, int64_t n) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(to, from, n * sizeof(To));
  } else {
    int64_t i = 0;
    Vec a, b;
    for (; i + 2 * VL <= n; i += 2 * VL) load2(from + i, a, b), store2(to + i, a, b);
    for (; i < n; i++) to[i] = static_cast<To>(static_cast<float>(from[i]));
  }
}

// Add to a vector in memory.
inline void add_lanes(float* to, const Vec& v) { (Vec::loadu(to) + v).store(to); }

inline float sum_lanes(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](Vec& x, Vec& y) { return x + y; }, v);
}
// to[k] = the sum of the lanes of v[k], for four vectors: fewer shuffles than four times one.
ANTIPHASE_INLINE void sum_lanes_of_four(const Vec* v, float* to) {
#if defined(CPU_CAPABILITY_AVX512)
  const __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x44),
                                 _mm512_shuffle_f32x4(v[0], v[1], 0xee));
  const __m512 b = _mm512_add_ps(_mm512_shuffle_f32x4(v[2], v[3], 0x44),
                                 _mm512_shuffle_f32x4(v[2], v[3], 0xee));
  __m512 sums = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  sums = _mm512_add_ps(sums, _mm512_permute_ps(sums, 0x4e));
  sums = _mm512_add_ps(sums, _mm512_permute_ps(sums, 0xb1));  // four times each
  _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, sums)));
#elif defined(CPU_CAPABILITY_AVX2)
  const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
#else
  for (int k = 0; k < 4; k++) to[k] = sum_lanes(v[k]);
#endif
}
inline float max_lanes(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](Vec& x, Vec& y) { return at::vec::maximum(x, y); }, v);
}

// 2^x for x < 128; zero from x = -126.5 downwards, and NaN stays NaN. Adding 1.5 * 2^23 + 127 leaves
// the biased exponent in the low bits; 2^fraction is a minimax polynomial with relative error 2e-7
// (fp32 operands) or 7e-5 (16-bit operands, which round at 4e-3).
template <class operand_t>
ANTIPHASE_INLINE Vec exp2_fast(Vec x) {
  const Vec magic(12583039.0f);
  x = at::vec::clamp_min(x, Vec(-127.0f));
  const Vec shifted = x + magic;
  const Vec r = x - (shifted - magic);
  Vec p;
  if constexpr (std::is_same_v<operand_t, float>) {
    p = at::vec::fmadd(Vec(1.327647198e-03f), r, Vec(9.675541334e-03f));
    p = at::vec::fmadd(p, r, Vec(5.550713274e-02f));
    p = at::vec::fmadd(p, r, Vec(2.402211972e-01f));
    p = at::vec::fmadd(p, r, Vec(6.931469671e-01f));
    p = at::vec::fmadd(p, r, Vec(1.000000072e+00f));
  } else {
    p = at::vec::fmadd(Vec(5.517166907e-02f), r, Vec(2.426111222e-01f));
    p = at::vec::fmadd(p, r, Vec(6.932609855e-01f));
    p = at::vec::fmadd(p, r, Vec(9.999280735e-01f));
  }
  return p * at::vec::cast<float>(at::vec::cast<int32_t>(shifted) << Int(23));
}

// Keep the lanes [from, to), zero the rest.
ANTIPHASE_INLINE Vec lanes_between(Vec v, int64_t from, int64_t to) {
  if (to < VL) v = to <= 0 ? Vec(0.0f) : Vec::set(Vec(0.0f), v, to);
  if (from > 0) v = from >= VL ? Vec(0.0f) : Vec::set(v, Vec(0.0f), from);
  return v;
}

// The sum of squares of n elements.
template <class scalar_t>
inline float square_norm(const scalar_t* x, int64_t n) {
  Vec sum(0.0f), a, b;
  int64_t i = 0;
  for (; i + 2 * VL <= n; i += 2 * VL) {
    load2(x + i, a, b);
    sum = at::vec::fmadd(a, a, at::vec::fmadd(b, b, sum));
  }
  float rest = 0.0f;
  for (; i < n; i++) rest += static_cast<float>(x[i]) * static_cast<float>(x[i]);
  return sum_lanes(sum) + rest;
}

// The largest of s[from..to), -inf if there is none; NaN may or may not win.
inline float row_max(const float* s, int64_t from, int64_t to) {
  Vec m0(-kInf), m1(-kInf);
  int64_t i = from;
  for (; i + 2 * VL <= to; i += 2 * VL) {
    m0 = at::vec::clamp_min(m0, Vec::loadu(s + i));
    m1 = at::vec::clamp_min(m1, Vec::loadu(s + i + VL));
  }
  float m = max_lanes(at::vec::clamp_min(m0, m1));
  for (; i < to; i++) m = std::max(m, s[i]);
  return m;
}

// e = f(s) for the columns [from, to), zero in the others of `width`. f takes a vector and gives
// one; add(a, b, i) sees the results of columns i.. in two vectors before they are stored.
template <class operand_t, class F, class Add>
ANTIPHASE_INLINE void map_row(const float* s, operand_t* e, int64_t from, int64_t to, int64_t width,
                              const F& f, const Add& add) {
  auto store = [&](const Vec& a, const Vec& b, int64_t i) ANTIPHASE_INLINE_LAMBDA {
    add(a, b, i);
    store_map(e + i, a, b);
  };
  auto edge = [&](int64_t i) ANTIPHASE_INLINE_LAMBDA {
    store(lanes_between(f(Vec::loadu(s + i)), from - i, to - i),
          lanes_between(f(Vec::loadu(s + i + VL)), from - i - VL, to - i - VL), i);
  };
  int64_t i = 0;
  if (from >= to) from = to = 0;
  for (; i + 2 * VL <= from; i += 2 * VL) store_map(e + i, Vec(0.0f), Vec(0.0f));
  if (i < from) edge(i), i += 2 * VL;
  for (; i + 2 * VL <= to; i += 2 * VL) store(f(Vec::loadu(s + i)), f(Vec::loadu(s + i + VL)), i);
  if (i < to) edge(i), i += 2 * VL;
  for (; i < width; i += 2 * VL) store_map(e + i, Vec(0.0f), Vec(0.0f));
}

// Call body(f) with f(s) = 2^(c (s - m)). The difference is taken first: it is exact near the
// maximum, however large the scores are. Without a maximum there is none to take.
template <class operand_t, class Body>
ANTIPHASE_INLINE void with_exponential(float c, float m, const Body& body) {
  const Vec vc(c), vm(m);
  if (m == 0.0f)
    body([&](const Vec& s) ANTIPHASE_INLINE_LAMBDA { return exp2_fast<operand_t>(s * vc); });
  else
    body([&](const Vec& s) ANTIPHASE_INLINE_LAMBDA { return exp2_fast<operand_t>((s - vm) * vc); });
}

// e = 2^(c (s - m)) for the columns [from, to), zero in the others. Returns the sum of e per lane.
template <class operand_t>
ANTIPHASE_INLINE Vec row_exp2(const float* s, operand_t* e, int64_t from, int64_t to, int64_t width,
                              float c, float m) {
  Vec sum0(0.0f), sum1(0.0f);
  auto add = [&](const Vec& a, const Vec& b, int64_t)
                 ANTIPHASE_INLINE_LAMBDA { sum0 = sum0 + a, sum1 = sum1 + b; };
  auto put = [&](const auto& f) ANTIPHASE_INLINE_LAMBDA { map_row(s, e, from, to, width, f, add); };
  with_exponential<operand_t>(c, m, put);
  return sum0 + sum1;
}

}  // namespace antiphase
