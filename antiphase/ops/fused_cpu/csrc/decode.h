// Decode: few query rows and a long KV cache. Memory bandwidth limits it, so keys and values are
// read in place and once, for all query rows of a group.

#pragma once

#include "parallel.h"
#include "scores.h"

namespace antiphase {

template <class scalar_t>
struct Decode {
  static constexpr int64_t kStep = 4;           // keys or values processed together
  static constexpr int64_t kPrefetchRows = 16;  // prefetch distance
  const KernelArguments& args;
  const Sizes sizes;
  const Map map_of[2];
  const Mask mask;
  const Dropout dropout;
  const int64_t rows;    // query rows that share a key/value head
  const int64_t stride;  // of a row of scores

  explicit Decode(const KernelArguments& args)
      : args(args),
        sizes(args, kKeyAlign),
        map_of{{args, 0}, {args, 1}},
        mask(args),
        dropout(args),
        rows(sizes.group * args.Tq),
        stride(most_columns()) {}

  // The keys that some row attends to, apart from the mask: those kept beside a window, then the
  // others. Scores are stored for them alone: kept keys are columns 0..first_column.
  struct Keys {
    int64_t kept, first, last, first_column;
    int64_t columns() const { return first_column + last - first; }
    int64_t column(int64_t key) const {
      return key >= first ? first_column + key - first : key - kept;
    }
  };
  Keys keys_of(int64_t b) const {
    const RowKeys top = keys_of_row(args, b, 0), bottom = keys_of_row(args, b, args.Tq - 1);
    return {top.kept, top.first, std::max(top.first, bottom.last),
            std::min(top.kept_last, top.first) - top.kept};
  }
  int64_t most_columns() const {
    int64_t most = 1;
    for (int64_t b = 0; b < (args.documents.data ? args.B : 1); b++)
      most = std::max(most, keys_of(b).columns());
    return round_up(most, kKeyAlign);
  }

  struct Workspace {
    Buffer<float> q;       // the query rows of both maps, later the sums of the output
    Buffer<float> scores;  // [map, row, key] of one key/value head
    Buffer<float> bias;    // of one row
  };

  struct Range {  // of keys, and the column of the first
    int64_t column, key, count;
  };

  int64_t scores_size() const { return sizes.maps * rows * stride; }
  float* score_row(float* scores, int map, int64_t r) const {
    return scores + (map * rows + r) * stride;
  }

  void run() {
    const int64_t total = args.B * args.Hkv, threads = at::get_num_threads();
    const int64_t q_size = rows * std::max(args.d1 + args.d2, args.dv);
    const int64_t bias_size = mask.given() ? stride : 0;
    if (total >= threads) {
      parallel_items<Workspace>(
          total,
          [&] {
            return Workspace{Buffer<float>(q_size), Buffer<float>(scores_size()),
                             Buffer<float>(bias_size)};
          },
          [&](Workspace& ws, int64_t kv) {
            float* scores = ws.scores.get();
            const Keys keys = keys_of(kv / args.Hkv);
            compute_scores(ws, scores, kv, keys, keys.kept, keys.kept + keys.first_column);
            compute_scores(ws, scores, kv, keys, keys.first, keys.last);
            for (int64_t r = 0; r < rows; r++) combine_row(ws, scores, kv, r);
            apply_to_values(ws, scores, kv, 0, args.dv);
          });
      return;
    }
    // Fewer heads than threads: the threads split a head's keys, then its rows, then its channels.
    const int64_t parts = (threads + total - 1) / total;
    const int64_t width = round_up((args.dv + parts - 1) / parts, 2 * VL);
    const Buffer<float> all(total * scores_size());
    auto make_workspace = [&] {
      return Workspace{Buffer<float>(q_size), Buffer<float>(), Buffer<float>(bias_size)};
    };
    auto scores = [&](int64_t kv) { return all.get() + kv * scores_size(); };
    parallel_items<Workspace>(total * parts, make_workspace, [&](Workspace& ws, int64_t i) {
      const int64_t kv = i / parts, part = i % parts;
      const Keys keys = keys_of(kv / args.Hkv);
      if (part == 0)
        compute_scores(ws, scores(kv), kv, keys, keys.kept, keys.kept + keys.first_column);
      const int64_t each = (keys.last - keys.first + parts - 1) / parts,
                    first = keys.first + part * each;
      compute_scores(ws, scores(kv), kv, keys, first, std::min(first + each, keys.last));
    });
    parallel_items<Workspace>(total * rows, make_workspace, [&](Workspace& ws, int64_t i) {
      combine_row(ws, scores(i / rows), i / rows, i % rows);
    });
    parallel_items<Workspace>(total * parts, make_workspace, [&](Workspace& ws, int64_t i) {
      const int64_t kv = i / parts, first = i % parts * width;
      apply_to_values(ws, scores(kv), kv, std::min(first, args.dv),
                      std::min(first + width, args.dv));
    });
  }

  // Products of keys from..to with every query row; keys that both maps share are read once. A
  // key's two maps often lie side by side: they are prefetched in the order of memory.
  void compute_scores(Workspace& ws, float* scores, int64_t kv, const Keys& keys, int64_t from,
                      int64_t to) const {
    if (from >= to) return;
    const int64_t b = kv / args.Hkv, h_kv = kv % args.Hkv;
    for (int map = 0; map < sizes.maps; map++) {
      const int64_t d = map_of[map].d;
      for (int64_t r = 0; r < rows; r++)
        load_query(map_of[map].template queries<scalar_t>(b, h_kv * sizes.group + r / args.Tq,
                                                          r % args.Tq),
                   queries(ws, map) + r * d, d);
    }
    scores += keys.column(from) - from;
    const int key_maps = args.shared_keys ? 1 : sizes.maps;
    for (int64_t j = from; j < to; j += kStep) {
      const scalar_t* key[2][kStep];
      for (int64_t i = 0; i < kStep; i++)
        for (int map = 0; map < key_maps; map++) {
          const Map& m = map_of[map];
          key[map][i] = m.template keys<scalar_t>(b, h_kv, std::min(j + i, to - 1));
          prefetch_row(key[map][i] + kPrefetchRows * m.k.row, m.d);
        }
      for (int map = 0; map < sizes.maps; map++)
        for (int64_t r = 0; r < rows; r++) {
          float s[kStep];
          dot_products(key[std::min(map, key_maps - 1)],
                       queries(ws, map) + r * map_of[map].d, map_of[map].d, s);
          std::copy_n(s, std::min(kStep, to - j), score_row(scores, map, r) + j);
        }
    }
  }

  float* queries(const Workspace& ws, int map) const {
    return ws.q.get() + (map ? rows * args.d1 : 0);
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
    static_assert(kStep == 4);
    sum_lanes_of_four(sums, to);
    for (; i < n; i++)
      for (int64_t k = 0; k < kStep; k++) to[k] += static_cast<float>(x[k][i]) * y[i];
  }

  // Turn the products of one row into its row of the combined map, stored over the signal map's.
  // It is zero wherever the row does not attend.
  void combine_row(Workspace& ws, float* scores, int64_t kv, int64_t r) const {
    const int64_t b = kv / args.Hkv, h = kv % args.Hkv * sizes.group + r / args.Tq, i = r % args.Tq;
    const Keys columns = keys_of(b);
    const RowKeys keys = keys_of_row(args, b, i);
    const Range ranges[2] = {{columns.column(keys.kept), keys.kept, keys.kept_last - keys.kept},
                             {columns.column(keys.first), keys.first, keys.last - keys.first}};
    float weight[2] = {0.0f, 0.0f};
    bool seen = keys.any();
    for (int map = 0; map < sizes.maps; map++) {
      const Map& info = map_of[map];
      const float c = info.scale * kLog2e;
      const float sink = args.sink.data ? *at_row<float>(args.sink, 0, h, 0) / info.scale : -kInf;
      float *s = score_row(scores, map, r), m = sink, l = 0.0f;
      if (mask.given()) seen = false;
      for (const Range& range : ranges) {
        if (args.softcap) cap(s + range.column, range.count, info.scale);
        if (mask.given()) seen |= add_mask(ws, s + range.column, range, b, h, i, info.scale);
        m = std::max(m, row_max(s + range.column, 0, range.count));
      }
      for (const Range& range : ranges)
        if (m != -kInf)
          l += exponentiate(s + range.column, range.count, c, m);
        else
          std::fill_n(s + range.column, range.count, 0.0f);  // only -inf
      if (sink > -kInf) l += std::exp2((sink - m) * c);
      const float inverse = seen ? 1.0f / l : 0.0f;
      weight[map] = map ? -*at_row<float>(args.lam, b, h, i) * inverse : inverse;
      *at_row<float>(info.max, b, h, i) = seen ? m : 0.0f;
      *at_row<float>(info.inverse, b, h, i) = inverse;
    }
    float* a = score_row(scores, 0, r);
    int64_t next = 0;  // the first column that is not final
    for (const Range& range : ranges) {
      if (!range.count || !seen) continue;
      std::fill(a + next, a + range.column, 0.0f);
      combine_range(a, sizes.maps == 2 ? score_row(scores, 1, r) : nullptr, weight, range,
                    dropout.row(b, h, i));
      next = range.column + range.count;
    }
    std::fill(a + next, a + stride, 0.0f);
  }

  // s = 2^(c (s - m)) for n scores; returns the sum.
  static float exponentiate(float* s, int64_t n, float c, float m) {
    Vec sum(0.0f);
    with_exponential<float>(c, m, [&](const auto& f) {
      int64_t j = 0;
      for (; j + VL <= n; j += VL) {
        const Vec e = f(Vec::loadu(s + j));
        sum = sum + e, e.store(s + j);
      }
      if (j < n) {
        const Vec e = f(Vec::loadu(s + j, n - j));
        sum = sum + lanes_between(e, 0, n - j), e.store(s + j, n - j);
      }
    });
    return sum_lanes(sum);
  }

  void combine_range(float* a, const float* e2, const float* weight, const Range& range,
                     uint32_t dropout_row) const {
    const Vec f1(weight[0]), f2(weight[1]);
    for (int64_t j = 0; j < range.count; j += VL) {
      const int64_t n = std::min(VL, range.count - j), at = range.column + j;
      Vec x = Vec::loadu(a + at, n) * f1;
      if (e2) x = at::vec::fmadd(Vec::loadu(e2 + at, n), f2, x);
      if (dropout) x = x * dropout.factors(dropout_row, range.key + j);
      x.store(a + at, n);
    }
  }

  void cap(float* s, int64_t count, float scale) const {
    const auto softcap = static_cast<float>(args.softcap);
    const Vec in(scale / softcap), out(softcap / scale);
    for (int64_t j = 0; j < count; j += VL) {
      const int64_t n = std::min(VL, count - j);
      ((Vec::loadu(s + j, n) * in).tanh() * out).store(s + j, n);
    }
  }

  // Add the mask to the scores of a row; returns whether the row attends to one of these keys.
  bool add_mask(Workspace& ws, float* s, const Range& range, int64_t b, int64_t h, int64_t i,
                float scale) const {
    if (!range.count) return false;
    const bool seen = mask.bias(b, h, i, range.key, range.count, scale, ws.bias.get());
    for (int64_t j = 0; j < range.count; j++) s[j] += ws.bias.get()[j];
    return seen;
  }

  // Channels from..to of the output, kStep values at a time: the sums are loaded and stored less
  // often.
  void apply_to_values(Workspace& ws, float* scores, int64_t kv, int64_t from, int64_t to) const {
    const int64_t b = kv / args.Hkv, h_kv = kv % args.Hkv, n = to - from;
    const Keys keys = keys_of(b);
    std::fill_n(ws.q.get(), rows * n, 0.0f);
    add_values(ws, scores - keys.kept, kv, from, n, keys.kept, keys.kept + keys.first_column);
    add_values(ws, scores + keys.first_column - keys.first, kv, from, n, keys.first, keys.last);
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

  // Add the values of keys first..last, channels from..from + n, to the sums.
  void add_values(Workspace& ws, float* scores, int64_t kv, int64_t from, int64_t n, int64_t first,
                  int64_t last) const {
    for (int64_t j = first; j < last; j += kStep) {
      const scalar_t* v[kStep];
      const int64_t count = std::min(kStep, last - j);
      for (int64_t k = 0; k < kStep; k++) {
        v[k] = at_row<scalar_t>(args.v, kv / args.Hkv, kv % args.Hkv, j + std::min(k, count - 1)) +
               from;
        prefetch_row(v[k] + kPrefetchRows * args.v.row, n);
      }
      if (count == kStep)
        add_rows<kStep>(ws, scores, v, j, n);
      else
        for (int64_t k = 0; k < count; k++) add_rows<1>(ws, scores, v + k, j + k, n);
    }
  }

  template <int kRows>
  void add_rows(Workspace& ws, float* scores, const scalar_t* const* v, int64_t j,
                int64_t n) const {
    for (int64_t r = 0; r < rows; r++) {
      const float* a = score_row(scores, 0, r) + j;
      float* sum = ws.q.get() + r * n;
      Vec s0, s1, v0, v1;
      int64_t i = 0;
      for (; i + 2 * VL <= n; i += 2 * VL) {
        load2(sum + i, s0, s1);
        for (int64_t k = 0; k < kRows; k++) {
          load_map(v[k] + i, v0, v1);
          s0 = at::vec::fmadd(v0, Vec(a[k]), s0), s1 = at::vec::fmadd(v1, Vec(a[k]), s1);
        }
        store2(sum + i, s0, s1);
      }
      for (; i < n; i++)
        for (int64_t k = 0; k < kRows; k++) sum[i] += a[k] * static_cast<float>(v[k][i]);
    }
  }
};

}  // namespace antiphase
