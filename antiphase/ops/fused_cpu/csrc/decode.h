// Decode: few query rows and a long KV cache. Memory bandwidth limits it, so keys and values are
// read in place and once, for all query rows of a group.

#pragma once

#include "abi.h"
#include "packing.h"
#include "parallel.h"

namespace antiphase {

template <class scalar_t>
struct Decode {
  static constexpr int64_t kStep = 4;           // keys or values processed together
  static constexpr int64_t kPrefetchRows = 16;  // prefetch distance
  const KernelArguments& args;
  const Sizes sizes;
  const int64_t rows;    // query rows that share a key/value head
  const int64_t stride;  // of a row of scores

  explicit Decode(const KernelArguments& args)
      : args(args),
        sizes(args, kKeyAlign),
        rows(sizes.group * args.Tq),
        stride(round_up(args.Tk, kKeyAlign)) {}

  struct Workspace {
    Buffer<float> q;       // the query rows of both maps, later the sums of the output
    Buffer<float> scores;  // [map, row, key] of one key/value head
  };

  int64_t scores_size() const { return sizes.maps * rows * stride; }
  float* score_row(float* scores, int map, int64_t r) const {
    return scores + (map * rows + r) * stride;
  }
  int64_t keys_of(int64_t r) const {
    return args.causal ? std::clamp<int64_t>(r % args.Tq + 1 + args.Tk - args.Tq, 0, args.Tk)
                       : args.Tk;
  }

  void run() {
    const int64_t total = args.B * args.Hkv, threads = at::get_num_threads();
    const int64_t q_size = rows * std::max(args.d1 + args.d2, args.dv);
    if (total >= threads) {
      parallel_items<Workspace>(
          total, [&] { return Workspace{Buffer<float>(q_size), Buffer<float>(scores_size())}; },
          [&](Workspace& ws, int64_t kv) {
            float* scores = ws.scores.get();
            compute_scores(ws, scores, kv, 0, args.Tk);
            for (int64_t r = 0; r < rows; r++) combine_row(scores, kv, r);
            apply_to_values(ws, scores, kv, 0, args.dv);
          });
      return;
    }
    // Fewer heads than threads: the threads split a head's keys, then its rows, then its channels.
    const int64_t parts = (threads + total - 1) / total;
    const int64_t keys = (args.Tk + parts - 1) / parts;
    const int64_t width = round_up((args.dv + parts - 1) / parts, 2 * VL);
    const Buffer<float> all(total * scores_size());
    auto make_workspace = [&] { return Workspace{Buffer<float>(q_size), Buffer<float>()}; };
    auto scores = [&](int64_t kv) { return all.get() + kv * scores_size(); };
    parallel_items<Workspace>(total * parts, make_workspace, [&](Workspace& ws, int64_t i) {
      const int64_t kv = i / parts, first = i % parts * keys;
      compute_scores(ws, scores(kv), kv, std::min(first, args.Tk), std::min(first + keys, args.Tk));
    });
    parallel_items<Workspace>(total * rows, make_workspace, [&](Workspace&, int64_t i) {
      combine_row(scores(i / rows), i / rows, i % rows);
    });
    parallel_items<Workspace>(total * parts, make_workspace, [&](Workspace& ws, int64_t i) {
      const int64_t kv = i / parts, first = i % parts * width;
      apply_to_values(ws, scores(kv), kv, std::min(first, args.dv),
                      std::min(first + width, args.dv));
    });
  }

  // Scores of keys from..to for every query row; keys that both maps share are read once.
  void compute_scores(Workspace& ws, float* scores, int64_t kv, int64_t from, int64_t to) {
    const int64_t b = kv / args.Hkv, h_kv = kv % args.Hkv;
    for (int map = 0; map < sizes.maps; map++) {
      const TensorView& q = map ? args.q2 : args.q1;
      const int64_t d = map ? args.d2 : args.d1;
      for (int64_t r = 0; r < rows; r++)
        load_query(at_row<scalar_t>(q, b, h_kv * sizes.group + r / args.Tq, r % args.Tq),
                   queries(ws, map) + r * d, d);
    }
    if (sizes.maps == 2 && same_keys(args)) return score_maps(ws, scores, kv, from, to, 0, 2);
    for (int map = 0; map < sizes.maps; map++) score_maps(ws, scores, kv, from, to, map, map + 1);
  }

  float* queries(Workspace& ws, int map) const { return ws.q.get() + (map ? rows * args.d1 : 0); }

  void score_maps(Workspace& ws, float* scores, int64_t kv, int64_t from, int64_t to, int first,
                  int last) {
    const TensorView& k = first ? args.k2 : args.k1;
    const int64_t d = first ? args.d2 : args.d1;
    for (int64_t j = from; j < to; j += kStep) {
      const scalar_t* key[kStep];
      for (int64_t i = 0; i < kStep; i++) {
        key[i] = at_row<scalar_t>(k, kv / args.Hkv, kv % args.Hkv, std::min(j + i, to - 1));
        prefetch_row(key[i] + kPrefetchRows * k.row, d);
      }
      for (int map = first; map < last; map++) {
        for (int64_t r = 0; r < rows; r++) {
          float s[kStep];
          dot_products(key, queries(ws, map) + r * d, d, s);
          std::copy_n(s, std::min(kStep, to - j), score_row(scores, map, r) + j);
        }
      }
    }
  }

  // Prefetch a row; past the end this has no effect.
  static void prefetch_row(const scalar_t* row, int64_t n) {
    constexpr int64_t kLine = 64 / sizeof(scalar_t);
    for (int64_t i = 0; i < n; i += kLine) __builtin_prefetch(row + i);
  }

  // Convert a query row to fp32, in the lane order of load_map, which reads keys and values.
  static void load_query(const scalar_t* from, float* to, int64_t n) {
    int64_t i = 0;
    Vec a, b;
    for (; i + 2 * VL <= n; i += 2 * VL) load_map(from + i, a, b), store2(to + i, a, b);
    for (; i < n; i++) to[i] = static_cast<float>(from[i]);
  }

  // to[k] = x[k] . y for kStep rows x.
  static void dot_products(const scalar_t* const* x, const float* y, int64_t n, float* to) {
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

  // Turn the scores of one row into its row of the combined map, stored over the signal map's
  // scores.
  void combine_row(float* scores, int64_t kv, int64_t r) {
    const int64_t b = kv / args.Hkv, h = kv % args.Hkv * sizes.group + r / args.Tq, i = r % args.Tq,
                  n = keys_of(r);
    float factor[2] = {0.0f, 0.0f};
    for (int map = 0; map < sizes.maps; map++) {
      const float scale = static_cast<float>(map ? args.scale2 : args.scale1) * kLog2e;
      const float sink = args.sink.data ? *at_row<float>(args.sink, 0, h, 0) * kLog2e : -kInf;
      float* s = score_row(scores, map, r);
      const float m = std::max(n ? row_max(s, n, scale) : -kInf, sink);
      float l = sum_lanes(row_exp2<false>(s, s, n, stride, scale, m));
      if (args.sink.data) l += std::exp2(sink - m);
      factor[map] = n ? 1.0f / l : 0.0f;
      *at_row<float>(map ? args.lse2 : args.lse1, b, h, i) = m + std::log2(l);
    }
    float *a = score_row(scores, 0, r), *e2 = sizes.maps == 2 ? score_row(scores, 1, r) : a;
    const float lam = sizes.maps == 2 ? *at_row<float>(args.lam, b, h, i) : 0.0f;
    const Vec f1(factor[0]), f2(sizes.maps == 2 ? -lam * factor[1] : 0.0f);
    for (int64_t j = 0; j < stride; j += VL)
      at::vec::fmadd(Vec::loadu(e2 + j), f2, Vec::loadu(a + j) * f1).store(a + j);
  }

  // Channels from..to of the output, kStep values at a time: the sums are loaded and stored less
  // often.
  void apply_to_values(Workspace& ws, float* scores, int64_t kv, int64_t from, int64_t to) {
    const int64_t b = kv / args.Hkv, h_kv = kv % args.Hkv, n = to - from;
    std::fill_n(ws.q.get(), rows * n, 0.0f);
    for (int64_t j = 0; j < args.Tk; j += kStep) {
      const scalar_t* v[kStep];
      for (int64_t k = 0; k < kStep; k++) {
        v[k] = at_row<scalar_t>(args.v, b, h_kv, std::min(j + k, args.Tk - 1)) + from;
        prefetch_row(v[k] + kPrefetchRows * args.v.row, n);
      }
      for (int64_t r = 0; r < rows; r++) {
        const float* a = score_row(scores, 0, r) + j;  // zero after the last key
        float* sum = ws.q.get() + r * n;
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
      scalar_t* out =
          at_row<scalar_t>(args.out, b, h_kv * sizes.group + r / args.Tq, r % args.Tq) + from;
      Vec s0, s1;
      int64_t i = 0;
      for (; i + 2 * VL <= n; i += 2 * VL)
        load2(ws.q.get() + r * n + i, s0, s1), store_map(out + i, s0, s1);
      for (; i < n; i++) out[i] = static_cast<scalar_t>(ws.q.get()[r * n + i]);
    }
  }
};

}  // namespace antiphase
