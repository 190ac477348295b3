// Fused differential attention on a CPU: O = (softmax(q1 k1^T) - lam softmax(q2 k2^T)) V.
//
// A block of query rows is scored against every key it can see, both softmaxes are normalised
// exactly, and only their difference meets V. That is the arithmetic of standard attention with the
// same parameters: two score products, one (wide) value product. The backward pass recomputes the
// two maps from the saved row normalisers and needs five products of the same kind.
//
// This file is the C interface that Python calls by ctypes. Reading order: vec.h, gemm.h,
// packing.h, abi.h, share.h, then forward.h, backward.h and decode.h.
//
// Words: N = number type of the tensors; Op = number type of the matrix operands; G = micro-kernel;
// tile = G::kTile keys; a packed operand is the right side of a product, laid out as its
// micro-kernel wants it; scores live in base 2, so that exp(scale s - m) is exp2(c s - m').

#include <chrono>
#include <cstdio>
#include <exception>
#include <utility>

#include "backward.h"
#include "decode.h"
#include "forward.h"

namespace antiphase {

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

}  // namespace antiphase

using namespace antiphase;

#pragma GCC visibility push(default)
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
#pragma GCC visibility pop
