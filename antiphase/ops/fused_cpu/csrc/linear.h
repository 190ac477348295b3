// y = x W^T + bias for few rows x. Reading W takes the time, so W is read once, in four streams.

#pragma once

#include "abi.h"
#include "packing.h"
#include "parallel.h"
#include "vec.h"

namespace antiphase {

constexpr int64_t kMaxLinearRows = 4;
constexpr int64_t kStreams = 4;
constexpr int64_t kPrefetchBytes = 512;          // ahead in each stream
constexpr int64_t kElementsPerThread = 1 << 17;  // of W: fewer are not worth starting a thread

// Rows of y are M apart, x [R, K] is in fp32. y[r, m] = x[r] . W[m] + bias[m] for `count` rows of W
// from `first`.
template <int R, class scalar_t>
void linear_slice(const float* x, const scalar_t* w, const scalar_t* bias, scalar_t* y, int64_t M,
                  int64_t K, int64_t first, int64_t count) {
  const int64_t step = count / kStreams;
  auto finish = [&](int64_t m, int r, float sum) {
    const float b = bias ? static_cast<float>(bias[m]) : 0.0f;
    y[r * M + m] = static_cast<scalar_t>(sum + b);
  };
  for (int64_t i = 0; i < step; i++) {
    Vec sums[R][kStreams];
    for (auto& row : sums) std::fill_n(row, kStreams, Vec(0.0f));
    const scalar_t* rows[kStreams];
    for (int s = 0; s < kStreams; s++) rows[s] = w + (first + s * step + i) * K;
    int64_t k = 0;
    for (; k + 2 * VL <= K; k += 2 * VL) {
      for (int s = 0; s < kStreams; s++) {
        const char* ahead = reinterpret_cast<const char*>(rows[s] + k) + kPrefetchBytes;
        for (size_t byte = 0; byte < 2 * VL * sizeof(scalar_t); byte += 64)
          __builtin_prefetch(ahead + byte);
        Vec a, b;
        load2(rows[s] + k, a, b);
        for (int r = 0; r < R; r++) {
          sums[r][s] = at::vec::fmadd(a, Vec::loadu(x + r * K + k), sums[r][s]);
          sums[r][s] = at::vec::fmadd(b, Vec::loadu(x + r * K + k + VL), sums[r][s]);
        }
      }
    }
    for (int r = 0; r < R; r++) {
      float totals[kStreams];
      sum_lanes_of_four(sums[r], totals);
      for (int s = 0; s < kStreams; s++) {
        for (int64_t j = k; j < K; j++) totals[s] += x[r * K + j] * static_cast<float>(rows[s][j]);
        finish(first + s * step + i, r, totals[s]);
      }
    }
  }
  for (int64_t m = first + kStreams * step; m < first + count; m++) {
    for (int r = 0; r < R; r++) {
      float sum = 0.0f;
      for (int64_t k = 0; k < K; k++) sum += x[r * K + k] * static_cast<float>(w[m * K + k]);
      finish(m, r, sum);
    }
  }
}

// x [rows, K], w [M, K], bias [M] or null, y [rows, M], all contiguous.
template <class scalar_t>
void linear(const scalar_t* x, const scalar_t* w, const scalar_t* bias, scalar_t* y, int64_t rows,
            int64_t M, int64_t K) {
  Buffer<float> wide(rows * K);
  convert_row(x, wide.get(), rows * K);
  const int64_t most = std::max<int64_t>(1, M * K / kElementsPerThread);
  const int64_t parts = std::min<int64_t>(at::get_num_threads(), most);
  const int64_t size = round_up((M + parts - 1) / parts, kStreams);
  parallel_items<int>(parts, [] { return 0; }, [&](int, int64_t part) {
    const int64_t first = part * size, count = std::min(size, M - first);
    if (count <= 0) return;
    if (rows == 1) linear_slice<1>(wide.get(), w, bias, y, M, K, first, count);
    if (rows == 2) linear_slice<2>(wide.get(), w, bias, y, M, K, first, count);
    if (rows == 3) linear_slice<3>(wide.get(), w, bias, y, M, K, first, count);
    if (rows == 4) linear_slice<4>(wide.get(), w, bias, y, M, K, first, count);
  });
}

}  // namespace antiphase
