// Fused differential attention on a CPU: O = (softmax(q1 k1^T) - lam softmax(q2 k2^T)) V.
//
// For a block of query rows, the scores of all keys are computed, both softmaxes are normalised
// exactly, and only their difference is applied to V. That is the arithmetic of standard attention
// with the same parameters: two score products and one (wide) value product. The backward pass
// recomputes both maps from the saved row log-sum-exp and needs five products of the same kind.
//
// This file is the C interface that Python calls through ctypes. Reading order: vec.h, gemm.h,
// packing.h, abi.h, visible.h, scores.h, parallel.h, then forward.h, backward.h, decode.h
// and linear.h.
//
// Names: scalar_t is the type of the tensors, operand_t that of the matrix operands, Gemm the
// micro-kernel. A tile is Gemm::kTile keys. A packed operand is the right side of a product in its
// micro-kernel's layout. A score s is the product before `scale`: exp(scale (s - m)) is
// exp2(c (s - m)) with c = scale log2(e).

#include <chrono>
#include <cstdio>
#include <exception>
#include <utility>

#include "backward.h"
#include "decode.h"
#include "forward.h"
#include "linear.h"

namespace antiphase {

// Call body(scalar, gemm) with values of the types that the arguments name.
template <class Body>
void dispatch_types(const KernelArguments& args, const Body& body) {
  if (args.dtype == 0) return body(float(), Brgemm<float>());
  if (args.dtype == 2) return body(Half(), Brgemm<float>());
  if (args.kernel == 1) return body(BFloat16(), Brgemm<BFloat16>());
  if (args.kernel == 2) return body(BFloat16(), BlasBf16());
  body(BFloat16(), Brgemm<float>());
}

// Run body(); return 0, or 1 with the exception's message in `error`.
template <class Body>
int64_t catch_errors(char* error, int64_t size, const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& e) {
    std::snprintf(error, size, "%s", e.what());
    return 1;
  }
}

// GFLOP/s of the two products of a forward tile on one thread.
template <class Gemm>
double rate() {
  using operand_t = typename Gemm::operand_t;
  constexpr int64_t R = 64, d = 64, dv = 128, repeats = 40, kTile = Gemm::kTile;
  Buffer<operand_t> q(R * d), k(kTile * d), a(R * kTile), v(kTile * dv);
  Buffer<float> s(R * kTile), o(R * dv);
  for (auto [p, n] : {std::pair{q.get(), R * d},
                      {k.get(), kTile * d},
                      {a.get(), R * kTile},
                      {v.get(), kTile * dv}})
    std::fill_n(p, n, static_cast<operand_t>(0.5f));
  double best = 0;
  for (int round = 0; round < 5; round++) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < repeats; i++) {
      Gemm::nt(R, kTile, d, q.get(), d, k.get(), Gemm::kKeysTransposed ? kTile : d, s.get());
      Gemm::nn(R, dv, kTile, a.get(), kTile, v.get(), dv, o.get(), dv, true);
    }
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    best = std::max(best, repeats * 2.0 * R * kTile * (d + dv) / spent.count() * 1e-9);
  }
  Gemm::release();
  return best;
}

}  // namespace antiphase

using namespace antiphase;

#pragma GCC visibility push(default)
extern "C" {

int64_t antiphase_arguments_size() { return sizeof(KernelArguments); }

// Rate of a micro-kernel in GFLOP/s, 0 where it is not available.
double antiphase_rate(int64_t kernel) {
  try {
    if (kernel == 0) return rate<Brgemm<float>>();
    if (kernel == 1) return rate<Brgemm<BFloat16>>();
    return &cblas_gemm_bf16bf16f32 ? rate<BlasBf16>() : 0.0;
  } catch (const std::exception&) {
    return 0.0;
  }
}

// Both return 0, or 1 with the reason in `error`. `decode` selects the path for few query rows.
int64_t antiphase_forward(const KernelArguments* args, int64_t decode, char* error, int64_t size) {
  return catch_errors(error, size, [&] {
    dispatch_types(*args, [&](auto scalar, auto gemm) {
      using scalar_t = decltype(scalar);
      if (decode)
        Decode<scalar_t>(*args).run();
      else
        Forward<scalar_t, decltype(gemm)>(*args).run();
    });
  });
}

int64_t antiphase_backward(const KernelArguments* args, char* error, int64_t size) {
  return catch_errors(error, size, [&] {
    dispatch_types(*args, [&](auto scalar, auto gemm) {
      Backward<decltype(scalar), decltype(gemm)>(*args).run();
    });
  });
}

// y = x W^T + bias in the type `dtype`; the tensors of linear.h. Returns as the functions above.
int64_t antiphase_linear(const void* x, const void* w, const void* bias, void* y, int64_t dtype,
                         int64_t rows, int64_t M, int64_t K, char* error, int64_t size) {
  return catch_errors(error, size, [&] {
    auto run = [&](auto scalar) {
      using T = decltype(scalar);
      linear(static_cast<const T*>(x), static_cast<const T*>(w), static_cast<const T*>(bias),
             static_cast<T*>(y), rows, M, K);
    };
    if (dtype == 0) return run(float());
    if (dtype == 1) return run(BFloat16());
    run(Half());
  });
}
}
#pragma GCC visibility pop
