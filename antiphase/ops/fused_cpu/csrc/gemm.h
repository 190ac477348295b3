// Three micro-kernels with one interface, of which the fastest on a machine is used.
// nt: C[M,N] = A[M,K] . B^T, B packed by pack_keys: transposed, or rows of keys as they are
// nn: C[M,N] (+)= A[M,K] . B, B packed by pack_rows
// kPaired: two neighbouring rows of B share 32 bits (what bf16 micro-kernels call VNNI).

#pragma once

#include <ATen/native/CPUBlas.h>

#include "vec.h"

// A BLAS may offer bf16 products with fp32 accumulation; where it does not, the address is null.
extern "C" __attribute__((weak)) void cblas_gemm_bf16bf16f32(
    int layout, int trans_a, int trans_b, int m, int n, int k, float alpha, const void* a, int lda,
    const void* b, int ldb, float beta, float* c, int ldc);

namespace antiphase {

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

// Micro-kernels may hold hardware state (matrix tiles); a worker gives it back when it ends.
template <class G>
struct Release {
  ~Release() { G::release(); }
};

}  // namespace antiphase
