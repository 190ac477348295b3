// The forward pass. For a block of query rows, the scores of both maps are exponentiated span by
// span. When both row sums are known, the maps are combined and applied to V once.

#pragma once

#include "parallel.h"
#include "scores.h"

namespace antiphase {

template <class scalar_t, class Gemm>
struct Forward {
  using operand_t = typename Gemm::operand_t;
  static constexpr int64_t kTile = Gemm::kTile;
  static constexpr int64_t kTilesPerProduct = 2;  // of the combined map with V
  const KernelArguments& args;
  const Sizes sizes;
  const Map map_of[2];
  const Mask mask;
  const Dropout dropout;
  const Blocks blocks;
  const int64_t spans;  // at most, of a block
  int64_t heads = 0;    // key/value heads packed at a time
  const bool values_in_place;  // V already has the layout of the right operand: not packed
  Buffer<operand_t> keys[2], values;
  Buffer<float> norms[2];  // the largest squared norm of a key, per tile

  explicit Forward(const KernelArguments& args)
      : args(args),
        sizes(args, kTile),
        map_of{{args, 0}, {args, 1}},
        mask(args),
        dropout(args),
        blocks(args),
        spans(most_spans(args, blocks, kTile)),
        values_in_place(std::is_same_v<scalar_t, float> && args.v.row == args.dv &&
                        args.Tk % kKeyAlign == 0) {}

  struct Workspace {
    Scores scores;
    std::vector<Span> spans;
    Buffer<operand_t> q, e, a;  // queries, 2^(score - m) by span and map, combined map A
    Buffer<float> s, o, sums;   // scores of a span, the output, row sums per lane
    Buffer<float> m_span, m, weight;  // per map and row, see exponentiate()
    ReleaseGuard<Gemm> release;
  };

  int64_t rows_padded() const { return round_up(args.block_rows, kRowAlign); }

  Workspace make_workspace() const {
    const int64_t R = sizes.maps * rows_padded();
    return {Scores(args, mask),
            {},
            Buffer<operand_t>(R * sizes.d_max),
            Buffer<operand_t>(R * kTile * spans),
            Buffer<operand_t>(rows_padded() * kTilesPerProduct * kTile),
            Buffer<float>(R * kTile),
            Buffer<float>(rows_padded() * args.dv),
            Buffer<float>(R * VL),
            Buffer<float>(R * spans),
            Buffer<float>(R),
            Buffer<float>(R),
            {}};
  }

  // Keys and values are packed for a few heads at a time: enough work for all threads, little
  // memory.
  void run() {
    constexpr int64_t kItemsPerThread = 8;
    const int64_t total = args.B * args.Hkv, keys_padded = sizes.tiles * kTile;
    const int64_t width = args.d1 + (sizes.packed_maps == 2 ? args.d2 : 0) +
                          (values_in_place ? 0 : args.dv);
    const int64_t bytes = keys_padded * width * static_cast<int64_t>(sizeof(operand_t));
    const int64_t busy_heads =
        kItemsPerThread * at::get_num_threads() / (sizes.group * blocks.most()) + 1;
    heads = std::clamp<int64_t>(std::max(args.pack_bytes / bytes, busy_heads), 1, total);
    for (int map = 0; map < sizes.packed_maps; map++) {
      norms[map].resize(heads * sizes.tiles);
      if (Gemm::kKeysTransposed) keys[map].resize(heads * keys_padded * map_of[map].d);
    }
    if (!values_in_place) values.resize(heads * keys_padded * args.dv);
    for (int64_t kv0 = 0; kv0 < total; kv0 += heads) {
      const int64_t n = std::min(heads, total - kv0);
      parallel_items<Buffer<operand_t>>(
          n * sizes.tiles, [&] { return Buffer<operand_t>(kTile * sizes.d_max); },
          [&](Buffer<operand_t>& scratch, int64_t i) {
            pack(kv0, i / sizes.tiles, i % sizes.tiles, scratch);
          });
      // The longest rows first: with a causal mask they take the most time.
      parallel_items<Workspace>(
          n * sizes.group * blocks.most(), [&] { return make_workspace(); },
          [&](Workspace& ws, int64_t i) {
            const int64_t head = i % (n * sizes.group), local = head / sizes.group;
            const auto& list = blocks.of((kv0 + local) / args.Hkv);
            const int64_t block = static_cast<int64_t>(list.size()) - 1 - i / (n * sizes.group);
            if (block >= 0) compute_block(ws, kv0 + local, local, head % sizes.group, list[block]);
          });
    }
  }

  void pack(int64_t kv0, int64_t local, int64_t t, Buffer<operand_t>& scratch) {
    const KeyTile tile(args, kTile, kv0 + local, t);
    const int64_t at = (local * sizes.tiles + t) * kTile;
    for (int map = 0; map < sizes.packed_maps; map++) {
      const int64_t d = map_of[map].d, stride = map_of[map].k.row;
      const scalar_t* from = map_of[map].template keys<scalar_t>(tile.b, tile.h, tile.first);
      float norm = 0.0f;
      for (int64_t i = 0; i < tile.count; i++)
        norm = std::max(norm, square_norm(from + i * stride, d));
      norms[map].get()[local * sizes.tiles + t] = norm;
      if (Gemm::kKeysTransposed)
        pack_keys<Gemm>(from, stride, tile.count, tile.padded, d, keys[map].get() + at * d,
                        scratch.get());
    }
    if (!values_in_place)
      pack_rows<Gemm>(at_row<scalar_t>(args.v, tile.b, tile.h, tile.first), args.v.row, tile.count,
                      tile.padded, args.dv, values.get() + at * args.dv, scratch.get());
  }

  // The values of a key/value head as the right operand of nn.
  const operand_t* values_of(int64_t local, int64_t b, int64_t h) const {
    if constexpr (std::is_same_v<scalar_t, operand_t>)
      if (values_in_place) return at_row<scalar_t>(args.v, b, h / sizes.group, 0);
    return values.get() + local * sizes.tiles * kTile * args.dv;
  }

  // Whether no row maximum is needed: norms bound the exponents of every row and key of a block.
  // (With a NaN among the norms the answer is no, and the row becomes NaN.)
  bool scores_are_bounded(const Workspace& ws, int map, const RowBlock& rows, int64_t local,
                          int64_t b, int64_t h) const {
    const Map& m = map_of[map];
    float q_norm = 0.0f, k_norm = 0.0f;
    const operand_t* q = queries(ws, map, rows);
    for (int64_t r = 0; r < rows.count; r++)
      q_norm = std::max(q_norm, square_norm(q + r * m.d, m.d));
    const float* key_norms = norms[map % sizes.packed_maps].get() + local * sizes.tiles;
    for (const Span& span : ws.spans) k_norm = std::max(k_norm, key_norms[span.tile]);
    if (map)  // lam / sum must not overflow
      for (int64_t r = 0; r < rows.count; r++)
        if (!(std::abs(*at_row<float>(args.lam, b, h, rows.first + r)) < 1e15f)) return false;
    return std::sqrt(q_norm) * std::sqrt(k_norm) * m.scale * kLog2e <= kMaxSafeExponent;
  }

  operand_t* queries(const Workspace& ws, int map, const RowBlock& rows) const {
    return ws.q.get() + (map ? rows.padded * args.d1 : 0);
  }

  // The products of queries and the keys of a span, [map, row, column]. Maps that share their keys
  // are one product.
  void multiply(Workspace& ws, const Span& span, int64_t local, const RowBlock& rows, int64_t b,
                int64_t h) const {
    for (int map = 0; map < sizes.packed_maps; map++) {
      const Map& m = map_of[map];
      const int64_t M = rows.padded * sizes.maps / sizes.packed_maps;
      const operand_t* q = queries(ws, map, rows);
      float* s = ws.s.get() + map * rows.padded * kTile;
      if constexpr (Gemm::kKeysTransposed) {
        const operand_t* packed = keys[map].get() + (local * sizes.tiles + span.tile) * kTile * m.d;
        Gemm::nt(M, span.width, m.d, q, m.d, packed + span.from * (Gemm::kVnni ? 2 : 1), kTile, s);
      } else {
        const int64_t key = span.key(kTile), n = std::min(span.width, args.Tk - key);
        Gemm::nt(M, n, m.d, q, m.d, m.template keys<operand_t>(b, h / sizes.group, key), m.k.row,
                 s);
      }
    }
  }

  // Exponentiate the scores of one map in a span relative to the running row maximum m. Kept per
  // row: the maximum that each span used (m_span) and the final one (m).
  void exponentiate(Workspace& ws, int map, int64_t index, const Span& span, const RowBlock& rows,
                    bool bounded) const {
    const float c = map_of[map].scale * kLog2e;
    operand_t* e = exponentials(ws, map, index, rows);
    float *s = ws.s.get() + map * rows.padded * kTile, *m = per_row(ws.m, map),
          *m_span = per_row(ws.m_span, map * spans + index),
          *sums = ws.sums.get() + map * rows_padded() * VL;
    for (int64_t r = 0; r < rows.count; r++) {
      Columns columns = ws.scores.row(map, r, s + r * kTile);
      if (!bounded && columns.from < columns.to) {
        const float highest = row_max(s + r * kTile, columns.from, columns.to);
        if (highest > m[r]) {
          (Vec::loadu(sums + r * VL) * Vec(std::exp2((m[r] - highest) * c))).store(sums + r * VL);
          m[r] = highest;
        }
        if (m[r] == -kInf) columns.to = columns.from;  // only -inf so far
      }
      add_lanes(sums + r * VL, row_exp2(s + r * kTile, e + r * kTile, columns.from, columns.to,
                                        span.width, c, m[r]));
      m_span[r] = m[r];
    }
  }

  float* per_row(const Buffer<float>& buffer, int64_t i) const {
    return buffer.get() + i * rows_padded();
  }
  operand_t* exponentials(const Workspace& ws, int map, int64_t index, const RowBlock& rows) const {
    return ws.e.get() + (index * sizes.maps + map) * rows.padded * kTile;
  }

  // Store the statistics of one map; compute the weight of each row in the combined map: 1 / l for
  // the signal map, -lam / l for the noise map, l being the row sum. A row without keys has 0.
  void finish_rows(Workspace& ws, int map, const RowBlock& rows, int64_t b, int64_t h) const {
    const Map& info = map_of[map];
    const float c = info.scale * kLog2e, sink = sink_score(h);
    const float *m = per_row(ws.m, map), *sums = ws.sums.get() + map * rows_padded() * VL;
    for (int64_t r = 0; r < rows.count; r++) {
      float l = sum_lanes(Vec::loadu(sums + r * VL));
      if (sink > -kInf) l += std::exp2((sink - m[r]) * c);
      float inverse = ws.scores.seen(r) ? 1.0f / l : 0.0f;
      if (inverse != inverse) inverse = std::numeric_limits<float>::quiet_NaN();  // no payload
      const int64_t i = rows.first + r;
      *at_row<float>(info.max, b, h, i) = ws.scores.seen(r) ? m[r] : 0.0f;
      *at_row<float>(info.inverse, b, h, i) = inverse;
      per_row(ws.weight, map)[r] = map ? -*at_row<float>(args.lam, b, h, i) * inverse : inverse;
    }
  }

  // The sink's logit in units of the scores.
  float sink_score(int64_t h) const {
    return args.sink.data ? *at_row<float>(args.sink, 0, h, 0) / map_of[0].scale : -kInf;
  }

  // The output of one block of query rows of one head; `local` is its key/value head among those
  // packed.
  void compute_block(Workspace& ws, int64_t kv, int64_t local, int64_t head,
                     const RowBlock& rows) const {
    const int64_t b = kv / args.Hkv, h = kv % args.Hkv * sizes.group + head;
    find_spans(args, mask, kTile, b, h, rows, ws.spans);
    ws.scores.start(b, h, rows);
    bool bounded[2];
    for (int map = 0; map < sizes.maps; map++) {
      copy_rows(map_of[map].template queries<scalar_t>(b, h, rows.first), map_of[map].q.row,
                rows.count, rows.padded, map_of[map].d, queries(ws, map, rows));
      bounded[map] = !args.sink.data && (!mask.given() || mask.boolean()) &&
                     scores_are_bounded(ws, map, rows, local, b, h);
      std::fill_n(per_row(ws.m, map), rows.count, bounded[map] ? 0.0f : sink_score(h));
      std::fill_n(ws.sums.get() + map * rows_padded() * VL, rows.count * VL, 0.0f);
    }
    for (size_t i = 0; i < ws.spans.size(); i++) {
      const Span& span = ws.spans[i];
      multiply(ws, span, local, rows, b, h);
      ws.scores.start(span, span.key(kTile));
      for (int map = 0; map < sizes.maps; map++) exponentiate(ws, map, i, span, rows, bounded[map]);
    }
    for (int map = 0; map < sizes.maps; map++) finish_rows(ws, map, rows, b, h);
    apply_to_values(ws, local, rows, b, h);
    for (int64_t r = 0; r < rows.count; r++) {
      auto* out = at_row<scalar_t>(args.out, b, h, rows.first + r);
      if (ws.scores.seen(r))
        convert_row(ws.o.get() + r * args.dv, out, args.dv);
      else
        std::memset(out, 0, args.dv * sizeof(scalar_t));
    }
  }

  // Multiply the combined map with V, neighbouring spans in one product.
  void apply_to_values(Workspace& ws, int64_t local, const RowBlock& rows, int64_t b,
                       int64_t h) const {
    constexpr int64_t kWidth = kTilesPerProduct * kTile;
    const operand_t* v = values_of(local, b, h);
    for (size_t first = 0, last; first < ws.spans.size(); first = last) {
      const int64_t key = ws.spans[first].key(kTile);
      int64_t width = 0;
      for (last = first; last < ws.spans.size(); last++) {
        const Span& span = ws.spans[last];
        if (span.key(kTile) != key + width || width + span.width > kWidth) break;
        for (int64_t r = 0; r < rows.count; r++)
          combine(ws, last, r, ws.a.get() + r * kWidth + width, rows, b, h);
        width += span.width;
      }
      for (int64_t r = rows.count; r < rows.padded; r++)
        std::memset(ws.a.get() + r * kWidth, 0, width * sizeof(operand_t));
      Gemm::nn(rows.padded, args.dv, width, ws.a.get(), kWidth, v + key * args.dv, args.dv,
               ws.o.get(), args.dv, first > 0);
    }
  }

  // One row of one span of the combined map: e1 / l1 - lam e2 / l2, corrected for the final
  // maximum.
  ANTIPHASE_INLINE void combine(Workspace& ws, int64_t index, int64_t r, operand_t* a,
                                const RowBlock& rows, int64_t b, int64_t h) const {
    auto factor = [&](int map) {
      const float used = per_row(ws.m_span, map * spans + index)[r], m = per_row(ws.m, map)[r];
      const float c = map_of[map].scale * kLog2e;
      return per_row(ws.weight, map)[r] * (used == m ? 1.0f : std::exp2((used - m) * c));
    };
    const Span& span = ws.spans[index];
    const operand_t* e1 = exponentials(ws, 0, index, rows) + r * kTile;
    const Vec f1(factor(0));
    Vec x0, x1, y0, y1;
    auto store = [&](int64_t i, Vec a0, Vec a1) { store_map(a + i, a0, a1); };
    auto store_dropped = [&](int64_t i, Vec a0, Vec a1) {
      const uint32_t row = dropout.row(b, h, rows.first + r);
      const int64_t key = span.key(kTile) + i;
      store_map(a + i, a0 * dropout.factors(row, key), a1 * dropout.factors(row, key + VL));
    };
    auto one_map = [&](const auto& put) {
      for (int64_t i = 0; i < span.width; i += 2 * VL) {
        load_map(e1 + i, x0, x1);
        put(i, x0 * f1, x1 * f1);
      }
    };
    auto two_maps = [&](const auto& put) {
      const operand_t* e2 = exponentials(ws, 1, index, rows) + r * kTile;
      const Vec f2(factor(1));
      for (int64_t i = 0; i < span.width; i += 2 * VL) {
        load_map(e1 + i, x0, x1), load_map(e2 + i, y0, y1);
        put(i, at::vec::fmadd(y0, f2, x0 * f1), at::vec::fmadd(y1, f2, x1 * f1));
      }
    };
    if (sizes.maps == 1) return dropout ? one_map(store_dropped) : one_map(store);
    return dropout ? two_maps(store_dropped) : two_maps(store);
  }
};

}  // namespace antiphase
