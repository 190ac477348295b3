// The backward pass, from the inputs and the saved row statistics.
// With the maps P1 and P2, A = P1 - lam P2 and dA = dO V^T:
//   D1 = rowsum(P1 dA), D2 = rowsum(P2 dA), dlam = -D2,
//   dS1 = scale1 P1 (dA - D1), dS2 = -lam scale2 P2 (dA - D2),
//   dQ = dS K, dK = dS^T Q, dV = A^T dO;  dsink = -p_sink D1.
// Dropout multiplies A (for dV) and dA by the same factors; the soft-cap multiplies dS by its
// derivative. Scores are computed by the same products as in the forward pass: with them and the
// row maximum that was subtracted there, P is the same number bit by bit, however large they are.

#pragma once

#include "parallel.h"
#include "scores.h"

namespace antiphase {

template <class scalar_t, class Gemm>
struct Backward {
  using operand_t = typename Gemm::operand_t;
  static constexpr int64_t kTile = Gemm::kTile;
  const KernelArguments& args;
  const Sizes sizes;
  const Map map_of[2];
  const Mask mask;
  const Dropout dropout;
  const Blocks blocks;
  const int64_t spans;  // at most, of a block
  // A key/value head's query rows are split into slices, each with its own gradient sums, where
  // heads alone would not occupy all threads evenly.
  int64_t slices = 1;
  Buffer<float> sums;  // [key/value head, slice, (dk1 | dk2 | dv), tile, channel, key]

  explicit Backward(const KernelArguments& args)
      : args(args),
        sizes(args, kTile),
        map_of{{args, 0}, {args, 1}},
        mask(args),
        dropout(args),
        blocks(args),
        spans(most_spans(args, blocks, kTile)) {}

  int64_t channels() const { return args.d1 + (sizes.packed_maps == 2 ? args.d2 : 0) + args.dv; }
  int64_t sums_size() const { return sizes.tiles * kTile * channels(); }
  int64_t rows_padded() const { return round_up(args.block_rows, kRowAlign); }
  static int64_t key_stride(int64_t d) { return Gemm::kKeysTransposed ? kTile : d; }

  struct Workspace {
    Scores scores;
    std::vector<Span> spans;
    Buffer<operand_t> k_cols[2], k_rows[2], v_cols;  // packed keys and values of a head
    Buffer<operand_t> q, q_t, dout, dout_t;  // the block's queries and dO, and transposed
    Buffer<operand_t> p, a, ds, vnni, scratch;  // maps of the block, operands of a span
    Buffer<float> s, da, slope, dq, fp32, sums;  // sums: if there is one slice
    Buffer<float> D, D_lanes;                    // D per map and row, and per lane
    int64_t packed = -1;                         // the key/value head that is packed
    ReleaseGuard<Gemm> release;

    Workspace(const KernelArguments& args, const Mask& mask) : scores(args, mask) {}
  };

  Workspace make_workspace() const {
    const int64_t R = rows_padded(), maps = sizes.maps, keys = sizes.tiles * kTile;
    Workspace ws(args, mask);
    for (int map = 0; map < sizes.packed_maps; map++) {
      ws.k_cols[map].resize(keys * map_of[map].d), ws.k_rows[map].resize(keys * map_of[map].d);
    }
    ws.v_cols.resize(keys * args.dv);
    ws.q.resize(maps * R * sizes.d_max), ws.q_t.resize(maps * R * sizes.d_max);
    ws.dq.resize(maps * R * sizes.d_max);
    ws.dout.resize(R * args.dv), ws.dout_t.resize(R * args.dv);
    ws.p.resize(maps * R * kTile * spans), ws.da.resize(R * kTile * spans);
    if (args.softcap) ws.slope.resize(maps * R * kTile * spans);
    ws.ds.resize(maps * R * kTile), ws.a.resize(R * kTile), ws.s.resize(maps * R * kTile);
    ws.vnni.resize(Gemm::kVnni ? maps * R * kTile : 0);
    ws.D.resize(maps * R), ws.D_lanes.resize(maps * R * VL);
    ws.fp32.resize(2 * maps * R * sizes.d_max), ws.scratch.resize(kTile * sizes.d_max);
    if (slices == 1) ws.sums.resize(sums_size());
    return ws;
  }

  void run() {
    const int64_t total = args.B * args.Hkv, threads = at::get_num_threads(),
                  items = sizes.group * blocks.most();
    slices = std::clamp<int64_t>(slices_for(total, threads), 1, items);
    if (slices > 1) sums.resize(total * slices * sums_size());
    parallel_items<Workspace>(
        total * slices, [&] { return make_workspace(); },
        [&](Workspace& ws, int64_t i) {
          const int64_t kv = i / slices, slice = i % slices;
          if (ws.packed != kv) pack(ws, kv);
          float* grads = slices == 1 ? ws.sums.get() : sums.get() + i * sums_size();
          std::fill_n(grads, sums_size(), 0.0f);
          const auto& list = blocks.of(kv / args.Hkv);
          const int64_t count = list.size();
          // Strided, so that every slice gets short and long rows.
          for (int64_t item = slice; item < sizes.group * count; item += slices)
            compute_block(ws, kv, item / count, list[item % count], grads);
          if (slices == 1) write_gradients(kv, grads, ws.fp32.get());
        });
    if (slices == 1) return;
    parallel_items<Buffer<float>>(
        total, [&] { return Buffer<float>(kRowAlign * sizes.d_max); },
        [&](Buffer<float>& scratch, int64_t kv) {
          float* first = sums.get() + kv * slices * sums_size();
          for (int64_t s = 1; s < slices; s++)
            for (int64_t i = 0; i < sums_size(); i++) first[i] += first[s * sums_size() + i];
          write_gradients(kv, first, scratch.get());
        });
  }

  // Slices per head: as many as make the heads divide evenly among the threads, unless there are so
  // many heads that the rest does not matter.
  static int64_t slices_for(int64_t total, int64_t threads) {
    constexpr int64_t kManyHeads = 8;
    if (total >= kManyHeads * threads || total % threads == 0) return 1;
    return threads / std::gcd(total, threads);
  }

  void pack(Workspace& ws, int64_t kv) const {
    ws.packed = kv;
    for (int64_t t = 0; t < sizes.tiles; t++) {
      const KeyTile tile(args, kTile, kv, t);
      for (int map = 0; map < sizes.packed_maps; map++) {
        const int64_t d = map_of[map].d, stride = map_of[map].k.row;
        const scalar_t* from = map_of[map].template keys<scalar_t>(tile.b, tile.h, tile.first);
        pack_keys<Gemm>(from, stride, tile.count, tile.padded, d,
                        ws.k_cols[map].get() + t * kTile * d, ws.scratch.get());
        pack_rows<Gemm>(from, stride, tile.count, tile.padded, d,
                        ws.k_rows[map].get() + t * kTile * d, ws.scratch.get());
      }
      pack_keys<Gemm>(at_row<scalar_t>(args.v, tile.b, tile.h, tile.first), args.v.row, tile.count,
                      tile.padded, args.dv, ws.v_cols.get() + t * kTile * args.dv,
                      ws.scratch.get());
    }
  }

  // The gradients from one block of query rows of one head: dQ is final, dK and dV are added to
  // `grads`. The rows of maps that share their keys are stacked: one product instead of two.
  void compute_block(Workspace& ws, int64_t kv, int64_t head, const RowBlock& rows, float* grads) {
    const int64_t b = kv / args.Hkv, h = kv % args.Hkv * sizes.group + head;
    const int64_t M = rows.padded * sizes.maps / sizes.packed_maps;  // rows of a product
    find_spans(args, mask, kTile, b, h, rows, ws.spans);
    recompute_maps(ws, rows, b, h);
    float* dk[2] = {grads, grads + sizes.tiles * kTile * args.d1};
    float* dv = grads + sizes.tiles * kTile * (channels() - args.dv);
    for (size_t i = 0; i < ws.spans.size(); i++) {
      const Span& span = ws.spans[i];
      score_gradients(ws, i, rows, b, h);
      for (int map = 0; map < sizes.packed_maps; map++) {
        const int64_t d = map_of[map].d, at = map * rows.padded;
        const operand_t* ds = ws.ds.get() + at * kTile;
        Gemm::nn(M, d, span.width, ds, kTile,
                 ws.k_rows[map].get() + (span.tile * kTile + span.from) * d, d,
                 ws.dq.get() + at * sizes.d_max, d, i > 0);
        Gemm::nn(d, span.width, M, ws.q_t.get() + at * sizes.d_max, M,
                 as_right_operand(ws, ds, M, span.width), kTile,
                 dk[map] + span.tile * kTile * d + span.from, kTile, true);
      }
      Gemm::nn(args.dv, span.width, rows.padded, ws.dout_t.get(), rows.padded,
               as_right_operand(ws, ws.a.get(), rows.padded, span.width), kTile,
               dv + span.tile * kTile * args.dv + span.from, kTile, true);
    }
    for (int map = 0; map < sizes.maps; map++) {
      const int64_t d = map_of[map].d;
      const float* from = ws.dq.get() + map * rows.padded * (args.shared_keys ? d : sizes.d_max);
      for (int64_t r = 0; r < rows.count; r++) {
        scalar_t* dq = at_row<scalar_t>(map ? args.dq2 : args.dq1, b, h, rows.first + r);
        if (ws.scores.seen(r))
          convert_row(from + r * d, dq, d);
        else
          std::memset(dq, 0, d * sizeof(scalar_t));
      }
    }
  }

  // Pack the queries of both maps. Those of maps that share their keys are stacked: [Q1; Q2] and
  // its transpose.
  void pack_block_queries(Workspace& ws, const RowBlock& rows, int64_t b, int64_t h) const {
    for (int map = 0; map < sizes.maps; map++) {
      const Map& m = map_of[map];
      const int64_t at = map * rows.padded * (args.shared_keys ? m.d : sizes.d_max);
      const scalar_t* from = m.template queries<scalar_t>(b, h, rows.first);
      copy_rows(from, m.q.row, rows.count, rows.padded, m.d, ws.q.get() + at);
      const int64_t stride = rows.padded * sizes.maps / sizes.packed_maps;
      transpose_rows(from, m.q.row, rows.count, rows.padded, m.d,
                     ws.q_t.get() + (args.shared_keys ? map * rows.padded : at), stride,
                     ws.fp32.get());
    }
    const scalar_t* dout = at_row<scalar_t>(args.dout, b, h, rows.first);
    copy_rows(dout, args.dout.row, rows.count, rows.padded, args.dv, ws.dout.get());
    transpose_rows(dout, args.dout.row, rows.count, rows.padded, args.dv, ws.dout_t.get(),
                   rows.padded, ws.fp32.get());
  }

  // Both maps and dA of the complete block, and the row sums D.
  void recompute_maps(Workspace& ws, const RowBlock& rows, int64_t b, int64_t h) const {
    pack_block_queries(ws, rows, b, h);
    ws.scores.start(b, h, rows);
    for (int map = 0; map < sizes.maps; map++)
      std::fill_n(lanes(ws, map, 0), rows.padded * VL, 0.0f);
    const int64_t M = rows.padded * sizes.maps / sizes.packed_maps;
    for (size_t i = 0; i < ws.spans.size(); i++) {
      const Span& span = ws.spans[i];
      const int64_t key = span.key(kTile);
      float* da = ws.da.get() + i * rows.padded * kTile;
      Gemm::nt(rows.padded, span.width, args.dv, ws.dout.get(), args.dv,
               column(ws.v_cols, span, args.dv), key_stride(args.dv), da);
      if (dropout)
        for (int64_t r = 0; r < rows.count; r++)
          dropout.apply(dropout.row(b, h, rows.first + r), key, da + r * kTile, span.width);
      for (int map = 0; map < sizes.packed_maps; map++) {
        const int64_t d = map_of[map].d;
        Gemm::nt(M, span.width, d, ws.q.get() + map * rows.padded * sizes.d_max, d,
                 column(ws.k_cols[map], span, d), key_stride(d),
                 ws.s.get() + map * rows.padded * kTile);
      }
      ws.scores.start(span, key);
      for (int map = 0; map < sizes.maps; map++)
        for (int64_t r = 0; r < rows.count; r++) recompute_row(ws, map, i, r, rows, b, h);
    }
    for (int64_t r = 0; r < rows.count; r++) {
      for (int map = 0; map < sizes.maps; map++)
        D(ws, map)[r] = sum_lanes(Vec::loadu(lanes(ws, map, r)));
      if (sizes.maps == 2) *at_row<float>(args.dlam, b, h, rows.first + r) = -D(ws, 1)[r];
      if (args.sink.data) write_sink_gradient(b, h, rows.first + r, D(ws, 0)[r]);
    }
  }

  // The first columns of a span in packed keys or values.
  static const operand_t* column(const Buffer<operand_t>& packed, const Span& span, int64_t d) {
    const int64_t step = !Gemm::kKeysTransposed ? d : Gemm::kVnni ? 2 : 1;
    return packed.get() + span.tile * kTile * d + span.from * step;
  }
  float* D(const Workspace& ws, int map) const { return ws.D.get() + map * rows_padded(); }
  float* lanes(const Workspace& ws, int map, int64_t r) const {
    return ws.D_lanes.get() + (map * rows_padded() + r) * VL;
  }
  int64_t map_at(int map, int64_t index, int64_t r, const RowBlock& rows) const {
    return ((index * sizes.maps + map) * rows.padded + r) * kTile;
  }

  // One row of one map in a span, and its part of D.
  ANTIPHASE_INLINE void recompute_row(Workspace& ws, int map, int64_t index, int64_t r,
                                      const RowBlock& rows, int64_t b, int64_t h) const {
    const Map& m = map_of[map];
    const int64_t at = map_at(map, index, r, rows), i = rows.first + r;
    float* s = ws.s.get() + (map * rows.padded + r) * kTile;
    const Columns columns = ws.scores.row(map, r, s, args.softcap ? ws.slope.get() + at : nullptr);
    const float inverse = *at_row<float>(m.inverse, b, h, i);
    const float* da = ws.da.get() + (index * rows.padded + r) * kTile;
    const Vec vi(inverse);
    Vec sum0(0.0f), sum1(0.0f);
    auto add = [&](const Vec& a, const Vec& b, int64_t j) ANTIPHASE_INLINE_LAMBDA {
      sum0 = at::vec::fmadd(a, Vec::loadu(da + j), sum0);
      sum1 = at::vec::fmadd(b, Vec::loadu(da + j + VL), sum1);
    };
    auto put = [&](const auto& f) ANTIPHASE_INLINE_LAMBDA {
      map_row(s, ws.p.get() + at, columns.from, columns.to, ws.spans[index].width, f, add);
    };
    auto put_weights = [&](const auto& f) ANTIPHASE_INLINE_LAMBDA {
      put([&](const Vec& x) ANTIPHASE_INLINE_LAMBDA { return f(x) * vi; });
    };
    if (inverse == inverse)
      with_exponential<operand_t>(m.scale * kLog2e, *at_row<float>(m.max, b, h, i), put_weights);
    else
      put([&](const Vec&) { return vi; });
    add_lanes(lanes(ws, map, r), sum0 + sum1);
  }

  void write_sink_gradient(int64_t b, int64_t h, int64_t i, float D1) const {
    const Map& m = map_of[0];
    const float sink = *at_row<float>(args.sink, 0, h, 0) / m.scale;
    const float p = std::exp2((sink - *at_row<float>(m.max, b, h, i)) * m.scale * kLog2e) *
                    *at_row<float>(m.inverse, b, h, i);
    *at_row<float>(args.dsink, b, h, i) = sink > -kInf ? -p * D1 : 0.0f;
  }

  // A, dS1 and dS2 of one span, as operands. Padded rows are zero: they take part in dK and dV.
  void score_gradients(Workspace& ws, int64_t index, const RowBlock& rows, int64_t b,
                       int64_t h) const {
    const int64_t width = ws.spans[index].width, next = rows.padded * kTile;
    for (int64_t r = 0; r < rows.count; r++) {
      const float* da = ws.da.get() + (index * rows.padded + r) * kTile;
      const operand_t *p1 = ws.p.get() + map_at(0, index, r, rows), *p2 = p1 + next;
      operand_t *a = ws.a.get() + r * kTile, *ds1 = ws.ds.get() + r * kTile, *ds2 = ds1 + next;
      const Vec scale1(map_of[0].scale), D1(D(ws, 0)[r]);
      Vec x0, x1, y0, y1, g0, g1;
      if (sizes.maps == 1) {
        for (int64_t i = 0; i < width; i += 2 * VL) {
          load_map(p1 + i, x0, x1), load2(da + i, g0, g1);
          store_map(a + i, x0, x1);
          store_map(ds1 + i, x0 * scale1 * (g0 - D1), x1 * scale1 * (g1 - D1));
        }
      } else {
        const float lam = *at_row<float>(args.lam, b, h, rows.first + r);
        const Vec minus_lam(-lam), scale2(-lam * map_of[1].scale), D2(D(ws, 1)[r]);
        for (int64_t i = 0; i < width; i += 2 * VL) {
          load_map(p1 + i, x0, x1), load_map(p2 + i, y0, y1), load2(da + i, g0, g1);
          store_map(a + i, at::vec::fmadd(y0, minus_lam, x0), at::vec::fmadd(y1, minus_lam, x1));
          store_map(ds1 + i, x0 * scale1 * (g0 - D1), x1 * scale1 * (g1 - D1));
          store_map(ds2 + i, y0 * scale2 * (g0 - D2), y1 * scale2 * (g1 - D2));
        }
      }
      if (!std::isfinite(D(ws, 0)[r]) || !std::isfinite(D(ws, sizes.maps - 1)[r]))
        for (int map = 0; map < sizes.maps; map++)
          clear_hidden(map ? ds2 : ds1, map ? p2 : p1, width);
      if (dropout) drop(a, dropout.row(b, h, rows.first + r), ws.spans[index].key(kTile), width);
      if (args.softcap)
        for (int map = 0; map < sizes.maps; map++)
          multiply_row(map ? ds2 : ds1, ws.slope.get() + map_at(map, index, r, rows), width);
    }
    const int64_t from = rows.count * kTile,
                  bytes = (rows.padded - rows.count) * kTile * sizeof(operand_t);
    std::memset(ws.a.get() + from, 0, bytes);
    for (int map = 0; map < sizes.maps; map++)
      std::memset(ws.ds.get() + map * next + from, 0, bytes);
  }

  // In a row of NaN, keys that it does not attend to get no gradient.
  static void clear_hidden(operand_t* ds, const operand_t* p, int64_t width) {
    for (int64_t i = 0; i < width; i++)
      if (static_cast<float>(p[i]) == 0.0f) ds[i] = static_cast<operand_t>(0.0f);
  }

  void drop(operand_t* a, uint32_t row, int64_t key, int64_t width) const {
    Vec x0, x1;
    for (int64_t i = 0; i < width; i += 2 * VL) {
      load_map(a + i, x0, x1);
      store_map(a + i, x0 * dropout.factors(row, key + i), x1 * dropout.factors(row, key + i + VL));
    }
  }
  static void multiply_row(operand_t* x, const float* y, int64_t width) {
    Vec x0, x1;
    for (int64_t i = 0; i < width; i += 2 * VL) {
      load_map(x + i, x0, x1);
      store_map(x + i, x0 * Vec::loadu(y + i), x1 * Vec::loadu(y + i + VL));
    }
  }

  // A tile of rows as a right operand, in the VNNI layout if the micro-kernel needs it.
  static const operand_t* as_right_operand(Workspace& ws, const operand_t* tile, int64_t rows,
                                           int64_t width) {
    if constexpr (!Gemm::kVnni) return tile;
    for (int64_t r = 0; r < rows; r += 2)
      pack_vnni(tile + r * kTile, tile + (r + 1) * kTile, ws.vnni.get() + r * kTile, width);
    return ws.vnni.get();
  }

  void write_gradients(int64_t kv, const float* grads, float* scratch) const {
    write_gradient(args.dk1, kv, grads, args.d1, scratch);
    if (sizes.packed_maps == 2)
      write_gradient(args.dk2, kv, grads + sizes.tiles * kTile * args.d1, args.d2, scratch);
    write_gradient(args.dv_, kv, grads + sizes.tiles * kTile * (channels() - args.dv), args.dv,
                   scratch);
  }

  // Gradient sums are [channel, key] per tile; transpose them, a few keys at a time.
  void write_gradient(const TensorView& to, int64_t kv, const float* from, int64_t d,
                      float* rows) const {
    for (int64_t t = 0; t < sizes.tiles; t++) {
      const KeyTile tile(args, kTile, kv, t);
      for (int64_t j = 0; j < tile.padded; j += kRowAlign) {
        transpose_words(from + t * kTile * d + j, kTile, rows, d, d, kRowAlign);
        for (int64_t i = 0; i < kRowAlign; i++) {
          const int64_t key = interleaved_key<operand_t>(j + i);
          if (key < tile.count)
            convert_row(rows + i * d, at_row<scalar_t>(to, tile.b, tile.h, tile.first + key), d);
        }
      }
    }
  }
};

}  // namespace antiphase
