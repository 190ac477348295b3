// The backward pass, from the inputs and the saved row log-sum-exp.
// With the maps P1 and P2, A = P1 - lam P2 and dA = dO V^T:
//   D1 = rowsum(P1 dA), D2 = rowsum(P2 dA), dlam = -D2,
//   dS1 = scale1 P1 (dA - D1), dS2 = -lam scale2 P2 (dA - D2),
//   dQ = dS K, dK = dS^T Q, dV = A^T dO;  dsink = -p_sink D1.

#pragma once

#include "abi.h"
#include "packing.h"
#include "parallel.h"

namespace antiphase {

template <class scalar_t, class Gemm>
struct Backward {
  using operand_t = typename Gemm::operand_t;
  static constexpr int64_t kTile = Gemm::kTile;
  const KernelArguments& args;
  const Sizes sizes;
  // With fewer key/value heads than threads, the query rows of a head are split into slices, each
  // with its own gradient sums.
  int64_t slices = 1;
  Buffer<float> sums;  // [key/value head, slice, (dk1 | dk2 | dv), tile, channel, key]

  explicit Backward(const KernelArguments& args) : args(args), sizes(args, kTile) {}

  int64_t channels() const { return args.d1 + (sizes.maps == 2 ? args.d2 : 0) + args.dv; }
  int64_t sums_size() const { return sizes.tiles * kTile * channels(); }
  // The last map whose keys are packed: the first, if both maps have the same keys.
  int last_packed_map() const { return sizes.maps == 2 && !same_keys(args); }
  static int64_t key_stride(int64_t d) { return Gemm::kKeysTransposed ? kTile : d; }

  struct Workspace {
    Buffer<operand_t> k_cols[2], k_rows[2], v_cols;   // packed keys and values of a head
    Buffer<operand_t> q[2], q_t[2], dout, dout_t;     // the block's queries and dO, and transposed
    Buffer<operand_t> p[2], a, ds[2], vnni, scratch;  // maps of the block, operands of a tile
    Buffer<float> s, da, dq[2], fp32, sums;  // scores, dA, dQ, scratch, sums if there is one slice
    Buffer<float> D[2], D_lanes[2];          // D per row, and per row and lane
    int64_t packed = -1;                     // the key/value head that is packed
    ReleaseGuard<Gemm> release;
  };

  Workspace make_workspace() const {
    const int64_t R = round_up(args.block_rows, kRowAlign), keys = sizes.tiles * kTile;
    Workspace ws;
    for (int map = 0; map < sizes.maps; map++) {
      const int64_t d = map ? args.d2 : args.d1;
      if (map <= last_packed_map())
        ws.k_cols[map].resize(keys * d), ws.k_rows[map].resize(keys * d);
      ws.q[map].resize(R * d), ws.q_t[map].resize(R * d), ws.dq[map].resize(R * d);
      ws.p[map].resize(R * keys), ws.ds[map].resize(R * kTile);
      ws.D[map].resize(R), ws.D_lanes[map].resize(R * VL);
    }
    ws.v_cols.resize(keys * args.dv);
    ws.dout.resize(R * args.dv), ws.dout_t.resize(R * args.dv);
    ws.a.resize(R * kTile), ws.vnni.resize(Gemm::kVnni ? R * kTile : 0);
    ws.s.resize(R * kTile), ws.da.resize(R * keys), ws.fp32.resize(2 * R * sizes.d_max);
    ws.scratch.resize(kTile * sizes.d_max);
    if (slices == 1) ws.sums.resize(sums_size());
    return ws;
  }

  void run() {
    const int64_t total = args.B * args.Hkv, threads = at::get_num_threads(),
                  items = sizes.group * sizes.blocks;
    slices = std::clamp<int64_t>((threads + total - 1) / total, 1, items);
    if (slices > 1) sums.resize(total * slices * sums_size());
    parallel_items<Workspace>(
        total * slices, [&] { return make_workspace(); },
        [&](Workspace& ws, int64_t i) {
          const int64_t kv = i / slices, slice = i % slices;
          if (ws.packed != kv) pack(ws, kv);
          float* grads = slices == 1 ? ws.sums.get() : sums.get() + i * sums_size();
          std::fill_n(grads, sums_size(), 0.0f);
          // Strided, so that every slice gets short and long rows.
          for (int64_t item = slice; item < items; item += slices)
            compute_block(ws, kv, item / sizes.blocks, RowBlock(args, kTile, item % sizes.blocks),
                          grads);
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

  void pack(Workspace& ws, int64_t kv) {
    ws.packed = kv;
    for (int64_t t = 0; t < sizes.tiles; t++) {
      const KeyTile tile(args, kTile, kv, t);
      for (int map = 0; map <= last_packed_map(); map++) {
        const TensorView& k = map ? args.k2 : args.k1;
        const int64_t d = map ? args.d2 : args.d1;
        const scalar_t* from = at_row<scalar_t>(k, tile.b, tile.h, tile.first);
        pack_keys<Gemm>(from, k.row, tile.count, tile.padded, d,
                        ws.k_cols[map].get() + t * kTile * d, ws.scratch.get());
        pack_rows<Gemm>(from, k.row, tile.count, tile.padded, d,
                        ws.k_rows[map].get() + t * kTile * d, ws.scratch.get());
      }
      pack_keys<Gemm>(at_row<scalar_t>(args.v, tile.b, tile.h, tile.first), args.v.row, tile.count,
                      tile.padded, args.dv, ws.v_cols.get() + t * kTile * args.dv,
                      ws.scratch.get());
    }
  }

  // The gradients from one block of query rows of one head: dQ is final, dK and dV are added to
  // `grads`.
  void compute_block(Workspace& ws, int64_t kv, int64_t head, const RowBlock& rows, float* grads) {
    const int64_t b = kv / args.Hkv, h = kv % args.Hkv * sizes.group + head;
    recompute_maps(ws, rows, b, h);
    float* dk[2] = {grads, grads + sizes.tiles * kTile * args.d1};
    float* dv = grads + sizes.tiles * kTile * (channels() - args.dv);
    for (int64_t t = 0; t < rows.tiles(); t++) {
      const int64_t width = rows.width(t);
      score_gradients(ws, t, rows, b, h);
      for (int map = 0; map < sizes.maps; map++) {
        const int64_t d = map ? args.d2 : args.d1;
        const operand_t* keys = ws.k_rows[std::min(map, last_packed_map())].get() + t * kTile * d;
        Gemm::nn(rows.padded, d, width, ws.ds[map].get(), kTile, keys, d, ws.dq[map].get(), d,
                 t > 0);
        Gemm::nn(d, width, rows.padded, ws.q_t[map].get(), rows.padded,
                 as_right_operand(ws, ws.ds[map].get(), rows, width), kTile,
                 dk[map] + t * kTile * d, kTile, true);
      }
      Gemm::nn(args.dv, width, rows.padded, ws.dout_t.get(), rows.padded,
               as_right_operand(ws, ws.a.get(), rows, width), kTile, dv + t * kTile * args.dv,
               kTile, true);
    }
    for (int map = 0; map < sizes.maps; map++) {
      const int64_t d = map ? args.d2 : args.d1;
      for (int64_t r = 0; r < rows.count; r++) {
        scalar_t* dq = at_row<scalar_t>(map ? args.dq2 : args.dq1, b, h, rows.first + r);
        if (rows.keys_of(args, r))
          convert_row(ws.dq[map].get() + r * d, dq, d);
        else
          std::memset(dq, 0, d * sizeof(scalar_t));
      }
    }
  }

  // Both maps and dA of the complete block, and the row sums D.
  void recompute_maps(Workspace& ws, const RowBlock& rows, int64_t b, int64_t h) {
    pack_queries(at_row<scalar_t>(args.dout, b, h, rows.first), args.dout.row, rows.count,
                 rows.padded, args.dv, ws.dout.get(), ws.dout_t.get(), ws.fp32.get());
    for (int map = 0; map < sizes.maps; map++) {
      const TensorView& q = map ? args.q2 : args.q1;
      pack_queries(at_row<scalar_t>(q, b, h, rows.first), q.row, rows.count, rows.padded,
                   map ? args.d2 : args.d1, ws.q[map].get(), ws.q_t[map].get(), ws.fp32.get());
      std::fill_n(ws.D_lanes[map].get(), rows.padded * VL, 0.0f);
    }
    for (int64_t t = 0; t < rows.tiles(); t++) {
      const int64_t width = rows.width(t), at = t * rows.padded * kTile;
      float* da = ws.da.get() + at;
      Gemm::nt(rows.padded, width, args.dv, ws.dout.get(), args.dv,
               ws.v_cols.get() + t * kTile * args.dv, key_stride(args.dv), da);
      for (int map = 0; map < sizes.maps; map++) {
        const int64_t d = map ? args.d2 : args.d1;
        const float scale = static_cast<float>(map ? args.scale2 : args.scale1) * kLog2e;
        const float* lse = at_row<float>(map ? args.lse2 : args.lse1, b, h, rows.first);
        operand_t* p = ws.p[map].get() + at;
        float* s = ws.s.get();
        const operand_t* keys = ws.k_cols[std::min(map, last_packed_map())].get() + t * kTile * d;
        Gemm::nt(rows.padded, width, d, ws.q[map].get(), d, keys, key_stride(d), s);
        for (int64_t r = 0; r < rows.count; r++) {
          const int64_t n = std::clamp<int64_t>(rows.keys_of(args, r) - t * kTile, 0, width);
          add_lanes(ws.D_lanes[map].get() + r * VL,
                    row_exp2<true>(s + r * kTile, p + r * kTile, n, width, scale, lse[r],
                                   da + r * kTile));
        }
      }
    }
    for (int64_t r = 0; r < rows.count; r++) {
      const int64_t i = rows.first + r;
      for (int map = 0; map < sizes.maps; map++)
        ws.D[map].get()[r] = sum_lanes(Vec::loadu(ws.D_lanes[map].get() + r * VL));
      if (sizes.maps == 2) *at_row<float>(args.dlam, b, h, i) = -ws.D[1].get()[r];
      if (args.sink.data) {
        const float p_sink = std::exp2(*at_row<float>(args.sink, 0, h, 0) * kLog2e -
                                       *at_row<float>(args.lse1, b, h, i));
        *at_row<float>(args.dsink, b, h, i) = -p_sink * ws.D[0].get()[r];
      }
    }
  }

  // A, dS1 and dS2 of one tile, as operands. Padded rows are zero: they take part in dK and dV.
  void score_gradients(Workspace& ws, int64_t t, const RowBlock& rows, int64_t b, int64_t h) {
    const int64_t width = rows.width(t);
    for (int64_t r = 0; r < rows.count; r++) {
      const int64_t at = (t * rows.padded + r) * kTile;
      const float* da = ws.da.get() + at;
      const operand_t *p1 = ws.p[0].get() + at,
                      *p2 = sizes.maps == 2 ? ws.p[1].get() + at : nullptr;
      operand_t *a = ws.a.get() + r * kTile, *ds1 = ws.ds[0].get() + r * kTile;
      const Vec scale1(static_cast<float>(args.scale1)), D1(ws.D[0].get()[r]);
      Vec x0, x1, y0, y1, g0, g1;
      if (sizes.maps == 1) {
        for (int64_t i = 0; i < width; i += 2 * VL) {
          load_map(p1 + i, x0, x1), load2(da + i, g0, g1);
          store_map(a + i, x0, x1);
          store_map(ds1 + i, x0 * scale1 * (g0 - D1), x1 * scale1 * (g1 - D1));
        }
        continue;
      }
      operand_t* ds2 = ws.ds[1].get() + r * kTile;
      const float lam = *at_row<float>(args.lam, b, h, rows.first + r);
      const Vec minus_lam(-lam), scale2(-lam * static_cast<float>(args.scale2)),
          D2(ws.D[1].get()[r]);
      for (int64_t i = 0; i < width; i += 2 * VL) {
        load_map(p1 + i, x0, x1), load_map(p2 + i, y0, y1), load2(da + i, g0, g1);
        store_map(a + i, at::vec::fmadd(y0, minus_lam, x0), at::vec::fmadd(y1, minus_lam, x1));
        store_map(ds1 + i, x0 * scale1 * (g0 - D1), x1 * scale1 * (g1 - D1));
        store_map(ds2 + i, y0 * scale2 * (g0 - D2), y1 * scale2 * (g1 - D2));
      }
    }
    const int64_t from = rows.count * kTile,
                  n = (rows.padded - rows.count) * kTile * sizeof(operand_t);
    std::memset(ws.a.get() + from, 0, n);
    for (int map = 0; map < sizes.maps; map++) std::memset(ws.ds[map].get() + from, 0, n);
  }

  // A tile of rows as a right operand, in the VNNI layout if the micro-kernel needs it.
  static const operand_t* as_right_operand(Workspace& ws, const operand_t* tile,
                                           const RowBlock& rows, int64_t width) {
    if constexpr (!Gemm::kVnni) return tile;
    for (int64_t r = 0; r < rows.padded; r += 2)
      pack_vnni(tile + r * kTile, tile + (r + 1) * kTile, ws.vnni.get() + r * kTile, width);
    return ws.vnni.get();
  }

  void write_gradients(int64_t kv, const float* grads, float* scratch) {
    write_gradient(args.dk1, kv, grads, args.d1, scratch);
    if (sizes.maps == 2)
      write_gradient(args.dk2, kv, grads + sizes.tiles * kTile * args.d1, args.d2, scratch);
    write_gradient(args.dv_, kv, grads + sizes.tiles * kTile * (channels() - args.dv), args.dv,
                   scratch);
  }

  // Gradient sums are [channel, key] per tile; transpose them, a few keys at a time.
  void write_gradient(const TensorView& to, int64_t kv, const float* from, int64_t d, float* rows) {
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
