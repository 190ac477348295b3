// Three matrix-product micro-kernels with one interface. On each machine, the fastest one is used.
// nt: C[M,N] = A[M,K] . B^T, with B packed by pack_keys: transposed, or rows of keys as they are
// nn: C[M,N] (+)= A[M,K] . B, with B packed by pack_rows
// kVnni: B has the VNNI layout, in which two neighbouring rows share 32-bit words.

#pragma once

#include <ATen/native/CPUBlas.h>

#include "vec.h"

// Some BLAS libraries have a bf16 product with fp32 accumulation; without it, the address is null.
extern "C" __attribute__((weak)) void cblas_gemm_bf16bf16f32(int layout, int trans_a, int trans_b,
                                                             int m, int n, int k, float alpha,
                                                             const void* a, int lda, const void* b,
                                                             int ldb, float beta, float* c,
                                                             int ldc);

namespace antiphase {

template <class scalar_t>
struct Brgemm {
  using operand_t = scalar_t;
  static constexpr bool kVnni = sizeof(scalar_t) == 2;
  static constexpr bool kKeysTransposed = true;
  static constexpr int64_t kTile = sizeof(scalar_t) == 2 ? 256 : 128;
  static void nt(int64_t M, int64_t N, int64_t K, const operand_t* A, int64_t lda,
                 const operand_t* B, int64_t ldb, float* C) {
    at::native::cpublas::brgemm(M, N, K, lda, ldb, kTile, false, A, B, C, kVnni);
  }
  static void nn(int64_t M, int64_t N, int64_t K, const operand_t* A, int64_t lda,
                 const operand_t* B, int64_t ldb, float* C, int64_t ldc, bool add) {
    at::native::cpublas::brgemm(M, N, K, lda, ldb, ldc, add, A, B, C, kVnni);
  }
  static void release() { at::native::cpublas::brgemm_release(kVnni); }
};

struct BlasBf16 {
  using operand_t = BFloat16;
  static constexpr bool kVnni = false;
  static constexpr bool kKeysTransposed = false;  // the BLAS transposes
  static constexpr int64_t kTile = 256;
  static constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;
  static void nt(int64_t M, int64_t N, int64_t K, const operand_t* A, int64_t lda,
                 const operand_t* B, int64_t ldb, float* C) {
    cblas_gemm_bf16bf16f32(kRowMajor, kPlain, kTransposed, M, N, K, 1.0f, A, lda, B, ldb, 0.0f, C,
                           kTile);
  }
  static void nn(int64_t M, int64_t N, int64_t K, const operand_t* A, int64_t lda,
                 const operand_t* B, int64_t ldb, float* C, int64_t ldc, bool add) {
    cblas_gemm_bf16bf16f32(kRowMajor, kPlain, kPlain, M, N, K, 1.0f, A, lda, B, ldb, add, C, ldc);
  }
  static void release() {}
};

// Micro-kernels may hold hardware state (AMX tiles); a workspace releases it at its end.
template <class Gemm>
struct ReleaseGuard {
  ~ReleaseGuard() { Gemm::release(); }
};

}  // namespace antiphase
