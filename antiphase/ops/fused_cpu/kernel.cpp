// Fused differential attention on a CPU: O = (softmax(q1 k1^T) - lam softmax(q2 k2^T)) V.
//
// A block of query rows is scored against every key it can see, both softmaxes are normalised
// exactly, and only their difference meets V. That is the arithmetic of standard attention with the
// same parameters: two score products, one (wide) value product. The backward pass recomputes the
// two maps from the saved row normalisers and needs five products of the same kind.
//
// Reading order: numbers (vectors, exponential) -> Gemm (three micro-kernels with one interface)
// -> packing -> forward -> backward -> decoding -> the C interface that Python calls by ctypes.
//
// Words: op = number type of the matrix operands; tile = G::kTile keys; a packed operand is the right
// side of a product, laid out as its micro-kernel wants it; scores live in base 2, so that
// exp(scale s - m) is exp2(c s - m') with c = scale log2(e).

#include <ATen/Parallel.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

// A BLAS may offer bf16 products with fp32 accumulation; where it does not, the address is null.
extern "C" __attribute__((weak)) void cblas_gemm_bf16bf16f32(
    int layout, int trans_a, int trans_b, int m, int n, int k, float alpha, const void* a, int lda,
    const void* b, int ldb, float beta, float* c, int ldc);

// The types of the C interface; `native.py` mirrors them field by field.
extern "C" {
struct View {  // [B, H, T, channels], element strides; channels are adjacent
  void* data;
  int64_t batch, head, row;
};
struct Call {
  int64_t dtype;   // 0 fp32, 1 bf16, 2 fp16
  int64_t kernel;  // 0 brgemm fp32, 1 brgemm bf16, 2 blas bf16
  int64_t B, H, Hkv, Tq, Tk, d1, d2, dv;
  int64_t causal, block_rows;
  double scale1, scale2;
  View q1, k1, q2, k2, v, lam, sink;  // q2.data is null for one map, sink.data for no sink
  View out, lse1, lse2;
  View dout, dq1, dk1, dq2, dk2, dv_, dlam, dsink;
};
}

namespace {

using at::BFloat16;
using at::Half;
using Vec = at::vec::Vectorized<float>;
using Int = at::vec::Vectorized<int32_t>;

constexpr int64_t VL = Vec::size();
constexpr int64_t kGrain = 64;     // keys are padded to this, a whole number of vector pairs
constexpr int64_t kRowGrain = 16;  // query rows are padded to this
constexpr float kLog2e = 1.4426950408889634f;
// Scores known to stay within this many powers of two need no row maximum: their sums neither
// overflow nor vanish in fp32.
constexpr float kSafePower = 60.0f;
constexpr float kInf = std::numeric_limits<float>::infinity();
static_assert(kGrain % (2 * VL) == 0, "a grain holds whole pairs of vectors");

inline int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// ---- numbers ------------------------------------------------------------------------------

inline void load2(const float* p, Vec& a, Vec& b) { a = Vec::loadu(p), b = Vec::loadu(p + VL); }
template <class N>
inline void load2(const N* p, Vec& a, Vec& b) {
  std::tie(a, b) = at::vec::convert_to_float<N>(at::vec::Vectorized<N>::loadu(p));
}
inline void store2(float* p, const Vec& a, const Vec& b) { a.store(p), b.store(p + VL); }
template <class N>
inline void store2(N* p, const Vec& a, const Vec& b) {
  at::vec::convert_from_float<N>(a, b).store(p);
}

// Maps are stored as operands, two vectors at a time. In 16 bits the two are woven, lane by lane,
// into one vector of words: rounding and unweaving are a few integer operations and no shuffle.
// Keys of a stored map therefore stand in woven order, and so do the rows that a map multiplies.
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
  const Int half(0x8000);  // rounds half away from zero; infinities and quiet NaN survive
  const Int low = ((at::vec::cast<int32_t>(a) + half) >> Int(16)) & Int(0xffff);
  (low | ((at::vec::cast<int32_t>(b) + half) & Int(-65536))).store(p);
}
// The key that stands at place i of a stored map.
template <class Op>
inline int64_t woven(int64_t i) {
  if constexpr (sizeof(Op) == 4) return i;
  const int64_t at = i % (2 * VL);
  return i - at + at / 2 + (at % 2 ? VL : 0);
}

// Rows of n numbers from one type to another; n need not be a multiple of anything.
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

inline float sum_lanes(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](Vec& x, Vec& y) { return x + y; }, v);
}
inline float max_lanes(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](Vec& x, Vec& y) { return at::vec::maximum(x, y); }, v);
}

// 2^x for x < 128; below -126 it stays there (NaN stays NaN). The integer part is found by adding 1.5 * 2^23, whose low bits
// then hold it; 2^fraction is a minimax polynomial with relative error 2e-7 (Op float) or 7e-5
// (16-bit operands, which round at 4e-3).
template <class Op>
inline Vec exp2_fast(Vec x) {
  const Vec magic(12582912.0f);
  x = at::vec::clamp_min(x, Vec(-126.0f));
  const Vec shifted = x + magic;
  const Vec r = x - (shifted - magic);
  Vec p;
  if constexpr (std::is_same_v<Op, float>) {
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
  const Int exponent = at::vec::cast<int32_t>(shifted) << Int(23);
  return at::vec::cast<float>(at::vec::cast<int32_t>(p) + exponent);
}

// Keep the first `count` lanes, zero the rest.
inline Vec first_lanes(const Vec& v, int64_t count) {
  if (count >= VL) return v;
  return count <= 0 ? Vec(0.0f) : Vec::set(Vec(0.0f), v, count);
}

// The sum of squares of n numbers.
template <class N>
inline float square_norm(const N* x, int64_t n) {
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

// The largest of c * s[0..n).
inline float row_max(const float* s, int64_t n, float c) {
  Vec m0(-kInf), m1(-kInf);
  int64_t i = 0;
  for (; i + 2 * VL <= n; i += 2 * VL) {
    m0 = at::vec::clamp_min(m0, Vec::loadu(s + i));
    m1 = at::vec::clamp_min(m1, Vec::loadu(s + i + VL));
  }
  float m = max_lanes(at::vec::clamp_min(m0, m1));
  for (; i < n; i++) m = std::max(m, s[i]);
  return m * c;
}

// e = 2^(c s - m) for the first n of `width` columns, zero after them; returns their sum.
template <class Op>
inline float row_exp2(const float* s, Op* e, int64_t n, int64_t width, float c, float m) {
  const Vec vc(c), vm(-m);
  Vec sum0(0.0f), sum1(0.0f);
  int64_t i = 0;
  for (; i + 2 * VL <= n; i += 2 * VL) {
    const Vec a = exp2_fast<Op>(at::vec::fmadd(Vec::loadu(s + i), vc, vm));
    const Vec b = exp2_fast<Op>(at::vec::fmadd(Vec::loadu(s + i + VL), vc, vm));
    sum0 = sum0 + a, sum1 = sum1 + b;
    store_map(e + i, a, b);
  }
  for (; i < width; i += 2 * VL) {
    Vec a(0.0f), b(0.0f);
    if (i < n) {
      a = first_lanes(exp2_fast<Op>(at::vec::fmadd(Vec::loadu(s + i), vc, vm)), n - i);
      b = first_lanes(exp2_fast<Op>(at::vec::fmadd(Vec::loadu(s + i + VL), vc, vm)), n - i - VL);
      sum0 = sum0 + a, sum1 = sum1 + b;
    }
    store_map(e + i, a, b);
  }
  return sum_lanes(sum0 + sum1);
}

// ---- Gemm: three micro-kernels, one interface ----------------------------------------------
// nt: C[M,N] = A[M,K] . B^T, B packed by pack_keys: transposed, or rows of keys as they are
// nn: C[M,N] (+)= A[M,K] . B, B packed by pack_rows
// kPaired: two neighbouring rows of B share 32 bits (what bf16 micro-kernels call VNNI).

template <class Number>
struct Brgemm {
  using Op = Number;
  static constexpr bool kPaired = sizeof(Number) == 2;
  static constexpr bool kKeysTransposed = true;
  static constexpr int64_t kTile = sizeof(Number) == 2 ? 256 : 128;
  static void nt(int64_t M, int64_t N, int64_t K, const Op* A, int64_t lda, const Op* B,
                 int64_t ldb, float* C) {
    at::native::cpublas::brgemm(M, N, K, lda, ldb, kTile, false, A, B, C, kPaired);
  }
  static void nn(int64_t M, int64_t N, int64_t K, const Op* A, int64_t lda, const Op* B,
                 int64_t ldb, float* C, int64_t ldc, bool add) {
    at::native::cpublas::brgemm(M, N, K, lda, ldb, ldc, add, A, B, C, kPaired);
  }
  static void release() { at::native::cpublas::brgemm_release(kPaired); }
};

struct BlasBf16 {
  using Op = BFloat16;
  static constexpr bool kPaired = false;
  static constexpr bool kKeysTransposed = false;  // keys stay rows, the BLAS transposes
  static constexpr int64_t kTile = 256;
  static constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;
  static void nt(int64_t M, int64_t N, int64_t K, const Op* A, int64_t lda, const Op* B,
                 int64_t ldb, float* C) {
    cblas_gemm_bf16bf16f32(kRowMajor, kPlain, kTransposed, M, N, K, 1.0f, A, lda, B, ldb, 0.0f, C,
                           kTile);
  }
  static void nn(int64_t M, int64_t N, int64_t K, const Op* A, int64_t lda, const Op* B,
                 int64_t ldb, float* C, int64_t ldc, bool add) {
    cblas_gemm_bf16bf16f32(kRowMajor, kPlain, kPlain, M, N, K, 1.0f, A, lda, B, ldb, add, C, ldc);
  }
  static void release() {}
};

// ---- packing --------------------------------------------------------------------------------

template <class N>
class Buffer {  // aligned, uninitialised
 public:
  explicit Buffer(int64_t n = 0) { resize(n); }
  void resize(int64_t n) {
    const size_t bytes = round_up(std::max<int64_t>(n, 1) * sizeof(N), 64);
    data_.reset(static_cast<N*>(std::aligned_alloc(64, bytes)));
    if (!data_) throw std::bad_alloc();
  }
  N* get() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<N, Free> data_;
};

// dst[j][i] = src[i][j] for 32-bit words; numbers are moved, never computed with.
inline void transpose_words(const float* src, int64_t ld_src, float* dst, int64_t ld_dst,
                            int64_t rows, int64_t cols) {
  int64_t i = 0;
  for (; i + 16 <= rows; i += 16) {
    int64_t j = 0;
    for (; j + 16 <= cols; j += 16)
      at::vec::transpose_mxn<float, 16, 16>(src + i * ld_src + j, ld_src, dst + j * ld_dst + i,
                                            ld_dst);
    for (; j < cols; j++)
      for (int64_t k = i; k < i + 16; k++) dst[j * ld_dst + k] = src[k * ld_src + j];
  }
  for (; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) dst[j * ld_dst + i] = src[i * ld_src + j];
}

// Two rows into one row of 32-bit pairs.
template <class Op>
void pair_rows(const Op* a, const Op* b, Op* to, int64_t n) {
  const auto *low = reinterpret_cast<const uint16_t*>(a), *high = reinterpret_cast<const uint16_t*>(b);
  auto* words = reinterpret_cast<uint32_t*>(to);
  for (int64_t i = 0; i < n; i++) words[i] = uint32_t{low[i]} | (uint32_t{high[i]} << 16);
}

// Copy rows[n][d] into to[padded][d] as operands, zero rows after the n-th.
template <class N, class Op>
void copy_rows(const N* rows, int64_t stride, int64_t n, int64_t padded, int64_t d, Op* to) {
  for (int64_t i = 0; i < n; i++) convert_row(rows + i * stride, to + i * d, d);
  std::memset(to + n * d, 0, (padded - n) * d * sizeof(Op));
}

// A tile of rows[n][d] as the right operand of nn: (n x d), in the order of a stored map's keys.
template <class G, class N>
void pack_rows(const N* rows, int64_t stride, int64_t n, int64_t padded, int64_t d,
               typename G::Op* to, typename G::Op* scratch) {
  using Op = typename G::Op;
  if constexpr (sizeof(Op) == 4) return copy_rows(rows, stride, n, padded, d, to);
  copy_rows(rows, stride, n, padded, d, scratch);
  for (int64_t i = 0; i < padded; i += 2) {
    const Op *a = scratch + woven<Op>(i) * d, *b = scratch + woven<Op>(i + 1) * d;
    if constexpr (G::kPaired) {
      pair_rows(a, b, to + i * d, d);
    } else {
      std::memcpy(to + i * d, a, d * sizeof(Op));
      std::memcpy(to + (i + 1) * d, b, d * sizeof(Op));
    }
  }
}

// A tile of rows[n][d] as the right operand of nt: its transpose (d x n), a tile wide.
template <class G, class N>
void pack_keys(const N* rows, int64_t stride, int64_t n, int64_t padded, int64_t d,
               typename G::Op* to, typename G::Op* scratch) {
  using Op = typename G::Op;
  if constexpr (!G::kKeysTransposed) {
    copy_rows(rows, stride, n, padded, d, to);
  } else {
    copy_rows(rows, stride, n, padded, d, scratch);
    const int64_t words = d * sizeof(Op) / sizeof(float);
    transpose_words(reinterpret_cast<const float*>(scratch), words, reinterpret_cast<float*>(to),
                    G::kTile, padded, words);
  }
}

// rows[n][d] and their transpose [d][padded] as left operands.
template <class N, class Op>
void pack_queries(const N* rows, int64_t stride, int64_t n, int64_t padded, int64_t d, Op* plain,
                  Op* transposed, float* scratch) {
  copy_rows(rows, stride, n, padded, d, plain);
  float *wide = scratch, *wide_t = scratch + padded * d;
  copy_rows(rows, stride, n, padded, d, wide);
  transpose_words(wide, d, wide_t, padded, padded, d);
  convert_row(wide_t, transposed, padded * d);
}

// Micro-kernels may hold hardware state (matrix tiles); a worker gives it back when it ends.
template <class G>
struct Release {
  ~Release() { G::release(); }
};

// ---- work sharing ---------------------------------------------------------------------------

// Run body(worker, i) for i in [0, n) on all threads; each takes the next item when it is free.
// Items write to places of their own, so the result does not depend on who took what.
template <class Worker, class Make, class Body>
void share(int64_t n, const Make& make, const Body& body) {
  std::atomic<int64_t> next{0};
  const int64_t threads = std::min<int64_t>(n, at::get_num_threads());
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    Worker worker = make();
    for (int64_t i; (i = next.fetch_add(1)) < n;) body(worker, i);
  });
}

template <class N>
N* at_row(const View& t, int64_t b, int64_t h, int64_t i) {
  return static_cast<N*>(t.data) + b * t.batch + h * t.head + i * t.row;
}

// What both passes know of a block of query rows.
struct Rows {
  int64_t tile;                  // keys in a tile
  int64_t first, count, padded;  // query rows, and the count the products run with
  int64_t columns;               // keys that any of them sees, padded to a grain

  Rows(const Call& c, int64_t tile, int64_t block) : tile(tile) {
    first = block * c.block_rows;
    count = std::min(c.block_rows, c.Tq - first);
    padded = round_up(count, kRowGrain);
    columns = round_up(keys_of(c, count - 1), kGrain);
  }
  int64_t keys_of(const Call& c, int64_t r) const {  // bottom-right aligned when causal
    if (!c.causal) return c.Tk;
    return std::clamp<int64_t>(first + r + 1 + c.Tk - c.Tq, 0, c.Tk);
  }
  int64_t tiles() const { return (columns + tile - 1) / tile; }
  int64_t width(int64_t t) const { return std::min(tile, columns - t * tile); }
};

struct Sizes {
  int64_t maps, tiles, blocks, group, d_max;  // group: query heads that share a key head
  Sizes(const Call& c, int64_t tile)
      : maps(c.q2.data ? 2 : 1),
        tiles((c.Tk + tile - 1) / tile),
        blocks((c.Tq + c.block_rows - 1) / c.block_rows),
        group(c.H / c.Hkv),
        d_max(std::max({c.d1, c.d2, c.dv})) {}
};

// Tile t of the keys of key head g (batch and head in one index).
struct Tile {
  int64_t b, h, first, count, padded;
  Tile(const Call& c, int64_t tile, int64_t g, int64_t t)
      : b(g / c.Hkv), h(g % c.Hkv), first(t * tile), count(std::min(tile, c.Tk - first)),
        padded(round_up(count, kGrain)) {}
};

// ---- forward --------------------------------------------------------------------------------

template <class N, class G>
struct Forward {
  using Op = typename G::Op;
  static constexpr int64_t kTile = G::kTile, kJoin = 2;  // tiles in one product with V
  const Call& c;
  const Sizes z;
  int64_t heads = 0;  // key heads packed at a time
  Buffer<Op> keys[2], values;
  Buffer<float> norms[2];  // the largest square norm of a key, tile by tile

  explicit Forward(const Call& call) : c(call), z(call, kTile) {}

  struct Worker {
    Buffer<Op> q, e[2], a, scratch;  // e: 2^(score - m) of a whole block of rows, tile by tile
    Buffer<float> s, o, m[2];
    Release<G> release;
  };

  Worker make_worker() const {
    const int64_t R = round_up(c.block_rows, kRowGrain);
    Worker w;
    w.q.resize(R * z.d_max);
    w.a.resize(R * kJoin * kTile);
    w.o.resize(R * c.dv);
    w.s.resize(R * kTile);
    for (int map = 0; map < z.maps; map++) {
      w.e[map].resize(R * kTile * z.tiles);
      w.m[map].resize(R * (z.tiles + 2));
    }
    std::memset(w.a.get(), 0, R * kJoin * kTile * sizeof(Op));
    return w;
  }

  // Keys and values are packed for a few heads at a time: enough work to share, little memory.
  void run() {
    constexpr int64_t kPackBytes = int64_t{1} << 20, kItemsPerThread = 8;
    const int64_t total = c.B * c.Hkv, keys_padded = z.tiles * kTile;
    const int64_t width = c.d1 + (z.maps == 2 ? c.d2 : 0) + c.dv;
    const int64_t bytes = keys_padded * width * static_cast<int64_t>(sizeof(Op));
    const int64_t busy = kItemsPerThread * at::get_num_threads() / (z.group * z.blocks) + 1;
    heads = std::clamp<int64_t>(std::max(kPackBytes / bytes, busy), 1, total);
    for (int map = 0; map < z.maps; map++) {
      norms[map].resize(heads * z.tiles);
      if (packs(map)) keys[map].resize(heads * keys_padded * (map ? c.d2 : c.d1));
    }
    values.resize(heads * keys_padded * c.dv);
    for (int64_t g0 = 0; g0 < total; g0 += heads) {
      const int64_t n = std::min(heads, total - g0);
      share<Buffer<Op>>(
          n * z.tiles, [&] { return Buffer<Op>(kTile * z.d_max); },
          [&](Buffer<Op>& scratch, int64_t i) { pack(g0, i / z.tiles, i % z.tiles, scratch); });
      // The longest rows first: they set the pace when the map is causal.
      share<Worker>(
          n * z.group * z.blocks, [&] { return make_worker(); },
          [&](Worker& w, int64_t i) {
            const int64_t block = z.blocks - 1 - i / (n * z.group), head = i % (n * z.group);
            rows(w, g0 + head / z.group, head / z.group, head % z.group, Rows(c, kTile, block));
          });
    }
  }

  // Keys are packed unless the products take them where they lie, or both maps share them.
  bool packs(int map) const { return G::kKeysTransposed && !(map && same_keys()); }
  bool same_keys() const {
    return c.k1.data == c.k2.data && c.d1 == c.d2 && c.k1.batch == c.k2.batch &&
           c.k1.head == c.k2.head && c.k1.row == c.k2.row;
  }

  void pack(int64_t g0, int64_t local, int64_t t, Buffer<Op>& scratch) {
    const Tile tile(c, kTile, g0 + local, t);
    const int64_t at = (local * z.tiles + t) * kTile;
    for (int map = 0; map < z.maps; map++) {
      const View& k = map ? c.k2 : c.k1;
      const int64_t d = map ? c.d2 : c.d1;
      const N* from = at_row<N>(k, tile.b, tile.h, tile.first);
      float norm = 0.0f;
      for (int64_t i = 0; i < tile.count; i++)
        norm = std::max(norm, square_norm(from + i * k.row, d));
      norms[map].get()[local * z.tiles + t] = norm;
      if (packs(map))
        pack_keys<G>(from, k.row, tile.count, tile.padded, d, keys[map].get() + at * d,
                     scratch.get());
    }
    pack_rows<G>(at_row<N>(c.v, tile.b, tile.h, tile.first), c.v.row, tile.count, tile.padded, c.dv,
                 values.get() + at * c.dv, scratch.get());
  }

  // Whether |c q k| <= kSafePower for every row and key of a block, by their norms. (A NaN among
  // them may pass or not: it spoils its row either way.)
  bool bounded(const Op* q, const Rows& rows, int64_t d, const float* key_norms, float scale) const {
    float q_norm = 0.0f, k_norm = 0.0f;
    for (int64_t r = 0; r < rows.count; r++) q_norm = std::max(q_norm, square_norm(q + r * d, d));
    for (int64_t t = 0; t < rows.tiles(); t++) k_norm = std::max(k_norm, key_norms[t]);
    return std::sqrt(q_norm) * std::sqrt(k_norm) * scale <= kSafePower;
  }

  // Scores of one map, exponentiated against the running row maximum. m holds, a tile, the maximum
  // that tile was taken against; its last two rows hold the final maximum and the sum.
  void score(Worker& w, int map, int64_t local, const Rows& rows, int64_t b, int64_t h) {
    const int64_t d = map ? c.d2 : c.d1, hk = h / z.group;
    const View &q = map ? c.q2 : c.q1, &k = map ? c.k2 : c.k1;
    const float scale = static_cast<float>(map ? c.scale2 : c.scale1) * kLog2e;
    const Op* packed = keys[map && packs(map)].get() + local * z.tiles * kTile * d;
    copy_rows(at_row<N>(q, b, h, rows.first), q.row, rows.count, rows.padded, d, w.q.get());
    float *m_tile = w.m[map].get(), *m = m_tile + z.tiles * c.block_rows, *l = m + c.block_rows;
    const bool safe =
        !c.sink.data &&
        bounded(w.q.get(), rows, d, norms[map].get() + local * z.tiles, scale);
    const float sink = c.sink.data ? *at_row<float>(c.sink, 0, h, 0) * kLog2e : -kInf;
    std::fill_n(m, rows.count, safe ? 0.0f : sink);
    std::fill_n(l, rows.count, c.sink.data ? 1.0f : 0.0f);
    for (int64_t t = 0; t < rows.tiles(); t++) {
      const int64_t width = rows.width(t), first = t * kTile;
      Op* e = w.e[map].get() + t * rows.padded * kTile;
      float* s = w.s.get();
      if constexpr (G::kKeysTransposed) {
        G::nt(rows.padded, width, d, w.q.get(), d, packed + first * d, kTile, s);
      } else {
        const int64_t n = std::min(width, c.Tk - first);
        G::nt(rows.padded, n, d, w.q.get(), d, at_row<Op>(k, b, hk, first), k.row, s);
      }
      for (int64_t r = 0; r < rows.count; r++) {
        const int64_t n = std::clamp<int64_t>(rows.keys_of(c, r) - first, 0, width);
        if (!safe && n) {
          const float highest = row_max(s + r * kTile, n, scale);
          if (highest > m[r]) l[r] *= std::exp2(m[r] - highest), m[r] = highest;
        }
        l[r] += row_exp2<Op>(s + r * kTile, e + r * kTile, n, width, scale, m[r]);
        m_tile[t * c.block_rows + r] = m[r];
      }
    }
    auto* lse = at_row<float>(map ? c.lse2 : c.lse1, b, h, rows.first);
    for (int64_t r = 0; r < rows.count; r++)
      lse[r] = rows.keys_of(c, r) || c.sink.data ? m[r] + std::log2(l[r]) : -kInf;
  }

  void rows(Worker& w, int64_t g, int64_t local, int64_t head, const Rows& rows) {
    const int64_t b = g / c.Hkv, h = g % c.Hkv * z.group + head;
    for (int map = 0; map < z.maps; map++) score(w, map, local, rows, b, h);
    const Op* v = values.get() + local * z.tiles * kTile * c.dv;
    for (int64_t first = 0; first < rows.tiles(); first += kJoin) {
      const int64_t last = std::min(first + kJoin, rows.tiles());
      for (int64_t t = first; t < last; t++)
        for (int64_t r = 0; r < rows.count; r++)
          combine(w, t, r, w.a.get() + r * kJoin * kTile + (t - first) * kTile, rows, b, h);
      const int64_t width = std::min(kJoin * kTile, rows.columns - first * kTile);
      G::nn(rows.padded, c.dv, width, w.a.get(), kJoin * kTile, v + first * kTile * c.dv, c.dv,
            w.o.get(), c.dv, first > 0);
    }
    for (int64_t r = 0; r < rows.count; r++) {
      auto* out = at_row<N>(c.out, b, h, rows.first + r);
      if (rows.keys_of(c, r)) convert_row(w.o.get() + r * c.dv, out, c.dv);
      else std::memset(out, 0, c.dv * sizeof(N));
    }
  }

  // One row of one tile of the map that meets V: e1 / l1 - lam e2 / l2.
  void combine(Worker& w, int64_t t, int64_t r, Op* a, const Rows& rows, int64_t b, int64_t h) {
    float factor[2] = {0.0f, 0.0f};
    for (int map = 0; map < z.maps; map++) {
      const float *m_tile = w.m[map].get(), *m = m_tile + z.tiles * c.block_rows,
                  *l = m + c.block_rows;
      const float past = m_tile[t * c.block_rows + r];
      factor[map] = (past == m[r] ? 1.0f : std::exp2(past - m[r])) / l[r];
    }
    const int64_t at = (t * rows.padded + r) * kTile, width = rows.width(t);
    const Op* e1 = w.e[0].get() + at;
    const Vec f1(factor[0]);
    Vec x0, x1, y0, y1;
    if (z.maps == 1) {
      for (int64_t i = 0; i < width; i += 2 * VL) {
        load_map(e1 + i, x0, x1);
        store_map(a + i, x0 * f1, x1 * f1);
      }
      return;
    }
    const Op* e2 = w.e[1].get() + at;
    const Vec f2(-factor[1] * *at_row<float>(c.lam, b, h, rows.first + r));
    for (int64_t i = 0; i < width; i += 2 * VL) {
      load_map(e1 + i, x0, x1), load_map(e2 + i, y0, y1);
      store_map(a + i, at::vec::fmadd(y0, f2, x0 * f1), at::vec::fmadd(y1, f2, x1 * f1));
    }
  }
};

// ---- backward -------------------------------------------------------------------------------
// With P1, P2 the maps, A = P1 - lam P2 and dA = dO V^T:
//   D1 = rowsum(P1 dA), D2 = rowsum(P2 dA), dlam = -D2,
//   dS1 = scale1 P1 (dA - D1), dS2 = -lam scale2 P2 (dA - D2),
//   dQ = dS K, dK = dS^T Q, dV = A^T dO;  dsink = -p_sink D1.

template <class N, class G>
struct Backward {
  using Op = typename G::Op;
  static constexpr int64_t kTile = G::kTile;
  const Call& c;
  const Sizes z;
  int64_t slices = 1;  // parts of a key head's query rows, each with gradient sums of its own
  Buffer<float> sums;  // [key head, slice, (dk1 | dk2 | dv), tile, channel, key]

  explicit Backward(const Call& call) : c(call), z(call, kTile) {}

  int64_t channels() const { return c.d1 + (z.maps == 2 ? c.d2 : 0) + c.dv; }
  int64_t sums_size() const { return z.tiles * kTile * channels(); }
  static int64_t ld_keys(int64_t d) { return G::kKeysTransposed ? kTile : d; }

  struct Worker {
    Buffer<Op> k_cols[2], k_rows[2], v_cols;              // packed keys and values of a head
    Buffer<Op> q[2], q_t[2], g, g_t;                      // the block's queries and dO
    Buffer<Op> p[2], a, ds[2], pairs, scratch;            // maps of the block, products' operands
    Buffer<float> s, da, dq[2], wide, d[2], sums;
    int64_t packed = -1;                                  // the key head that is packed
    Release<G> release;
  };

  Worker make_worker() const {
    const int64_t R = round_up(c.block_rows, kRowGrain), keys = z.tiles * kTile;
    Worker w;
    for (int map = 0; map < z.maps; map++) {
      const int64_t d = map ? c.d2 : c.d1;
      w.k_cols[map].resize(keys * d), w.k_rows[map].resize(keys * d);
      w.q[map].resize(R * d), w.q_t[map].resize(R * d), w.dq[map].resize(R * d);
      w.p[map].resize(R * keys), w.ds[map].resize(R * kTile), w.d[map].resize(R);
    }
    w.v_cols.resize(keys * c.dv);
    w.g.resize(R * c.dv), w.g_t.resize(R * c.dv);
    w.a.resize(R * kTile), w.pairs.resize(G::kPaired ? R * kTile : 0);
    w.s.resize(R * kTile), w.da.resize(R * keys), w.wide.resize(2 * R * z.d_max);
    w.scratch.resize(kTile * z.d_max);
    if (slices == 1) w.sums.resize(sums_size());
    return w;
  }

  void run() {
    const int64_t total = c.B * c.Hkv, threads = at::get_num_threads(),
                  units = z.group * z.blocks;
    slices = std::clamp<int64_t>((threads + total - 1) / total, 1, units);
    if (slices > 1) sums.resize(total * slices * sums_size());
    share<Worker>(
        total * slices, [&] { return make_worker(); },
        [&](Worker& w, int64_t i) {
          const int64_t g = i / slices, slice = i % slices;
          if (w.packed != g) pack(w, g);
          float* mine = slices == 1 ? w.sums.get() : sums.get() + i * sums_size();
          std::fill_n(mine, sums_size(), 0.0f);
          // Strided, so that every slice gets short and long rows alike.
          for (int64_t u = slice; u < units; u += slices)
            rows(w, g, u / z.blocks, Rows(c, kTile, u % z.blocks), mine);
          if (slices == 1) write(g, mine, w.wide.get());
        });
    if (slices == 1) return;
    share<Buffer<float>>(
        total, [&] { return Buffer<float>(kRowGrain * z.d_max); },
        [&](Buffer<float>& scratch, int64_t g) {
          float* first = sums.get() + g * slices * sums_size();
          for (int64_t s = 1; s < slices; s++)
            for (int64_t i = 0; i < sums_size(); i++) first[i] += first[s * sums_size() + i];
          write(g, first, scratch.get());
        });
  }

  void pack(Worker& w, int64_t g) {
    w.packed = g;
    for (int64_t t = 0; t < z.tiles; t++) {
      const Tile tile(c, kTile, g, t);
      for (int map = 0; map < z.maps; map++) {
        const View& k = map ? c.k2 : c.k1;
        const int64_t d = map ? c.d2 : c.d1;
        const N* from = at_row<N>(k, tile.b, tile.h, tile.first);
        pack_keys<G>(from, k.row, tile.count, tile.padded, d, w.k_cols[map].get() + t * kTile * d,
                     w.scratch.get());
        pack_rows<G>(from, k.row, tile.count, tile.padded, d, w.k_rows[map].get() + t * kTile * d,
                     w.scratch.get());
      }
      pack_keys<G>(at_row<N>(c.v, tile.b, tile.h, tile.first), c.v.row, tile.count, tile.padded,
                   c.dv, w.v_cols.get() + t * kTile * c.dv, w.scratch.get());
    }
  }

  void rows(Worker& w, int64_t g, int64_t head, const Rows& rows, float* mine) {
    const int64_t b = g / c.Hkv, h = g % c.Hkv * z.group + head;
    recompute(w, rows, b, h);
    float* dk[2] = {mine, mine + z.tiles * kTile * c.d1};
    float* dv = mine + z.tiles * kTile * (channels() - c.dv);
    for (int64_t t = 0; t < rows.tiles(); t++) {
      const int64_t width = rows.width(t);
      differentiate(w, t, rows, b, h);
      for (int map = 0; map < z.maps; map++) {
        const int64_t d = map ? c.d2 : c.d1;
        G::nn(rows.padded, d, width, w.ds[map].get(), kTile, w.k_rows[map].get() + t * kTile * d, d,
              w.dq[map].get(), d, t > 0);
        G::nn(d, width, rows.padded, w.q_t[map].get(), rows.padded,
              as_right(w, w.ds[map].get(), rows, width), kTile, dk[map] + t * kTile * d, kTile,
              true);
      }
      G::nn(c.dv, width, rows.padded, w.g_t.get(), rows.padded,
            as_right(w, w.a.get(), rows, width), kTile, dv + t * kTile * c.dv, kTile, true);
    }
    for (int map = 0; map < z.maps; map++) {
      const int64_t d = map ? c.d2 : c.d1;
      for (int64_t r = 0; r < rows.count; r++) {
        N* dq = at_row<N>(map ? c.dq2 : c.dq1, b, h, rows.first + r);
        if (rows.keys_of(c, r)) convert_row(w.dq[map].get() + r * d, dq, d);
        else std::memset(dq, 0, d * sizeof(N));
      }
    }
  }

  // Both maps and dA of the whole block, and the row sums D.
  void recompute(Worker& w, const Rows& rows, int64_t b, int64_t h) {
    pack_queries(at_row<N>(c.dout, b, h, rows.first), c.dout.row, rows.count, rows.padded, c.dv,
                 w.g.get(), w.g_t.get(), w.wide.get());
    for (int map = 0; map < z.maps; map++) {
      const View& q = map ? c.q2 : c.q1;
      pack_queries(at_row<N>(q, b, h, rows.first), q.row, rows.count, rows.padded,
                   map ? c.d2 : c.d1, w.q[map].get(), w.q_t[map].get(), w.wide.get());
      std::fill_n(w.d[map].get(), rows.padded, 0.0f);
    }
    for (int64_t t = 0; t < rows.tiles(); t++) {
      const int64_t width = rows.width(t), at = t * rows.padded * kTile;
      float* da = w.da.get() + at;
      G::nt(rows.padded, width, c.dv, w.g.get(), c.dv, w.v_cols.get() + t * kTile * c.dv,
            ld_keys(c.dv), da);
      for (int map = 0; map < z.maps; map++) {
        const int64_t d = map ? c.d2 : c.d1;
        const float scale = static_cast<float>(map ? c.scale2 : c.scale1) * kLog2e;
        const float* lse = at_row<float>(map ? c.lse2 : c.lse1, b, h, rows.first);
        Op* p = w.p[map].get() + at;
        float* s = w.s.get();
        G::nt(rows.padded, width, d, w.q[map].get(), d, w.k_cols[map].get() + t * kTile * d,
              ld_keys(d), s);
        for (int64_t r = 0; r < rows.count; r++) {
          const int64_t n = std::clamp<int64_t>(rows.keys_of(c, r) - t * kTile, 0, width);
          row_exp2<Op>(s + r * kTile, p + r * kTile, n, width, scale, lse[r]);
          w.d[map].get()[r] += dot(p + r * kTile, da + r * kTile, width);
        }
      }
    }
    for (int64_t r = 0; r < rows.count; r++) {
      const int64_t i = rows.first + r;
      if (z.maps == 2) *at_row<float>(c.dlam, b, h, i) = -w.d[1].get()[r];
      if (c.sink.data) {
        const float p_sink = std::exp2(*at_row<float>(c.sink, 0, h, 0) * kLog2e -
                                       *at_row<float>(c.lse1, b, h, i));
        *at_row<float>(c.dsink, b, h, i) = -p_sink * w.d[0].get()[r];
      }
    }
  }

  static float dot(const Op* x, const float* y, int64_t n) {
    Vec sum0(0.0f), sum1(0.0f), x0, x1;
    for (int64_t i = 0; i < n; i += 2 * VL) {
      load_map(x + i, x0, x1);
      sum0 = at::vec::fmadd(x0, Vec::loadu(y + i), sum0);
      sum1 = at::vec::fmadd(x1, Vec::loadu(y + i + VL), sum1);
    }
    return sum_lanes(sum0 + sum1);
  }

  // A, dS1 and dS2 of one tile, as operands; padded rows are zero, they meet the keys' gradients.
  void differentiate(Worker& w, int64_t t, const Rows& rows, int64_t b, int64_t h) {
    const int64_t width = rows.width(t);
    for (int64_t r = 0; r < rows.count; r++) {
      const int64_t at = (t * rows.padded + r) * kTile;
      const float* da = w.da.get() + at;
      const Op *p1 = w.p[0].get() + at, *p2 = z.maps == 2 ? w.p[1].get() + at : nullptr;
      Op *a = w.a.get() + r * kTile, *ds1 = w.ds[0].get() + r * kTile;
      const Vec scale1(static_cast<float>(c.scale1)), D1(w.d[0].get()[r]);
      Vec x0, x1, y0, y1, g0, g1;
      if (z.maps == 1) {
        for (int64_t i = 0; i < width; i += 2 * VL) {
          load_map(p1 + i, x0, x1), load2(da + i, g0, g1);
          store_map(a + i, x0, x1);
          store_map(ds1 + i, x0 * scale1 * (g0 - D1), x1 * scale1 * (g1 - D1));
        }
        continue;
      }
      Op* ds2 = w.ds[1].get() + r * kTile;
      const float lam = *at_row<float>(c.lam, b, h, rows.first + r);
      const Vec minus_lam(-lam), scale2(-lam * static_cast<float>(c.scale2)), D2(w.d[1].get()[r]);
      for (int64_t i = 0; i < width; i += 2 * VL) {
        load_map(p1 + i, x0, x1), load_map(p2 + i, y0, y1), load2(da + i, g0, g1);
        store_map(a + i, at::vec::fmadd(y0, minus_lam, x0), at::vec::fmadd(y1, minus_lam, x1));
        store_map(ds1 + i, x0 * scale1 * (g0 - D1), x1 * scale1 * (g1 - D1));
        store_map(ds2 + i, y0 * scale2 * (g0 - D2), y1 * scale2 * (g1 - D2));
      }
    }
    const int64_t from = rows.count * kTile, n = (rows.padded - rows.count) * kTile * sizeof(Op);
    std::memset(w.a.get() + from, 0, n);
    for (int map = 0; map < z.maps; map++) std::memset(w.ds[map].get() + from, 0, n);
  }

  // A tile of rows as a right operand, in pairs where the micro-kernel wants them.
  static const Op* as_right(Worker& w, const Op* tile, const Rows& rows, int64_t width) {
    if constexpr (!G::kPaired) return tile;
    for (int64_t r = 0; r < rows.padded; r += 2)
      pair_rows(tile + r * kTile, tile + (r + 1) * kTile, w.pairs.get() + r * kTile, width);
    return w.pairs.get();
  }

  void write(int64_t g, const float* mine, float* scratch) {
    write_one(c.dk1, g, mine, c.d1, scratch);
    if (z.maps == 2) write_one(c.dk2, g, mine + z.tiles * kTile * c.d1, c.d2, scratch);
    write_one(c.dv_, g, mine + z.tiles * kTile * (channels() - c.dv), c.dv, scratch);
  }

  // Gradient sums are [channel, key] a tile; turn them over, a few keys at a time.
  void write_one(const View& to, int64_t g, const float* from, int64_t d, float* rows) {
    for (int64_t t = 0; t < z.tiles; t++) {
      const Tile tile(c, kTile, g, t);
      for (int64_t j = 0; j < tile.padded; j += kRowGrain) {
        transpose_words(from + t * kTile * d + j, kTile, rows, d, d, kRowGrain);
        for (int64_t i = 0; i < kRowGrain; i++) {
          const int64_t key = woven<Op>(j + i);
          if (key < tile.count)
            convert_row(rows + i * d, at_row<N>(to, tile.b, tile.h, tile.first + key), d);
        }
      }
    }
  }
};

// ---- decoding -------------------------------------------------------------------------------
// Few query rows against a long cache: memory sets the pace, so keys and values are read once,
// where they lie, by every query row that needs them.

template <class N>
struct Decode {
  static constexpr int64_t kStep = 4;    // keys or values taken together
  static constexpr int64_t kAhead = 16;  // rows between reading one and asking for another
  const Call& c;
  const Sizes z;
  const int64_t rows;    // query rows that share a key head
  const int64_t stride;  // of a row of scores
  Buffer<float> scores;  // [key head, map, row, key]

  explicit Decode(const Call& call)
      : c(call), z(call, kGrain), rows(z.group * c.Tq), stride(round_up(c.Tk, kGrain)),
        scores(c.B * c.Hkv * z.maps * rows * stride) {}

  float* score_row(int64_t g, int map, int64_t r) const {
    return scores.get() + ((g * z.maps + map) * rows + r) * stride;
  }
  int64_t keys_of(int64_t r) const {
    return c.causal ? std::clamp<int64_t>(r % c.Tq + 1 + c.Tk - c.Tq, 0, c.Tk) : c.Tk;
  }

  void run() {
    const int64_t total = c.B * c.Hkv, threads = at::get_num_threads();
    auto make = [&] { return Buffer<float>(rows * z.d_max); };
    if (total >= threads) {
      share<Buffer<float>>(total, make, [&](Buffer<float>& w, int64_t g) {
        score(w, g, 0, c.Tk);
        for (int64_t r = 0; r < rows; r++) normalise(g, r);
        gather(w, g, 0, c.dv);
      });
      return;
    }
    const int64_t parts = (threads + total - 1) / total;
    const int64_t keys = (c.Tk + parts - 1) / parts;
    const int64_t width = round_up((c.dv + parts - 1) / parts, 2 * VL);
    share<Buffer<float>>(total * parts, make, [&](Buffer<float>& w, int64_t i) {
      const int64_t first = i % parts * keys;
      score(w, i / parts, std::min(first, c.Tk), std::min(first + keys, c.Tk));
    });
    share<Buffer<float>>(total * rows, make, [&](Buffer<float>&, int64_t i) {
      normalise(i / rows, i % rows);
    });
    share<Buffer<float>>(total * parts, make, [&](Buffer<float>& w, int64_t i) {
      const int64_t first = i % parts * width;
      gather(w, i / parts, std::min(first, c.dv), std::min(first + width, c.dv));
    });
  }

  void score(Buffer<float>& w, int64_t g, int64_t from, int64_t to) {
    const int64_t b = g / c.Hkv, hk = g % c.Hkv;
    for (int map = 0; map < z.maps; map++) {
      const View &q = map ? c.q2 : c.q1, &k = map ? c.k2 : c.k1;
      const int64_t d = map ? c.d2 : c.d1;
      for (int64_t r = 0; r < rows; r++)
        lanes_row(at_row<N>(q, b, hk * z.group + r / c.Tq, r % c.Tq), w.get() + r * d, d);
      for (int64_t j = from; j < to; j += kStep) {
        const N* key[kStep];
        for (int64_t i = 0; i < kStep; i++) {
          key[i] = at_row<N>(k, b, hk, std::min(j + i, to - 1));
          fetch(key[i] + kAhead * k.row, d);
        }
        for (int64_t r = 0; r < rows; r++) {
          float s[kStep];
          dots(key, w.get() + r * d, d, s);
          std::copy_n(s, std::min(kStep, to - j), score_row(g, map, r) + j);
        }
      }
    }
  }

  // Ask for a row that is wanted soon; past the end nothing happens.
  static void fetch(const N* row, int64_t n) {
    constexpr int64_t kLine = 64 / sizeof(N);
    for (int64_t i = 0; i < n; i += kLine) __builtin_prefetch(row + i);
  }

  // A row as floats in the lane order of load_map, which keys and values are read in.
  static void lanes_row(const N* from, float* to, int64_t n) {
    int64_t i = 0;
    Vec a, b;
    for (; i + 2 * VL <= n; i += 2 * VL) load_map(from + i, a, b), store2(to + i, a, b);
    for (; i < n; i++) to[i] = static_cast<float>(from[i]);
  }

  static void dots(const N* const* x, const float* y, int64_t n, float* to) {
    Vec sums[kStep], y0, y1, a, b;
    for (auto& sum : sums) sum = Vec(0.0f);
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
      load2(y + i, y0, y1);
      for (int64_t k = 0; k < kStep; k++) {
        load_map(x[k] + i, a, b);
        sums[k] = at::vec::fmadd(b, y1, at::vec::fmadd(a, y0, sums[k]));
      }
    }
    for (int64_t k = 0; k < kStep; k++) {
      to[k] = sum_lanes(sums[k]);
      for (int64_t rest = i; rest < n; rest++) to[k] += static_cast<float>(x[k][rest]) * y[rest];
    }
  }

  // Turn the scores of one row into its row of the combined map, in place of the first map's.
  void normalise(int64_t g, int64_t r) {
    const int64_t b = g / c.Hkv, h = g % c.Hkv * z.group + r / c.Tq, i = r % c.Tq, n = keys_of(r);
    float factor[2] = {0.0f, 0.0f};
    for (int map = 0; map < z.maps; map++) {
      const float scale = static_cast<float>(map ? c.scale2 : c.scale1) * kLog2e;
      const float sink = c.sink.data ? *at_row<float>(c.sink, 0, h, 0) * kLog2e : -kInf;
      float* s = score_row(g, map, r);
      const float m = std::max(n ? row_max(s, n, scale) : -kInf, sink);
      float l = row_exp2<float>(s, s, n, stride, scale, m);
      if (c.sink.data) l += std::exp2(sink - m);
      factor[map] = n ? 1.0f / l : 0.0f;
      *at_row<float>(map ? c.lse2 : c.lse1, b, h, i) = m + std::log2(l);
    }
    float *a = score_row(g, 0, r), *e2 = z.maps == 2 ? score_row(g, 1, r) : a;
    const float lam = z.maps == 2 ? *at_row<float>(c.lam, b, h, i) : 0.0f;
    const Vec f1(factor[0]), f2(z.maps == 2 ? -lam * factor[1] : 0.0f);
    for (int64_t j = 0; j < stride; j += VL)
      at::vec::fmadd(Vec::loadu(e2 + j), f2, Vec::loadu(a + j) * f1).store(a + j);
  }

  // Channels from..to of the output: a few values a step, so that the sums are touched seldom.
  void gather(Buffer<float>& w, int64_t g, int64_t from, int64_t to) {
    const int64_t b = g / c.Hkv, hk = g % c.Hkv, n = to - from;
    std::fill_n(w.get(), rows * n, 0.0f);
    for (int64_t j = 0; j < c.Tk; j += kStep) {
      const N* v[kStep];
      for (int64_t k = 0; k < kStep; k++) {
        v[k] = at_row<N>(c.v, b, hk, std::min(j + k, c.Tk - 1)) + from;
        fetch(v[k] + kAhead * c.v.row, n);
      }
      for (int64_t r = 0; r < rows; r++) {
        const float* a = score_row(g, 0, r) + j;  // zero after the last key
        float* sum = w.get() + r * n;
        Vec s0, s1, v0, v1;
        int64_t i = 0;
        for (; i + 2 * VL <= n; i += 2 * VL) {
          load2(sum + i, s0, s1);
          for (int64_t k = 0; k < kStep; k++) {
            load_map(v[k] + i, v0, v1);
            s0 = at::vec::fmadd(v0, Vec(a[k]), s0), s1 = at::vec::fmadd(v1, Vec(a[k]), s1);
          }
          store2(sum + i, s0, s1);
        }
        for (; i < n; i++)
          for (int64_t k = 0; k < kStep; k++) sum[i] += a[k] * static_cast<float>(v[k][i]);
      }
    }
    for (int64_t r = 0; r < rows; r++) {
      N* out = at_row<N>(c.out, b, hk * z.group + r / c.Tq, r % c.Tq) + from;
      Vec s0, s1;
      int64_t i = 0;
      for (; i + 2 * VL <= n; i += 2 * VL)
        load2(w.get() + r * n + i, s0, s1), store_map(out + i, s0, s1);
      for (; i < n; i++) out[i] = static_cast<N>(w.get()[r * n + i]);
    }
  }
};

// ---- the C interface --------------------------------------------------------------------------

template <class F>
void with_types(const Call& c, const F& f) {
  if (c.dtype == 0) return f(float(), Brgemm<float>());
  if (c.dtype == 2) return f(Half(), Brgemm<float>());
  if (c.kernel == 1) return f(BFloat16(), Brgemm<BFloat16>());
  if (c.kernel == 2) return f(BFloat16(), BlasBf16());
  f(BFloat16(), Brgemm<float>());
}

template <class F>
int64_t guarded(char* error, int64_t size, const F& f) {
  try {
    f();
    return 0;
  } catch (const std::exception& e) {
    std::snprintf(error, size, "%s", e.what());
    return 1;
  }
}

// GFLOP/s of the two products of a forward tile, one thread.
template <class G>
double rate() {
  using Op = typename G::Op;
  constexpr int64_t R = 64, d = 64, dv = 128, repeats = 40, kTile = G::kTile;
  Buffer<Op> q(R * d), k(kTile * d), a(R * kTile), v(kTile * dv);
  Buffer<float> s(R * kTile), o(R * dv);
  for (auto [p, n] : {std::pair{q.get(), R * d}, {k.get(), kTile * d}, {a.get(), R * kTile},
                      {v.get(), kTile * dv}})
    std::fill_n(p, n, static_cast<Op>(0.5f));
  double best = 0;
  for (int round = 0; round < 5; round++) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < repeats; i++) {
      G::nt(R, kTile, d, q.get(), d, k.get(), G::kKeysTransposed ? kTile : d, s.get());
      G::nn(R, dv, kTile, a.get(), kTile, v.get(), dv, o.get(), dv, true);
    }
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    best = std::max(best, repeats * 2.0 * R * kTile * (d + dv) / spent.count() * 1e-9);
  }
  G::release();
  return best;
}

}  // namespace

extern "C" {

int64_t antiphase_call_size() { return sizeof(Call); }

// Rate of a micro-kernel in GFLOP/s, 0 where this machine does not have it.
double antiphase_rate(int64_t kernel) {
  try {
    if (kernel == 0) return rate<Brgemm<float>>();
    if (kernel == 1) return rate<Brgemm<BFloat16>>();
    return &cblas_gemm_bf16bf16f32 ? rate<BlasBf16>() : 0.0;
  } catch (const std::exception&) {
    return 0.0;
  }
}

// `decode` asks for the path of few query rows. Returns 0, or 1 with the reason in `error`.
int64_t antiphase_forward(const Call* call, int64_t decode, char* error, int64_t size) {
  return guarded(error, size, [&] {
    with_types(*call, [&](auto number, auto gemm) {
      using N = decltype(number);
      if (decode) Decode<N>(*call).run();
      else Forward<N, decltype(gemm)>(*call).run();
    });
  });
}

int64_t antiphase_backward(const Call* call, char* error, int64_t size) {
  return guarded(error, size, [&] {
    with_types(*call, [&](auto number, auto gemm) {
      Backward<decltype(number), decltype(gemm)>(*call).run();
    });
  });
}
}
