// A warpgroup of an attend kernel of family sm90 that attends, for 64 rows of the tile.
#pragma once
#include "attend_rotators.cuh"
#include "fold_rows.cuh"
#if KGEN_EARLY_QUERIES
#include "store_directly.cuh"
#endif
#include "warpgroup.cuh"

namespace kgen {

template <class Config>
__device__ __forceinline__ void consume(const AttendParams& params, AttendSm90Shared<Config>& shared, int warpgroup) {
  using Element = typename Config::Element;
  using ScoreElement = typename Config::ScoreElement;
  // ptxas takes an instruction with no more registers than a thread has at the start.
  constexpr int value_columns = Config::v_head_dim > 128 && rotates_apart<Config> ? 128 : Config::v_head_dim;
  constexpr int keys = Config::keys, rows_per_group = 64, warpgroups = Config::rows / rows_per_group, consumer_threads = 128 * warpgroups;
  const int lane = ptx::lane_index(), group_row = warpgroup * rows_per_group;
  auto first_row = [&]() { return group_row + ptx::warp_index() % 4 * 16; };  // asked for anew: registers are dear
  // Beside a warpgroup that rotates there are fewer, and what these are used for is computed
  // anew too; elsewhere that would only take longer.
  auto where_dear = [](int x) { return rotates_apart<Config> ? ptx::here(x) : x; };
  // Outputs of 256 dimensions leave no registers to fold them beside the next tile's weights: a part ends before the next begins.
  constexpr bool folds_apart = Config::folds && Config::v_head_dim > 128;
  // What is not of an item's outputs is found under their last products; but not where there are as few registers
  // as beside a warpgroup that rotates, of three, or to fold a part apart: ptxas would wait for each product of the whole loop, and not
  // always say so.
#if KGEN_SCALED_QUERIES
  constexpr bool ends_under_products = Config::folds && warpgroups == 2 && !rotates_apart<Config>;  // nor, of queries that are scaled, without parts
#else
  // (Nor of capped scores without parts: prefill of baked keys by 12 warps spills 52 bytes.)
  constexpr bool ends_under_products = !rotates_apart<Config> && !rotates_own<Config> && !folds_apart && (Config::folds || !Config::bounded_scores);
#endif
  static_assert(!(ends_under_products && folds_apart), "a part's last outputs are there before it is folded");
  static_assert(!Config::bounded_scores || most_weight<Element> >= 0x1p60f, "room for weights of which nothing is subtracted");
  // How many of a lane's two rows are compared with the most that they may add up to ahead of the wait for the next keys. Those the
  // compiler adds up among the exponentials, which leave room for it, others behind all exponentials. By three warpgroups prefill of
  // 64 dimensions takes 4 to 6 percent less time so, extend beside rotators 1 to 2, and by two warpgroups alone 1 to 3 more (H200).
#if KGEN_ALIGNED_QUERIES
  constexpr int rows_compared_early = Config::head_dim > 64 ? 2 : 1;
#else
#if KGEN_EXCHANGED_KEYS
  constexpr int rows_compared_early = 2;
#else
  constexpr int rows_compared_early = rotates_own<Config> ? 2 : 0;
#endif
#endif
  RingPlace<Config::key_stages> key;
  RingPlace<Config::stages> value;
  RingPlace<Config::queries> query;
  auto release = [&](unsigned long long& free) { arrive_everywhere(free, lane); };
  auto release_keys = [&](int stage) {
    release(shared.key_free[stage]);
#if KGEN_CLUSTER
    ptx::barrier_arrive_if(lane == 0, ptx::shared_address(&shared.note_read[stage]));
#endif
  };
  const int part_of_query = AttendSm90Shared<Config>::query_part(group_row);
  auto wait_for_query = [&]() {
    if constexpr (!rotates_own<Config>) ptx::barrier_wait(ptx::shared_address(&shared.query_full[query.stage][part_of_query]), query.parity);
  };
  auto free_query = [&]() {
    if constexpr (!rotates_own<Config>) ptx::barrier_arrive(ptx::shared_address(&shared.query_free[query.stage][part_of_query]));
  };

  ptx::wait_for_previous_kernel();
  if constexpr (!rotates_own<Config>) rotate_first_queries<Config, consumer_threads>(params, shared, ptx::thread_index());
  // See take_turn: the first turn is warpgroup 0's. (Not by pass_turn, which, kept for the
  // whole function, costs registers that there are not.)
  if (warpgroups > 1 && warpgroup == warpgroups - 1) ptx::named_barrier_arrive(2, 256);
  WorkList<typename AttendSm90Shared<Config>::Works, false> works = {shared.works, lane};
  for (Work work = first_work(params); work.exists(); work = works.next(params)) {
    const Item& in_memory = pointer<Item>(params.items)[work.item];
    const WarpItem held = WarpItem::of(in_memory, lane);  // but not where parts are folded, which leaves no register for it
    auto item = [&]() -> Item {
      if constexpr (Config::folds) return in_memory;
      return held.item();
    };
    const int kv_head = work.kv_head;

    Accumulator<1, keys> scores;
    Accumulator<1, Config::v_head_dim> output;
    WeightFragments<keys> weights;
    Softmax<1> softmax;
    auto begin_rows = [&]() {
      softmax.clear();
      if constexpr (Config::bounded_scores) softmax.maximum[0][0] = softmax.maximum[0][1] = 0.f;
    };
    output.clear();
    begin_rows();

    // For the tile of keys that comes next, which is there.
    auto rotate_own = [&]() {
      if constexpr (rotates_own<Config>) rotate_own_queries(params, shared, item(), kv_head, warpgroup, rotation_base(read_tile(shared.tile[key.stage], lane)));
    };
    auto take_query_for = [&](const TileNote& next) {
#if !KGEN_ROTATED_PER_RUN
      // The parts of queries that never change would otherwise have their addresses in
      // registers throughout, which outputs of half of all registers do not leave.
      if constexpr (Config::v_head_dim > 128 || rotates_apart<Config>) query.stage = ptx::here(query.stage);
#endif
      if (!next.begins_rotation()) return;
      if constexpr (rotates_own<Config>) return rotate_own();
      if (Config::queries > 1) free_query();
      query.advance();
      wait_for_query();
    };
    // One place for queries is given back as soon as the last tile for these has its weights: the
    // next ones come under the other warpgroup's products. An item's last ones are, unless its outputs are gathered there.
    auto give_query_for = [&](const TileNote& next) {
      if (Config::queries == 1 && next.begins_rotation()) free_query();
      if (gives_queries_early && !next.exists()) free_query();
    };
    // Warpgroups take turns with the matrix units: then the softmax of one is under the
    // products of the others, and no scores wait for half of another's. A turn is passed by
    // the 128 threads of one to the 128 of the next.
    auto take_turn = [&]() {
      if constexpr (warpgroups > 1) ptx::named_barrier_sync(2 + warpgroup, 256);
    };
    auto pass_turn = [&]() {
      if constexpr (warpgroups > 1) ptx::named_barrier_arrive(2 + (where_dear(warpgroup) + 1 < warpgroups ? warpgroup + 1 : 0), 256);
    };
    auto start_scores = [&]() {
      start_query_times_keys<ScoreElement, keys, Config::head_dim>(scores, ptx::shared_address(shared.query[query.stage].bytes), group_row,
                                                              ptx::shared_address(shared.key[key.stage].bytes));
    };
    auto start_outputs = [&]() { start_weights_times_values<Element, value_columns>(output, weights, ptx::shared_address(shared.value[value.stage].bytes)); };
    // One lane reads it, the one that releases the stage.
    auto note_of = [&](int stage) { return TileNote{ptx::shuffle(lane == 0 ? shared.note[stage].word : 0, 0)}; };
    auto take_keys = [&]() {
#if KGEN_ROTATED_KEYS
      ptx::barrier_wait(ptx::shared_address(&shared.key_rotated[key.stage]), key.parity);
#else
      ptx::barrier_wait(ptx::shared_address(&shared.key_full[key.stage]), key.parity);
#endif
      return note_of(key.stage);
    };
    auto wait_for_values = [&]() { ptx::barrier_wait(ptx::shared_address(&shared.value_full[value.stage]), value.parity); };
    // Where the last box of a tile is not full. The first warpgroup does it ahead of its turn with the tile, which comes before the
    // others': they need not meet for that, which would bring their softmaxes together.
    auto complete_values = [&](int tokens) {
      if (Boxes<Config>::full(tokens) || warpgroup > 0) return;
      wait_for_values();
      clear_missing_values<Config, 128>(shared.value[value.stage], tokens, ptx::thread_index());
      ptx::fence_async_shared();
      if constexpr (warpgroups == 1) ptx::named_barrier_sync(1, 128);
    };
    // Scores that are capped together are masked first as well: one that is no number, as an unseen key's may be, would spoil others. Those
    // of an item's first tile are not, as nothing hides what that takes longer; but where an item has parts, which must begin as it does.
    auto cap_and_mask = [&](int stage, const TileNote& note, bool together) {
      auto mask = [&]() {
        if (!note.masked()) return;
        const KeyTile tile = read_tile(shared.tile[stage], lane);
        const Item of = item();
        mask_scores(scores, first_row(), tile.begin, lane, [&](int row) { return visible_to_row<Config>(params, of, tile, row); });
      };
#if KGEN_SOFT_CAP
      if (Config::caps_together && together) {
        mask();
        cap_scores<Config, true>(scores, product_exponent<Config>(params));
      } else {
        cap_scores<Config, false>(scores, product_exponent<Config>(params));
      }
#endif
      mask();
    };

    // Of queries that are scaled as they are rotated, scores are exponents, and a row whose first maximum is near
    // 0 subtracts nothing: a warp of such rows alone saves an instruction a score. Another subtracts before it weighs. (All warps of a
    // warpgroup must execute the same products, and waits for these: what a warp does by itself has none.)
#if KGEN_SCALED_QUERIES
    constexpr float near = 32.f;
    int plain = Config::bounded_scores;
    auto find_plain = [&]() { plain = score_exponent<Config>(params) == 1.f && softmax.plain(); };
    auto stay_plain = [&]() { plain = 1; };
    auto make_exponents = [&]() {
      if (Config::bounded_scores || plain) return;
#pragma unroll
      for (int h = 0; h < 2; ++h) softmax.make_exponents(scores, 0, h, score_exponent<Config>(params));
    };
    auto weigh_row = [&](int h) { return softmax.weigh_row<true>(scores, 0, h, 1.f); };
#else
    constexpr float near = -1.f;
    auto find_plain = [&]() {};
    auto stay_plain = [&]() {};
    auto make_exponents = [&]() {};
    auto weigh_row = [&](int h) { return softmax.weigh_row<Config::bounded_scores>(scores, 0, h, score_exponent<Config>(params)); };
#endif
    // A softmax is the same whatever is subtracted from its exponents, as long as weights and
    // sums stay within their range. So what a row subtracts is the maximum of the first tile
    // in which it sees a key (or nothing: see guess_first_weights), and further tiles are not searched for theirs, which would take
    // half as long as their exponentials. Where a row's weights go out of range, the warp
    // computes the scores once more, by itself, and that row's maximum moves to theirs. The
    // others stay as they are: no row's result depends on another's.
    auto weigh_again = [&](int stage, float (&added)[2]) {
      query_times_keys<ScoreElement, Config::head_dim, 1>(scores, shared.query[query.stage], where_dear(first_row()), shared.key[stage], where_dear(lane));
      cap_and_mask(stage, note_of(stage), true);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float most = ptx::maximum(added[h], ptx::shuffle_xor(added[h], 1));
        most = ptx::maximum(most, ptx::shuffle_xor(most, 2));
        const float top = softmax.row_maximum(scores, 0, h);
        if (most > most_weight<Element>) {
          const float factor = softmax.move(0, h, top, score_exponent<Config>(params));
          added[h] = softmax.weigh_row(scores, 0, h, score_exponent<Config>(params));
          to_fragments<Element>(weights, scores, h);
          softmax.sum[0][h] *= factor;
          output.scale_row(0, h, factor);
        }
      }
      find_plain();
    };

    // The first tile's.
    auto weigh_first = [&]() {
      make_exponents();
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        softmax.sum[0][h] = weigh_row(h);
        to_fragments<Element>(weights, scores, h);
      }
    };
    // To look for its maxima takes as long as half of its exponentials, and nothing hides that. So its rows subtract nothing at first; and
    // where what a row's weights add up to is too far from 1 then, the warp computes the scores once more, and that row subtracts its maximum.
#if KGEN_WINDOW
    constexpr bool guesses_first = false;  // many rows see no key of an item's first tile
#else
    // Not where an item has parts, which must begin as it does, nor with weights of fp16, which have no such range. (With 256 dimensions
    // prefill waits for queries, and takes as long.)
    constexpr bool guesses_first = !Config::folds && Config::v_head_dim <= 128 && most_weight<Element> >= 1.f / Softmax<1>::least_weight;
#endif
    auto guess_first_weights = [&]() {
      softmax.maximum[0][0] = softmax.maximum[0][1] = 0.f;
      stay_plain();
      weigh_first();
    };
    auto within_range = [&](int h) {
      const float sum = quad_sum(softmax.sum[0][h]);
      return softmax.least_weight <= sum && sum <= most_weight<Element>;
    };
    // Rows within their range keep the weights that they have. Returns whether every row has seen a key.
    auto weigh_first_again = [&](int stage, const TileNote& note) {
      query_times_keys<ScoreElement, Config::head_dim, 1>(scores, shared.query[query.stage], where_dear(first_row()), shared.key[stage], where_dear(lane));
      cap_and_mask(stage, note, true);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float top = softmax.row_maximum(scores, 0, h);
        if (!within_range(h)) {
          softmax.maximum[0][h] = top;
          softmax.sum[0][h] = softmax.weigh_row(scores, 0, h, score_exponent<Config>(params));
          to_fragments<Element>(weights, scores, h);
        }
      }
      find_plain();
      return softmax.started();
    };

    auto take_outputs = [&]() {
      ptx::wgmma_wait<0>();
      touch(output);
      release(shared.value_free[value.stage]);
      value.advance();
    };

    Part part = {0, false};
    auto fold_part = [&](Softmax<1>& ended) {
      // What follows from these would otherwise be in registers throughout.
      fold_rows<Config>(params, in_memory, ptx::here(kv_head), part, output, ended, score_exponent<Config>(params), ptx::here(first_row()), ptx::here(lane));
      ++part.number;
      output.clear();
    };
    const TileNote tile = take_keys();
    TileNote next = tile;
    if (tile.exists()) {
      rotate_own();
      wait_for_query();
      for (;;) {  // once, or where parts are folded apart for each of them
        take_turn();
        ptx::wgmma_fence();
        start_scores();
        pass_turn();
        ptx::wgmma_wait<0>();
        touch(scores);
        cap_and_mask(key.stage, next, Config::folds);
        int started = 1;  // every row (a bool, the compiler spills)
        if constexpr (Config::bounded_scores) {
          weigh_first();
        } else if constexpr (guesses_first) {
          guess_first_weights();
          if (ptx::any(!within_range(0) | !within_range(1))) started = weigh_first_again(key.stage, next);
          ptx::sync_warp();
        } else {
          started = softmax.start(scores, near);
          find_plain();
          weigh_first();
        }
        release_keys(key.stage);
        key.advance();

        int tokens = next.tokens();  // of the values that come next
        next = take_keys();
        give_query_for(next);
        int held;        // the stage of the keys whose weights are at hand
        float added[2];  // to the sums by these
        // The scores of the next tile, under the outputs of the one before.
        auto find_scores = [&]() {
          take_turn();
          ptx::wgmma_fence();
          start_scores();
          wait_for_values();
          ptx::wgmma_fence();  // else the compiler adds one, in what it takes for a divergent path, and waits for each product
          start_outputs();
          pass_turn();
          ptx::wgmma_wait<1>();  // the scores; the outputs go on
          touch(scores);
          held = key.stage;
          key.advance();
        };
        // Its weights. Returns whether they are within their range.
        auto find_weights = [&]() {
          constexpr float most = most_weight<Element>;
          bool exceeds = false;
          added[0] = weigh_row(0);
          if constexpr (rows_compared_early == 1) exceeds = ptx::any(added[0] > most);
          if constexpr (rows_compared_early == 2) {
            added[1] = weigh_row(1);
            exceeds = ptx::any(added[0] > most || added[1] > most);
          }
          tokens = next.tokens();
          // Here, and not at the top of the loop: with no wait between them the compiler
          // moves the wait for the outputs above the softmax that is to hide them.
          next = take_keys();
          take_outputs();
          to_fragments<Element>(weights, scores, 0);
          if constexpr (rows_compared_early < 2) added[1] = weigh_row(1);
          to_fragments<Element>(weights, scores, 1);
          if constexpr (rows_compared_early == 1) exceeds = exceeds | ptx::any(added[1] > most);
          if constexpr (rows_compared_early == 0) exceeds = ptx::any(added[0] > most || added[1] > most);
          return Config::bounded_scores || !exceeds;
        };
        auto finish_tile = [&]() {
          softmax.sum[0][0] += added[0], softmax.sum[0][1] += added[1];
          ptx::sync_warp();
          release_keys(held);
          give_query_for(next);
        };
        // Rows that have seen no key yet begin with the tile that was scored.
        auto start_rows = [&]() {
          if constexpr (Config::bounded_scores) return;
          started = softmax.start(scores, near);
          find_plain();
        };
        while (next.exists() && !(folds_apart && next.begins_part())) {
          bool within_range, ends_part = false;  // the latter with the values before the tile's
          Softmax<1> ended;
#if KGEN_WHOLE_TILES
          if (tokens == keys && next.whole<Config>()) {
            // Most tiles: code without a branch that is taken but the loop's, as one costs 20 cycles and more, and that
            // of a run's first tile. Their scores are not masked, nor, as where they are capped there is no such loop, capped.
            for (;;) {
              if constexpr (!rotates_own<Config>) take_query_for(next);
              find_scores();
#if KGEN_SCALED_QUERIES
              if (!plain) {
                if (!softmax.started()) start_rows();
                make_exponents();
              }
#else
              if (!started) start_rows();
#endif
              within_range = find_weights();
              if (!within_range) break;
              finish_tile();
              if (!next.whole<Config>()) break;
            }
            started = 1;
            if (within_range) continue;
          } else
#endif
          {
            complete_values(tokens);
            take_query_for(next);
            find_scores();
            cap_and_mask(held, next, true);
            ends_part = Config::folds && !folds_apart && next.begins_part();
            if (ends_part || !started) {
              if (ends_part) ended = softmax, begin_rows();
              start_rows();
            }
            make_exponents();
            within_range = find_weights();
          }
          if constexpr (!Config::bounded_scores) {
            if (!within_range) weigh_again(held, added);
          }
          finish_tile();
          if (ends_part) fold_part(ended);
        }

        complete_values(tokens);
        wait_for_values();
        take_turn();
        ptx::wgmma_fence();
        start_outputs();
        pass_turn();
        if constexpr (!ends_under_products) take_outputs();
        if (!folds_apart || !next.exists()) break;
        fold_part(softmax);
        begin_rows();
        take_query_for(next);
      }
    }
    part.last = true;
    const bool folded = Config::folds && !part.alone();
    WarpRows<1> rows;
    RowEnds<1> ends;
    auto find_rows = [&]() { rows = warp_rows<Config, 1>(params, item(), ptx::here(kv_head), ptx::here(first_row()), ptx::here(lane)); };
    auto find_ends = [&]() {
      softmax.finish();
      ends = row_ends<Config>(params, item(), kv_head, softmax, score_exponent<Config>(params), ptx::here(first_row()), ptx::here(lane));
    };
    if constexpr (ends_under_products) {
      find_rows();
      if (!folded) find_ends();
      if (tile.exists()) take_outputs();
    }
    release_keys(key.stage);  // of the tile that does not exist
    key.advance();

    if (!tile.exists()) {
      wait_for_query();
      if (gives_queries_early) free_query();
    }
    if (folded) {
      ends = fold_rows<Config>(params, in_memory, ptx::here(kv_head), part, output, softmax, score_exponent<Config>(params), ptx::here(first_row()), ptx::here(lane));
    } else if constexpr (!ends_under_products) {
      find_ends();
    }
    if constexpr (!ends_under_products) find_rows();
#if KGEN_EARLY_QUERIES
    store_rows_directly<Config>(rows, output, ends, where_dear(lane));
#else
    // The warp's last reads of its own query rows are behind it; no other warp reads them.
    store_rows<Config, 1>(rows, output, ends, where_dear(lane), shared.query[query.stage]);
    free_query();
#endif
    query.advance();
  }
  if (warpgroups > 1 && warpgroup == 0) ptx::named_barrier_sync(2, 256);  // what the one before passed last
}

}  // namespace kgen
