// Few query rows against a long cache: memory sets the pace, so keys and values are read once,
// where they lie, by every query row that needs them.

#pragma once

#include "abi.h"
#include "packing.h"
#include "parallel.h"

namespace antiphase {

template <class N>
struct Decode {
  static constexpr int64_t kStep = 4;    // keys or values taken together
  static constexpr int64_t kAhead = 16;  // rows between reading one and asking for another
  const Call& c;
  const Sizes z;
  const int64_t rows;    // query rows that share a key head
  const int64_t stride;  // of a row of scores

  explicit Decode(const Call& call)
      : c(call), z(call, kGrain), rows(z.group * c.Tq), stride(round_up(c.Tk, kGrain)) {}

  struct Worker {
    Buffer<float> q;       // the query rows of both maps, later the output's sums
    Buffer<float> scores;  // [map, row, key] of one key head
  };

  int64_t scores_size() const { return z.maps * rows * stride; }
  float* score_row(float* scores, int map, int64_t r) const {
    return scores + (map * rows + r) * stride;
  }
  int64_t keys_of(int64_t r) const {
    return c.causal ? std::clamp<int64_t>(r % c.Tq + 1 + c.Tk - c.Tq, 0, c.Tk) : c.Tk;
  }

  void run() {
    const int64_t total = c.B * c.Hkv, threads = at::get_num_threads();
    const int64_t q_size = rows * std::max(c.d1 + c.d2, c.dv);
    if (total >= threads) {
      share<Worker>(
          total, [&] { return Worker{Buffer<float>(q_size), Buffer<float>(scores_size())}; },
          [&](Worker& w, int64_t g) {
            float* scores = w.scores.get();
            score(w, scores, g, 0, c.Tk);
            for (int64_t r = 0; r < rows; r++) normalise(scores, g, r);
            gather(w, scores, g, 0, c.dv);
          });
      return;
    }
    // Fewer heads than threads: a head's keys, rows and channels are shared out in turn.
    const int64_t parts = (threads + total - 1) / total;
    const int64_t keys = (c.Tk + parts - 1) / parts;
    const int64_t width = round_up((c.dv + parts - 1) / parts, 2 * VL);
    const Buffer<float> all(total * scores_size());
    auto make = [&] { return Worker{Buffer<float>(q_size), Buffer<float>()}; };
    auto scores = [&](int64_t g) { return all.get() + g * scores_size(); };
    share<Worker>(total * parts, make, [&](Worker& w, int64_t i) {
      const int64_t g = i / parts, first = i % parts * keys;
      score(w, scores(g), g, std::min(first, c.Tk), std::min(first + keys, c.Tk));
    });
    share<Worker>(total * rows, make, [&](Worker&, int64_t i) {
      normalise(scores(i / rows), i / rows, i % rows);
    });
    share<Worker>(total * parts, make, [&](Worker& w, int64_t i) {
      const int64_t g = i / parts, first = i % parts * width;
      gather(w, scores(g), g, std::min(first, c.dv), std::min(first + width, c.dv));
    });
  }

  // Scores of keys from..to for every query row; keys that both maps share are read once.
  void score(Worker& w, float* scores, int64_t g, int64_t from, int64_t to) {
    const int64_t b = g / c.Hkv, hk = g % c.Hkv;
    for (int map = 0; map < z.maps; map++) {
      const View& q = map ? c.q2 : c.q1;
      const int64_t d = map ? c.d2 : c.d1;
      for (int64_t r = 0; r < rows; r++)
        lanes_row(at_row<N>(q, b, hk * z.group + r / c.Tq, r % c.Tq), queries(w, map) + r * d, d);
    }
    if (z.maps == 2 && same_keys(c)) return score_maps(w, scores, g, from, to, 0, 2);
    for (int map = 0; map < z.maps; map++)
      score_maps(w, scores, g, from, to, map, map + 1);
  }

  float* queries(Worker& w, int map) const { return w.q.get() + (map ? rows * c.d1 : 0); }

  void score_maps(Worker& w, float* scores, int64_t g, int64_t from, int64_t to, int first,
                  int last) {
    const View& k = first ? c.k2 : c.k1;
    const int64_t d = first ? c.d2 : c.d1;
    for (int64_t j = from; j < to; j += kStep) {
      const N* key[kStep];
      for (int64_t i = 0; i < kStep; i++) {
        key[i] = at_row<N>(k, g / c.Hkv, g % c.Hkv, std::min(j + i, to - 1));
        fetch(key[i] + kAhead * k.row, d);
      }
      for (int map = first; map < last; map++) {
        for (int64_t r = 0; r < rows; r++) {
          float s[kStep];
          dots(key, queries(w, map) + r * d, d, s);
          std::copy_n(s, std::min(kStep, to - j), score_row(scores, map, r) + j);
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
  void normalise(float* scores, int64_t g, int64_t r) {
    const int64_t b = g / c.Hkv, h = g % c.Hkv * z.group + r / c.Tq, i = r % c.Tq, n = keys_of(r);
    float factor[2] = {0.0f, 0.0f};
    for (int map = 0; map < z.maps; map++) {
      const float scale = static_cast<float>(map ? c.scale2 : c.scale1) * kLog2e;
      const float sink = c.sink.data ? *at_row<float>(c.sink, 0, h, 0) * kLog2e : -kInf;
      float* s = score_row(scores, map, r);
      const float m = std::max(n ? row_max(s, n, scale) : -kInf, sink);
      float l = sum_lanes(row_exp2<false>(s, s, n, stride, scale, m));
      if (c.sink.data) l += std::exp2(sink - m);
      factor[map] = n ? 1.0f / l : 0.0f;
      *at_row<float>(map ? c.lse2 : c.lse1, b, h, i) = m + std::log2(l);
    }
    float *a = score_row(scores, 0, r), *e2 = z.maps == 2 ? score_row(scores, 1, r) : a;
    const float lam = z.maps == 2 ? *at_row<float>(c.lam, b, h, i) : 0.0f;
    const Vec f1(factor[0]), f2(z.maps == 2 ? -lam * factor[1] : 0.0f);
    for (int64_t j = 0; j < stride; j += VL)
      at::vec::fmadd(Vec::loadu(e2 + j), f2, Vec::loadu(a + j) * f1).store(a + j);
  }

  // Channels from..to of the output: a few values a step, so that the sums are touched seldom.
  void gather(Worker& w, float* scores, int64_t g, int64_t from, int64_t to) {
    const int64_t b = g / c.Hkv, hk = g % c.Hkv, n = to - from;
    std::fill_n(w.q.get(), rows * n, 0.0f);
    for (int64_t j = 0; j < c.Tk; j += kStep) {
      const N* v[kStep];
      for (int64_t k = 0; k < kStep; k++) {
        v[k] = at_row<N>(c.v, b, hk, std::min(j + k, c.Tk - 1)) + from;
        fetch(v[k] + kAhead * c.v.row, n);
      }
      for (int64_t r = 0; r < rows; r++) {
        const float* a = score_row(scores, 0, r) + j;  // zero after the last key
        float* sum = w.q.get() + r * n;
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
        load2(w.q.get() + r * n + i, s0, s1), store_map(out + i, s0, s1);
      for (; i < n; i++) out[i] = static_cast<N>(w.q.get()[r * n + i]);
    }
  }
};

}  // namespace antiphase
