// Operands of the products: buffers, transposes, and the layouts that micro-kernels want.

#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "gemm.h"

namespace antiphase {

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
  const auto* low = reinterpret_cast<const uint16_t*>(a);
  const auto* high = reinterpret_cast<const uint16_t*>(b);
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

}  // namespace antiphase
