// Operands of the matrix products: buffers, transposes, and the layouts that micro-kernels need.

#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "gemm.h"

namespace antiphase {

template <class scalar_t>
class Buffer {  // aligned, uninitialised
 public:
  explicit Buffer(int64_t n = 0) { resize(n); }
  void resize(int64_t n) {
    const size_t bytes = round_up(std::max<int64_t>(n, 1) * sizeof(scalar_t), 64);
    data_.reset(static_cast<scalar_t*>(std::aligned_alloc(64, bytes)));
    if (!data_) throw std::bad_alloc();
  }
  scalar_t* get() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<scalar_t, Free> data_;
};

// dst[j][i] = src[i][j] for 32-bit words of any content.
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

// Two rows into one row of 32-bit words, each with an element of both (the VNNI layout).
template <class operand_t>
void pack_vnni(const operand_t* a, const operand_t* b, operand_t* to, int64_t n) {
  const auto* low = reinterpret_cast<const uint16_t*>(a);
  const auto* high = reinterpret_cast<const uint16_t*>(b);
  auto* words = reinterpret_cast<uint32_t*>(to);
  for (int64_t i = 0; i < n; i++) words[i] = uint32_t{low[i]} | (uint32_t{high[i]} << 16);
}

// Copy rows[n][d] into to[padded][d] as operands, with zero rows after the n-th.
template <class scalar_t, class operand_t>
void copy_rows(const scalar_t* rows, int64_t stride, int64_t n, int64_t padded, int64_t d,
               operand_t* to) {
  for (int64_t i = 0; i < n; i++) convert_row(rows + i * stride, to + i * d, d);
  std::memset(to + n * d, 0, (padded - n) * d * sizeof(operand_t));
}

// Pack a tile rows[n][d] as the right operand (n x d) of nn, in the key order of a stored map.
template <class Gemm, class scalar_t>
void pack_rows(const scalar_t* rows, int64_t stride, int64_t n, int64_t padded, int64_t d,
               typename Gemm::operand_t* to, typename Gemm::operand_t* scratch) {
  using operand_t = typename Gemm::operand_t;
  if constexpr (sizeof(operand_t) == 4) return copy_rows(rows, stride, n, padded, d, to);
  copy_rows(rows, stride, n, padded, d, scratch);
  for (int64_t i = 0; i < padded; i += 2) {
    const operand_t *a = scratch + interleaved_key<operand_t>(i) * d,
                    *b = scratch + interleaved_key<operand_t>(i + 1) * d;
    if constexpr (Gemm::kVnni) {
      pack_vnni(a, b, to + i * d, d);
    } else {
      std::memcpy(to + i * d, a, d * sizeof(operand_t));
      std::memcpy(to + (i + 1) * d, b, d * sizeof(operand_t));
    }
  }
}

// Pack a tile rows[n][d] as the right operand of nt: its transpose (d x n), kTile wide.
template <class Gemm, class scalar_t>
void pack_keys(const scalar_t* rows, int64_t stride, int64_t n, int64_t padded, int64_t d,
               typename Gemm::operand_t* to, typename Gemm::operand_t* scratch) {
  using operand_t = typename Gemm::operand_t;
  if constexpr (!Gemm::kKeysTransposed) {
    copy_rows(rows, stride, n, padded, d, to);
  } else {
    copy_rows(rows, stride, n, padded, d, scratch);
    const int64_t words = d * sizeof(operand_t) / sizeof(float);
    transpose_words(reinterpret_cast<const float*>(scratch), words, reinterpret_cast<float*>(to),
                    Gemm::kTile, padded, words);
  }
}

// Transpose rows[n][d] into to[d][stride] as a left operand, with zeros for the padded rows. The
// scratch holds 2 * padded * d elements.
template <class scalar_t, class operand_t>
void transpose_rows(const scalar_t* rows, int64_t row_stride, int64_t n, int64_t padded, int64_t d,
                    operand_t* to, int64_t stride, float* scratch) {
  float *wide = scratch, *transposed = scratch + padded * d;
  copy_rows(rows, row_stride, n, padded, d, wide);
  transpose_words(wide, d, transposed, padded, padded, d);
  for (int64_t j = 0; j < d; j++) convert_row(transposed + j * padded, to + j * stride, padded);
}

}  // namespace antiphase
