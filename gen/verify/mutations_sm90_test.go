package verify

import (
	"strings"

	"github.com/kgen-project/kgen/gen/spec"
)

const (
	rotatedWait = "ptx::barrier_wait(ptx::shared_address(&shared.key_rotated[key.stage]), key.parity);"
	copiedWait  = "ptx::barrier_wait(ptx::shared_address(&shared.key_full[key.stage]), key.parity);"
	publishKeys = "auto publish_keys = [&]() {\n    ptx::fence_async_shared();\n    ptx::sync_warp();\n"
	lastFence   = "ptx::fence_async_shared();  // before the next copy to the stage\n      ptx::barrier_arrive(ptx::shared_address(&shared.key_rotated"
	publish     = "void publish() {\n    ptx::sync_warp();\n"
)

// Those of family sm90.
var mutationsSM90 = []mutation{
	{"no wait for rotated keys", spec.Extend, spec.Raw, rotatedWait, copiedWait, false},
	{"no wait for copied keys", spec.Prefill, spec.Raw, "auto wait_for_keys = [&]() { " + copiedWait + " };", "auto wait_for_keys = [&]() {};", false},
	{"no fence behind a rotation", spec.Extend, spec.Raw, publishKeys, "auto publish_keys = [&]() {\n    ptx::sync_warp();\n", false},
	{"one lane ahead of its warp", spec.Extend, spec.Raw, publishKeys, "auto publish_keys = [&]() {\n    ptx::fence_async_shared();\n", false},
	{"a warp's rotation too few to wait for", spec.Extend, spec.Raw, "? 1 : Config::rotators);", "? 1 : Config::rotators - 1);", false},
	{"keys at their positions in the segment", spec.Extend, spec.Raw, "return tile.offset + tile.begin;", "return tile.begin;", false},
	{"keys at the first position of the run", spec.Prefill, spec.Raw, "return tile.offset + tile.begin;", "return tile.offset;", false},
	{"shared: keys moved by an offset", spec.SharedDecode, spec.Raw, "return tile.begin;", "return tile.offset + tile.begin;", false},
	{"shared: queries of the first run for all", spec.SharedDecode, spec.Raw, "return rotated_base != tile.offset;", "return rotated_base == no_base;", false},
	{"the first keys' high terms for all", spec.Prefill, spec.Raw, "base + s.round * lanes;", "base;", false},
	{"a high term that is its own low one", spec.Extend, spec.Raw, "add_two_angles(coming[i][0], coming[i][1])", "coming[i][1]", false},
	{"the high terms of no tile", spec.Prefill, spec.Raw, "(slots - 1) * rounds : 1)) fetch(next_tile);", "(slots - 1) * rounds : 1)) fetch({-1, 0, 0, 0, 0, 0});", false},
	{"the high terms of the tile before", spec.Extend, spec.Raw, "first_key_position(now), tile,", "first_key_position(now), now,", false},
	{"high terms that stay where they were fetched", spec.Extend, spec.Raw, "rotator.publish();\n      rotator.rotate", "rotator.rotate", false},
	{"no high terms of an item's first tile", spec.Extend, spec.Raw, "rotator.fetch(tile);\n    publish_queries", "publish_queries", false},
	{"rows past the end of the table", spec.Extend, spec.Raw, "if (position > last) position = last < 0 ? 0 : last;", remove, false},
	{"a round of keys left as it was", spec.Extend, spec.Raw, "step < steps; ++step)", "step < steps - 1; ++step)", false},
	{"keys of another lane's angle", spec.Extend, spec.Raw, "return Own::first() + ((ptx::lane_index() - first)", "return Own::first() + ((ptx::lane_index() + 1 - first)", false},
	{"keys rotated the other way in half", spec.Extend, spec.Raw, "ptx::fp16_negate(ptx::fp16_multiply(y[i], angles.sin[i]))", "ptx::fp16_multiply(y[i], angles.sin[i])", false},
	{"angles added as if a sine were none", spec.Extend, spec.Raw, "ptx::fp16_negate(ptx::fp16_multiply(a.sin[i], b.sin[i]))", "0", false},
	{"scores of scaled queries", spec.Prefill, spec.Raw, "(log2_e / Config::query_scale)", "log2_e", false},
	{"pages one over the other", spec.Decode, spec.Segment, "target_box = bytes + box * Boxes<Config>::rows * Tile::row_bytes;", "target_box = bytes;", false},
	{"decode: no wait for rotated keys", spec.Decode, spec.Raw, "shared.key_rotated[stage]), parity)", "shared.key_full[stage]), parity)", false},
	{"decode: a warp's rotation too few to wait for", spec.Decode, spec.Raw, "shared.key_rotated[s]), 32 * Config::rotators)", "shared.key_rotated[s]), 32 * (Config::rotators - 1))", false},
	{"decode: no wait for copied keys", spec.Decode, spec.Raw, "ptx::barrier_wait(ptx::shared_address(&shared.key_full[place.stage]), place.parity);", remove, false},
	{"decode: no fence behind a rotation", spec.Decode, spec.Raw, lastFence, lastFence[strings.Index(lastFence, "ptx::barrier"):], false},
	{"decode: keys at the first position of the run", spec.Decode, spec.Raw, "return tile.offset + tile.begin;", "return tile.offset;", false},
	{"decode: high terms over those in use", spec.Decode, spec.Raw, publish, publish[:strings.Index(publish, "    ptx::sync")], false},
	{"decode: a round of keys left as it was", spec.Decode, spec.Raw, "i < rounds; ++i) {\n        uint4 x", "i < rounds - 1; ++i) {\n        uint4 x", false},
	{"decode: the high terms of no tile", spec.Decode, spec.Raw, "fetch(next_tile);\n      wait();", "fetch({-1, 0, 0, 0, 0, 0});\n      wait();", false},

	// Queries that the kernel ahead makes.
	{"decode: queries read before they are made", spec.Decode, spec.Segment, "int lane) {\n  ptx::wait_for_previous_kernel();\n", "int lane) {\n", false},

	// The zeros of values that a tile does not have.
	{"zeros by another warpgroup than the first to use them", spec.Extend, spec.Segment, "if (Boxes<Config>::full(tokens) || warpgroup > 0) return;", "if (Boxes<Config>::full(tokens) || warpgroup == 0) return;", false},
	{"no fence behind zeros", spec.Extend, spec.Segment, "tokens, ptx::thread_index());\n      ptx::fence_async_shared();", "tokens, ptx::thread_index());", false},
	{"zeros behind the last full box alone", spec.Extend, spec.Segment, "int i = tokens * chunks + thread; i < end", "int i = end * chunks + thread; i < Config::keys", false},
	{"boxes that hold no tokens from a page", spec.Extend, spec.Segment, ": no_page;", ": 0;", false},
	{"decode: boxes that hold no tokens from a page", spec.Decode, spec.Segment, ": no_page;", ": 0;", false},
	{"decode: no zeros in a last box", spec.Decode, spec.Segment, "!Boxes<Config>::full(tokens)) {", "false) {", false},
	{"zeros by half of a warpgroup", spec.Extend, spec.Segment, "clear_missing_values<Config, 128>(", "if (ptx::thread_index() < 64) clear_missing_values<Config, 128>(", false},

	// What consumers are told of a tile.
	{"a tile without its mask", spec.Prefill, spec.Segment, "? is_masked : 0", "? 0 : 0", false},
	{"a tile that a window cuts without its mask", spec.Extend, spec.Segment, "if (tile.begin < keys.begin && last >= keys.sinks) return true;", remove, true},
	{"a tile that a window cuts for the first query token alone", spec.Extend, spec.Segment, "token < own.count; token += 32", "token < 1; token += 32", true},
	{"a tile that sink tokens reach into as one of them", spec.Extend, spec.Segment, "last >= keys.sinks", "tile.begin >= keys.sinks", true},
	{"a window by another item's positions", spec.Extend, spec.Segment, "if (t.begins_item()) keep_last_position", "if (t.begins_item() && t.item == 0) keep_last_position", true},

	// A block's work and its results.
	{"fixed shares that all go forwards", spec.Decode, spec.Segment, "all - 1 - worker());", "worker() + 1);", false},
	{"decode: no wait for the values", spec.Decode, spec.Segment, "ptx::barrier_wait(ptx::shared_address(&shared.value_full[stage]), parity);", remove, false},
	{"decode: keys given back before the scores", spec.Decode, spec.Segment, "Accumulator<m_tiles, keys> scores;\n      query_times",
		"Accumulator<m_tiles, keys> scores;\n      arrive(shared.key_free[stage]);\n      query_times", false},
	{"decode: the last item merged before all is there", spec.Decode, spec.Segment,
		"ptx::barrier_wait(ptx::shared_address(&shared.result_full[result.stage]), result.parity);\n      merge_warps", "merge_warps", false},
	{"decode: the last item merged by one warp's share", spec.Decode, spec.Segment, "scale_log2, warp, consumers, lane);", "scale_log2, 0, consumers, lane);", false},

	// Items of several parts.
	{"a learned sink at the wrong weight", spec.Extend, spec.Segment, "sink_exponent - lse2", "sink_exponent", true},
	{"decode: parts that are not told apart", spec.Decode, spec.Segment, "ended = r.ends_part != 0;", "ended = false;", false},
	{"decode: no part is the last", spec.Decode, spec.Segment, "task.part.last = run == item.run_end;", "task.part.last = false;", false},
	{"decode: the last part folded as one before it", spec.Decode, spec.Segment, "last ? number : number & ~(number + 1)", "number & ~(number + 1)", false},
	{"decode: one level of kept results for all", spec.Decode, spec.Segment, "(level * rows + row) * dim", "row * dim", false},
	{"decode: one level of kept log-sum-exps for all", spec.Decode, spec.Segment, "+ level * rows + row;", "+ row;", false},
	{"decode: results kept where there is no room", spec.Decode, spec.Segment, "level < kept.levels ? kept.memory", "true ? kept.memory", false},
	{"decode: a log-sum-exp that is not kept", spec.Decode, spec.Segment, "if (lane % row_lanes == 0) *lse_of(above) = lse;", remove, false},
	{"decode: a learned sink in partial results", spec.Decode, spec.Segment, "if (is_final(item)) return folded_normaliser", "return folded_normaliser", true},
}

// Those of queries that warps beside the copiers rotate by arithmetic, and of what consumers do in any kernel.
var mutationsBeside = []mutation{
	{"exponents of another base", spec.Extend, spec.Segment, "(log2_e / Config::query_scale)", "(1.f / Config::query_scale)", false},
	{"an item's last values not copied", spec.Extend, spec.Segment, "if (before.copies.tile.exists()) values.copy(before);", "if (before.copies.tile.exists() && t.copies.tile.exists()) values.copy(before);", false},
	{"the first head's vectors for all", spec.Extend, spec.Segment, "column = kv_head * Tile::columns,", "column = 0,", false},

	// Queries that the kernel ahead makes.
	{"first queries read before they are made", spec.Extend, spec.Segment, "  ptx::wait_for_previous_kernel();\n  if constexpr (!rotates_own", "  if constexpr (!rotates_own", false},
	{"further queries read before they are made", spec.Extend, spec.Segment, "int thread) {\n  ptx::wait_for_previous_kernel();\n", "int thread) {\n", false},

	// Whole tiles, and rows that subtract nothing.
	{"keys gone before their weights are right", spec.Extend, spec.Segment, "held = key.stage;\n", "held = key.stage;\n        release(shared.key_free[held]);\n", false},
	{"a tile whole, whatever begins with it", spec.Extend, spec.Segment, "return (rotates_own<Config> ? word : word & ~is_rotations_first) == Config::keys;", "return tokens() == Config::keys;", false},
	{"whole tiles behind one that is not", spec.Extend, spec.Segment, "if (tokens == keys && next", "if (next", false},
	{"nothing subtracted from a whole tile's exponents", spec.Extend, spec.Segment, "                make_exponents();\n              }", "              }", false},
	{"something subtracted for nothing", spec.Extend, spec.Segment, "plain = score_exponent<Config>(params) == 1.f && softmax.plain();", "plain = 1;", false},
	{"far maxima taken for near ones", spec.Extend, spec.Segment, "near = 32.f;", "near = 1e30f;", false},

	// What consumers are told of a tile.
	{"tiles all whole", spec.Extend, spec.Segment, "(tokens < Config::keys ? tokens : Config::keys) |", "Config::keys |", false},
	{"no tile a part's first", spec.Extend, spec.Segment, "? is_parts_first : 0", "? 0 : 0", false},
	{"no tile a rotation's first", spec.Extend, spec.Segment, "? is_rotations_first : 0", "? 0 : 0", false},

	// A block's work and its results.
	{"no wait for the work", spec.Extend, spec.Segment, "ring.wait(stage, parity);", remove, false},
	{"a piece of work left out", spec.Extend, spec.Segment, "workers() + ptx::shuffle(taken, 0)", "workers() + 1 + ptx::shuffle(taken, 0)", false},
	{"a counter left as it is", spec.Extend, spec.Segment, "counter[0] = counter[1] = 0;", "{}", false},

	// Items of several parts.
	{"parts that are not told apart", spec.Extend, spec.Segment, "run.ends_part != 0 && tile.begin", "false && tile.begin", false},
	{"a part that ends with the first tile of its last run", spec.Extend, spec.Segment, " && tile.begin + Config::keys >= tile.end", remove, false},
	{"a part's softmax goes on in the next", spec.Extend, spec.Segment, "if (ends_part) ended = softmax, begin_rows();", "if (ends_part) ended = softmax;", false},
	{"a part's outputs go on in the next", spec.Extend, spec.Segment, "++part.number;\n      output.clear();", "++part.number;", false},
	{"parts that are not counted", spec.Extend, spec.Segment, "++part.number;", remove, false},
	{"parts all of one weight", spec.Extend, spec.Segment, "ptx::exp2_approx(before - maximum)", "1.f", false},
	{"a part before the last folded as the last", spec.Extend, spec.Segment, "last ? number : number & ~(number + 1)", "number", false},
	{"the last part folded as one before it", spec.Extend, spec.Segment, "last ? number : number & ~(number + 1)", "number & ~(number + 1)", false},
	{"the next part's weights for the one before", spec.Extend, spec.Segment, "before * by.before);", "before * by.after);", false},
	{"one level of scratch for all", spec.Extend, spec.Segment, "scratch + level * q_count", "scratch", false},
	{"scratch of the item before", spec.Extend, spec.Segment, "scratch + level", "level", false},
	{"a log-sum-exp that is not kept", spec.Extend, spec.Segment, "if (lane % 4 == 0) *lse_of(h, above) = ends.lse[0][h];", remove, false},
}

// Mistakes that lateKeyCase shows: of a warp whose rows subtract nothing, until a late key has one of them do, and keys
// behind it.
var mutationsLate = []mutation{
	{"weights out of range", spec.Extend, spec.Segment, "weigh_again(held, added);", "{}", false},
	{"outputs so far not rescaled", spec.Extend, spec.Segment, "output.scale_row(0, h, factor);", remove, false},
	{"sums so far not rescaled", spec.Extend, spec.Segment, "softmax.sum[0][h] *= factor;", remove, false},
	{"the sum of weights out of range", spec.Extend, spec.Segment, "added[h] = softmax.weigh_row(scores, 0, h, score_exponent<Config>(params));", "softmax.weigh_row(scores, 0, h, score_exponent<Config>(params));", false},
	{"a row's maximum from another's keys", spec.Extend, spec.Segment, "softmax.move(0, h, top,", "softmax.move(0, h, ptx::shuffle_xor(top, 4),", false},
	{"products of a warp's own, of whole tiles", spec.Extend, spec.Segment, "if (tokens == keys && next.whole<Config>()) {", "if (tokens == keys && next.whole<Config>() && plain) {", false},
	{"a warp's own wait for outputs", spec.Extend, spec.Segment, wholeWeights, "if (plain) " + wholeWeights[:strings.Index(wholeWeights, "\n")] + "\n              else " + wholeWeights, false},
	{"weights out of range among whole tiles", spec.Extend, spec.Segment, "if (!within_range) break;", remove, false},
	{"nothing subtracted any more once it was so", spec.Extend, spec.Segment, "      find_plain();\n    };", "    };", false},
	{"the range of the first row's weights alone", spec.Extend, spec.Segment, "== 0) exceeds = ptx::any(added[0] > most || added[1] > most);", "== 0) exceeds = ptx::any(added[0] > most);", false},
	{"the range of the second row's weights alone", spec.Extend, spec.Segment, "== 0) exceeds = ptx::any(added[0] > most || added[1] > most);", "== 0) exceeds = ptx::any(added[1] > most);", false},
}

const wholeWeights = "within_range = find_weights();\n              if (!within_range) break;"

// Of rows that are compared one after the other.
var mutationsLateAligned = []mutation{
	{"the range of the first row's weights alone", spec.Extend, spec.Segment, "exceeds = exceeds | ptx::any(added[1] > most);", "{}", false},
	{"the range of the second row's weights alone", spec.Extend, spec.Segment, "exceeds = exceeds | ptx::any(added[1] > most);", "exceeds = ptx::any(added[1] > most);", false},
}

// Of rows that are compared together, ahead of the wait for the next keys.
var mutationsLateOwn = []mutation{
	{"the range of the first row's weights alone", spec.Extend, spec.Segment, bothEarly, "exceeds = ptx::any(added[0] > most);\n          }", false},
	{"the range of the second row's weights alone", spec.Extend, spec.Segment, bothEarly, "exceeds = ptx::any(added[1] > most);\n          }", false},
}

const bothEarly = "exceeds = ptx::any(added[0] > most || added[1] > most);\n          }"

const (
	allAligned    = "rotators_meet();  // all that is aligned is there"
	firstAligned  = "ptx::named_barrier_sync(first_aligned_barrier, first_align_threads<Config>);"
	waitForPlace  = "ptx::barrier_wait(ptx::shared_address(&shared.query_free[query.stage][part]), query.parity ^ 1);"
	rotated       = "rotator.rotate(shared.query[query.stage], "
	publishedPart = "ptx::fence_async_shared();\n      publish(part);"
	finalRows     = "if (is_final(item)) return {first, 2ll * params.out_token_stride, 2 * Config::v_head_dim};"
)

// Those of queries that the matrix units rotate. (A missing barrier or fence for R alone is
// not among them: R is written through plain pointers, where the emulator looks for no races,
// and a product is performed when all four warps have made it.)
var mutationsAligned = []mutation{
	{"no wait for other warps' aligned queries", spec.Extend, spec.Segment, allAligned, remove, false},
	{"no wait for the first aligned queries", spec.Extend, spec.Segment, firstAligned, remove, false},
	{"no wait for a place", spec.Extend, spec.Segment, waitForPlace, remove, false},
	{"aligned over queries in use", spec.Extend, spec.Segment, "if (head == 0) free.template wait<Config::rows / 64>();", remove, false},
	{"aligned over the second rows in use", spec.Extend, spec.Segment, "free.template wait<Config::rows / 64>();", "free.template wait<1>();", false},
	{"no fence behind rotated queries", spec.Extend, spec.Segment, publishedPart, "publish(part);", false},
	{"queries published before they are there", spec.Extend, spec.Segment, rotated + "wait_for_place, publish);", rotated + "[&](int part) { wait_for_place(part), publish(part); }, [](int) {});", false},
	{"all wait for the first rows alone", spec.Extend, spec.Segment, "return query_parts == 1 ? 0 : row / 64;", "return 0;", false},
	{"an item without keys, half published", spec.Extend, spec.Segment, "part < shared.query_parts; ++part) wait_for_place(part), publish(part);", "part < 1; ++part) wait_for_place(part), publish(part);", false},
	{"only the first item's queries are aligned", spec.Extend, spec.Segment, "align_queries<Config, aligned_rotator_threads>(aligned, params, item, work.kv_head, ptx::here(thread));", remove, false},
	{"a rotation for each run", spec.Extend, spec.Segment, "tile = next_rotation(params, tile, item.run_end);  // not sooner", "tile = first_tile(params, tile.run + 1, item.run_end);  // not sooner", false},
	{"R without zeros", spec.Extend, spec.Segment, "i < rotation.size; i +=", "i < 0; i +=", false},

	// Angles.
	{"aligned with the first token of all", spec.Extend, spec.Segment, "const int position = query_rows<Config>(params, item, work.kv_head).positions[0];", "const int position = pointer<int32_t>(params.positions)[0];", false},
	{"aligned with position 0", spec.Extend, spec.Segment, "pointer<float>(params.rope), rows.positions[0], query_factor", "pointer<float>(params.rope), 0, query_factor", false},
	{"the last run's rotation for all", spec.Extend, spec.Segment, "position - rotation_base(tile)", "position - rotation_base(first_tile(params, item.run_end - 1, item.run_end))", false},
	{"the first run's rotation for all", spec.Extend, spec.Segment, "position - rotation_base(tile)", "position - rotation_base(first_tile(params, item.run_begin, item.run_end))", false},
	{"R by position alone", spec.Extend, spec.Segment, "position - rotation_base(tile)", "position", false},
	{"R: backward angles turn forward", spec.Extend, spec.Segment, "position < 0 ? -sine : sine", "sine", false},
	{"R: high level of the table", spec.Extend, spec.Segment, "(magnitude >> Config::rope_low_bits)) * row", "(magnitude >> (Config::rope_low_bits + 1))) * row", false},
	{"R: sign of the sine", spec.Extend, spec.Segment, "ptx::pack<ptx::fp16>(cos, -sin)", "ptx::pack<ptx::fp16>(cos, sin)", false},
	{"R turns the other way", spec.Extend, spec.Segment, "sin = factor * a.y;", "sin = -factor * a.y;", false},
	{"R: pairs that are not rotated turn", spec.Extend, spec.Segment, "i < Config::rotary_dim / 2 ? angle_at", "true ? angle_at", false},
	{"aligned: sign of the sine", spec.Extend, spec.Segment, "place(pair, x * a.cos[pair] - y * a.sin[pair],", "place(pair, x * a.cos[pair] + y * a.sin[pair],", false},
	{"aligned without the factor", spec.Extend, spec.Segment, "Config::query_scale : Config::query_scale * params.rope_scale;", "Config::query_scale : Config::query_scale;", false},
	{"aligned without the scale", spec.Extend, spec.Segment, "scale = Config::query_scale;\n  static constexpr bool keeps_angles", "scale = 1.f;\n  static constexpr bool keeps_angles", false},
	{"scores of scaled queries", spec.Extend, spec.Segment, "(log2_e / Config::query_scale)", "log2_e", false},
	{"not rotated and not scaled", spec.Extend, spec.Segment, "angles = no_angles(target.scale);", "angles = no_angles(1.f);", false},
	{"not rotated and not aligned", spec.Extend, spec.Segment, "rotated = has_angle || target.scale != 1.f;", "rotated = has_angle;", false},

	// Places.
	{"R's blocks swapped", spec.Extend, spec.Segment, "PairPlace::block(pair) * 2 * rotation", "(1 - PairPlace::block(pair)) * 2 * rotation", false},
	{"R's pairs in another order", spec.Extend, spec.Segment, "PairPlace::index(pair) * (2", "(3 - PairPlace::index(pair)) * (2", false},
	{"the next unit's block of R", spec.Extend, spec.Segment, "rotation.block(unit), stride, stride", "rotation.block(unit / 2), stride, stride", false},
	{"blocks as far apart as the first unit's", spec.Extend, spec.Segment, "rotation.stride(unit) - rotation.stride(0)", "0", false},
	{"aligned chunks swapped", spec.Extend, spec.Segment, "first = make_uint4(block[0][0], block[0][1], block[0][2], block[0][3]);", "first = make_uint4(block[1][0], block[1][1], block[1][2], block[1][3]);", false},
	{"eight rows for sixteen", spec.Extend, spec.Segment, "first_row + lane % 16, 2 * unit", "first_row + lane % 8, 2 * unit", false},
	{"one block for both", spec.Extend, spec.Segment, "2 * unit + lane / 16));", "2 * unit));", false},
	{"a warp's rows of another chunk", spec.Extend, spec.Segment, "second == 0 ? query.byte(to_row", "second != 0 ? query.byte(to_row", false},
	{"the second rows in the first's place", spec.Extend, spec.Segment, "ptx::stmatrix_x4(to + part * (64 * query.row_bytes), chunks);", "ptx::stmatrix_x4(to, chunks);", false},
}

func sm90(s *spec.Spec) {
	s.Targets = []spec.Target{"sm_90a"}
	s.Rope.MaxPosition = 512 // tiles often stand at the end of a short table
}

// beside is a spec for mutationsBeside, with tiles so short that cases have whole ones.
func beside(s *spec.Spec) {
	sm90(s)
	s.Tiles = map[spec.Kind]spec.Tile{spec.Extend: {Rows: 128, Keys: 64, Stages: 3, Warps: 12}}
}

// aligned is for a tile that aligns queries, of which half is rotated.
func aligned(s *spec.Spec) {
	sm90(s)
	s.Rope.RotaryDim, s.Rope.Frequencies, s.Rope.AttentionFactor = 32, s.Rope.Frequencies[:16], 1.3
	s.Tiles = map[spec.Kind]spec.Tile{spec.Extend: {Rows: 128, Keys: 64, Stages: 2, Warps: 16}}
}

// Those of queries that are rotated in pairs of fp16, with one place for a tile of them.
var mutationsAlignedPairs = []mutation{
	{"no wait for a place", spec.Extend, spec.Segment, waitForPlace, remove, false},
	{"a place given back once an item", spec.Extend, spec.Segment, "if (Config::queries == 1 && next.begins_rotation()) free_query();", remove, false},
	{"a place given back for any tile", spec.Extend, spec.Segment, "Config::queries == 1 && next.begins_rotation()", "Config::queries == 1 && next.exists()", false},
	{"one warpgroup's place for both", spec.Extend, spec.Segment, "shared.query_free[query.stage][part_of_query]", "shared.query_free[query.stage][0]", false},
	{"aligned: y before x", spec.Extend, spec.Segment, "ptx::store_16(to, first);\n    ptx::store_16(to + chunk_bytes, second);", "ptx::store_16(to, second);\n    ptx::store_16(to + chunk_bytes, first);", false},
	{"tokens one over the other", spec.Extend, spec.Segment, "first + row / Config::group * token_bytes", "first", false},
	{"heads one over the other", spec.Extend, spec.Segment, finalRows, strings.Replace(finalRows, "2 * Config::v_head_dim", "0", 1), false},
	{"final: heads as far apart as partial results'", spec.Extend, spec.Segment, finalRows, strings.Replace(finalRows, "2 * Config::v_head_dim", "4 * Config::v_head_dim", 1), false},
	{"partial: slots of another stride", spec.Extend, spec.Segment, "4 * (item.slot_stride * vectors) * Config::v_head_dim, 4", "4 * vectors * Config::v_head_dim, 4", false},
	{"partial: tokens as far apart as final results'", spec.Extend, spec.Segment, "4 * (item.slot_stride * vectors) * Config::v_head_dim, 4", "2 * (item.slot_stride * vectors) * Config::v_head_dim, 4", false},
	{"final where partial results will be", spec.Extend, spec.Segment, "(final ? params.out : params.partial_out) + output", "(params.partial_out) + output", false},
	{"rows that do not exist are stored", spec.Extend, spec.Segment, "if (token_row >= count) return;", remove, false},
	{"rows that do not exist are read", spec.Extend, spec.Segment, "rows.bytes(row < count ? row : 0)", "rows.bytes(row)", false},
	{"aligned: all for the first heads", spec.Extend, spec.Segment, "i / Units::count % shares * heads", "0", false},
	{"the first unit's angles for all", spec.Extend, spec.Segment, "rotation.unit[unit].load()", "rotation.unit[0].load()", false},
	{"one angle for two pairs", spec.Extend, spec.Segment, "b = angle_at<Config>(rope, position, 2 * two + 1);", "b = a;", false},
	{"a turn's rows in the first one's place", spec.Extend, spec.Segment, "const int row = first_row + turn * rows_at_a_time;", "const int row = first_row;", false},
	{"rows loaded over those that are needed", spec.Extend, spec.Segment, "coming_x[turn % ahead] = ptx::load_16(from)", "coming_x[0] = ptx::load_16(from)", false},

	// Parts that are folded apart, and rows one after the other.
	{"apart: parts that are not told apart", spec.Extend, spec.Segment, "folds_apart && next.begins_part())", "false && next.begins_part())", false},
	{"apart: a part's softmax goes on in the next", spec.Extend, spec.Segment, "fold_part(softmax);\n        begin_rows();", "fold_part(softmax);", false},
	{"apart: a part that keeps the queries of the one before", spec.Extend, spec.Segment, "begin_rows();\n        take_query_for(next);", "begin_rows();", false},
	{"apart: a part's outputs go on in the next", spec.Extend, spec.Segment, "++part.number;\n      output.clear();", "++part.number;", false},
	{"apart: outputs folded before they are there", spec.Extend, spec.Segment, "if constexpr (!ends_under_products) take_outputs();\n        if (!folds_apart", "if (!folds_apart", false},
	{"rows folded one onto the other", spec.Extend, spec.Segment, "if (!both) load(h);", "if (!both) load(0);", false},
}

// alignedPairs is a spec for them.
func alignedPairs(s *spec.Spec) {
	sm90(s)
	s.Model.QueryHeads = 5 * s.Model.KVHeads // more than a thread aligns at a time
	s.Model.HeadDim, s.Model.VHeadDim = 256, 256
	s.Rope = rotaryOf(96)
	s.Tiles = map[spec.Kind]spec.Tile{spec.Extend: {Rows: 128, Keys: 64, Stages: 2, Warps: 16}}
}

// Those of raw keys with more units than a rotator has, and some that are not rotated.
var mutationsUnits = []mutation{
	{"a unit's keys that are the one's before", spec.Extend, spec.Raw, "places(keys, unit(slot))", "places(keys, unit(0))", false},
	{"a share of the high terms of another unit", spec.Extend, spec.Raw, "slot = term % slots;", "slot = 0;", false},
	{"the first round's high terms for all", spec.Extend, spec.Raw, "(Warps * rounds) + step % rounds].load()", "(Warps * rounds)].load()", false},
	{"the high terms of no tile, behind more chunks", spec.Extend, spec.Raw, "(slots - 1) * rounds : 1)) fetch(next_tile);", "(slots - 1) * rounds : 1)) fetch({-1, 0, 0, 0, 0, 0});", false},
	{"the high terms of the step before", spec.Extend, spec.Raw, "next = others ? terms_of(step + 1) : now;", "next = others ? terms_of(step) : now;", false},
	{"the first round's keys for all", spec.Extend, spec.Raw, "at[slot].load(step % rounds,", "at[slot].load(0,", false},
	{"the low terms of another unit", spec.Extend, spec.Raw, "y[step % ahead], now, low[slot][", "y[step % ahead], now, low[0][", false},
	{"elements that are not rotated left as bf16", spec.Extend, spec.Raw, "pass(keys);", remove, false},
}

// units is a spec for them.
func units(s *spec.Spec) {
	sm90(s)
	s.Model.HeadDim, s.Model.VHeadDim = 128, 128
	s.Rope = rotaryOf(96)
}

// Those of queries that are aligned and, for a run, scaled so that scores are exponents.
var mutationsAlignedScaled = []mutation{
	{"aligned and never scaled", spec.Extend, spec.Segment, "position - rotation_base(tile), rotation_factor<Config>(params));", "position - rotation_base(tile), 1.f);", false},
	{"aligned and scaled by all of it", spec.Extend, spec.Segment, "(log2_e / Config::query_scale)", "log2_e", false},
}

// alignedScaled is a spec for them.
func alignedScaled(s *spec.Spec) {
	sm90(s)
	s.Tiles = map[spec.Kind]spec.Tile{spec.Extend: {Rows: 128, Keys: 64, Stages: 2, Warps: 16}}
}

// Mistakes that farScoresCase shows: of rows from whose first exponents something must be subtracted.
var mutationsFar = []mutation{
	{"first weights out of range", spec.Prefill, spec.Segment, "started = weigh_first_again(key.stage, next);", "{}", false},
	{"first weights too small", spec.Prefill, spec.Segment, "softmax.least_weight <= sum && ", "", false},
	{"first weights too large", spec.Prefill, spec.Segment, " && sum <= most_weight<Element>;", ";", false},
	{"the range of the first row's first weights alone", spec.Prefill, spec.Segment, "!within_range(0) | !within_range(1)", "!within_range(0)", false},
	{"the range of the second row's first weights alone", spec.Prefill, spec.Segment, "!within_range(0) | !within_range(1)", "!within_range(1)", false},
	{"the first maximum not taken", spec.Prefill, spec.Segment, "          softmax.maximum[0][h] = top;\n", "", false},
	{"the first weights kept", spec.Prefill, spec.Segment, "softmax.sum[0][h] = softmax.weigh_row(scores, 0, h, score_exponent<Config>(params));\n          to_fragments<Element>(weights, scores, h);", "softmax.sum[0][h] = softmax.weigh_row(scores, 0, h, score_exponent<Config>(params));", false},
}

// Of a cap so high that rows whose scores it leaves far from 0 subtract their maximum.
var mutationsFarCapped = []mutation{
	{"weights bounded by any cap", spec.Prefill, spec.Segment, "bounded_scores = false", "bounded_scores = true", false},
}

// Of a cap so low that the exponents of its rows' scores add up to more than fp32 has numbers for.
var mutationsFarAboveCap = []mutation{
	{"denominators of any size multiplied", spec.Prefill, spec.Segment, "ptx::minimum_or_nan(score(i), 31.f)", "score(i)", false},
}

// Those of a cap that bounds weights.
var mutationsCapped = []mutation{
	{"capped exponents of another base", spec.Extend, spec.Segment, "constexpr float cap = Config::soft_cap * log2_e;", "constexpr float cap = Config::soft_cap;", false},
	{"capped by half of the exponent", spec.Extend, spec.Segment, "(2.f * log2_e / (Config::soft_cap", "(log2_e / (Config::soft_cap", false},
	{"a further part whose maximum is none", spec.Extend, spec.Segment, "if (ends_part) ended = softmax, begin_rows();", "if (ends_part) ended = softmax, softmax.clear();", false},
	{"scaled queries capped by the scale again", spec.Prefill, spec.Segment, "cap_scores<Config, true>(scores, product_exponent<Config>(params));", "cap_scores<Config, true>(scores, exponent_factor<Config>(params));", false},
	{"unseen keys capped together with others", spec.Extend, spec.Segment, "mask();\n        cap_scores<Config, true>", "cap_scores<Config, true>", false},
	{"the left reciprocals exchanged", spec.Extend, spec.Segment, "{x[1] * of_left, x[0] * of_left,", "{x[0] * of_left, x[1] * of_left,", false},
	{"the right reciprocals of the left", spec.Extend, spec.Segment, "x[3] * of_right, x[2] * of_right}", "x[3] * of_left, x[2] * of_left}", false},
}

// capped is for them, by tiles of which sequences have parts.
func capped(s *spec.Spec) {
	beside(s)
	s.Masks.SoftCap = 20
}

// Of tiles of keys behind the first.
var mutationsFarBehind = []mutation{
	{"the first maximum not subtracted any more", spec.Prefill, spec.Segment, "find_plain();\n      return softmax.started();", "return softmax.started();", false},
}

// Those of three warpgroups, each of which rotates its own queries. (That its warps meet behind that is not among them: see
// mutationsAligned.)
var mutationsOwn = []mutation{
	{"all rotate the first rows", spec.Extend, spec.Segment, "ptx::thread_index() % threads, warpgroup * rows);", "ptx::thread_index() % threads, 0);", false},
	{"own queries for the first run alone", spec.Extend, spec.Segment, "if constexpr (rotates_own<Config>) return rotate_own();", "if constexpr (rotates_own<Config>) return;", false},
	{"own queries for the run before", spec.Extend, spec.Segment, "rotation_base(read_tile(shared.tile[key.stage], lane)));", "rotation_base(first_tile(params, item().run_begin, item().run_end)));", false},
	{"own queries over those in use", spec.Extend, spec.Segment, "meet();  // all are done with those before", remove, false},
	{"no fence behind own queries", spec.Extend, spec.Segment, "ptx::fence_async_shared();\n  meet();", "meet();", false},
	{"a token's heads in the first part alone", spec.Extend, spec.Segment, "(row + head < first_row || row + head >= first_row + Rows)", "(row + head < first_row || row + Config::group > first_row + Rows)", false},
	{"work that is not read for those who bring queries near", spec.Extend, spec.Segment, "Config::rotators + query_prefetchers<Config> + copiers", "Config::rotators + copiers", false},
}

// own is a spec for them: a token's heads are of two warpgroups.
func own(s *spec.Spec) {
	sm90(s)
	s.Model.QueryHeads = 3 * s.Model.KVHeads
	s.Tiles = map[spec.Kind]spec.Tile{spec.Extend: {Rows: 192, Keys: 128, Stages: 2, Warps: 16}}
}

// Those of queries of one head of a KV head, whose rotation reads ahead. (That rows which do not exist are zeros is not among them: that
// what was there before leaves their neighbours' bits alone no case can show.)
var mutationsOneHead = []mutation{
	{"a token by the high terms of the one before", spec.Extend, spec.Segment, "if (next.high != now.high) load_terms(next.high, terms.high);", remove, false},
	{"a token turned as far forward as the one before", spec.Extend, spec.Segment, "terms.negative = next_position < 0;", remove, false},
	{"a token by the low terms of the one before", spec.Prefill, spec.Segment, "terms.low[i] = next_low[i];", "next_low[i] = terms.low[i];", false},
	{"the token behind at the position of the next", spec.Extend, spec.Segment, "rows.rotation(next_of(next_of(token)), base)", "rows.rotation(next_of(token), base)", false},
	{"the first token of a thread alone", spec.Prefill, spec.Segment, "first = next_first, second = next_second;", remove, false},
	{"tokens of a thread that end with another's", spec.Prefill, spec.Segment, "(token + each < end ? token + each : end) - 1;", "(token + each < end ? token + each - 1 : end) - 1;", false},
}

// oneHead is a spec for them.
func oneHead(s *spec.Spec) {
	sm90(s)
	s.Model.QueryHeads = s.Model.KVHeads
}

// Those of prefill that gives its queries back early.
var mutationsEarly = []mutation{
	{"the first half's queries for both", spec.Prefill, spec.Segment, "thread, part * part_rows);", "thread, 0);", false},
	{"both halves published as one", spec.Prefill, spec.Segment, "&shared.query_full[query.stage][part]));\n      }", "&shared.query_full[query.stage][0]));\n      }", false},
	{"an item's queries kept", spec.Prefill, spec.Segment, "if (gives_queries_early && !next.exists()) free_query();", remove, false},
	{"a lane's own block for the other's", spec.Prefill, spec.Segment, "odd ? even_block : odd_block", "odd ? odd_block : even_block", false},
	{"every row's results by those of rows that do not exist", spec.Prefill, spec.Segment, "if (exists) *reinterpret_cast<uint2*>", "*reinterpret_cast<uint2*>", false},
}

// early is a spec for them.
func early(s *spec.Spec) {
	sm90(s)
	s.Model.HeadDim, s.Model.VHeadDim = 256, 256
	s.Rope = rotaryOf(256)
}

// Those of two blocks that share an item.
var mutationsClusters = []mutation{
	{"both blocks' rows of the first tokens", spec.Extend, spec.Segment, "return {first, left < most ? left : most};", "return {0, left < most ? left : most};", false},
	{"results kept where the other block's are", spec.Extend, spec.Segment, "own_tokens<Config>(q_count).first * Config::group + row;\n}\n\n// What a folded row", "row;\n}\n\n// What a folded row", false},
	{"both blocks copy the same pages", spec.Extend, spec.Segment, "return block_in_cluster() * own;", "return 0;", false},
	{"its own copies alone expected", spec.Extend, spec.Segment, "(ToAll ? Boxes<Config>::of(tile) : Boxes<Config>::own_of(tile))", "Boxes<Config>::own_of(tile)", false},
	{"stages that one block gives back", spec.Extend, spec.Segment, "if (lane < cluster_blocks) ptx::barrier_arrive_at", "if (lane == block_in_cluster()) ptx::barrier_arrive_at", false},
	{"work found for both before one block has read it", spec.Extend, spec.Segment, "readers = cluster_blocks * (Readers + 1) - 1;", "readers = Readers;", false},
	{"work handed over without what it is", spec.Extend, spec.Segment, "ptx::barrier_arrive_expecting_at(full_there, sizeof(Work));", "ptx::barrier_arrive_expecting_at(full_there, 0);", false},
	{"work handed over in one place for all", spec.Extend, spec.Segment, "ptx::store_8_async(ptx::shared_of(ptx::shared_address(&work[place]), 1),", "ptx::store_8_async(ptx::shared_of(ptx::shared_address(&work[0]), 1),", false},
	{"a block that starts alone", spec.Extend, spec.Segment, "  ptx::cluster_start();\n", "", false},
	{"threads that start alone", spec.Extend, spec.Segment, "  ptx::sync_threads();\n  ptx::cluster_start();\n", "  ptx::cluster_start();\n", false},
	{"a block that ends before its stages are free", spec.Extend, spec.Segment, "for (int i = 0; i < Stages; ++i, place.advance()) wait_for_stage(free[place.stage], place.parity ^ 1);", remove, false},
	{"a block that ends before its work is read", spec.Extend, spec.Segment, "for (int last = turn; last < turn + Ring::places; ++last) ring.wait_for_readers(last);", remove, false},
}

func clusters(s *spec.Spec) {
	sm90(s)
	s.Tiles = map[spec.Kind]spec.Tile{spec.Extend: {Rows: 256, Keys: 64, Stages: 2, Warps: 12}}
}

const (
	waitForOwn  = "ptx::barrier_wait(ptx::shared_address(&shared.own_rotated[place.stage]), place.parity);"
	expectOther = "ptx::barrier_arrive_expecting(rotated, more ? bytes : 0);"
	giveOwn     = "ptx::shared_copy_to(ptx::shared_of(part, other), part, 1024, "
	eachPart    = "more && part < keys + bytes; part += 1024"
	ownBoxes    = "return left < 0 ? 0 : left < own ? left : own;"
)

// Those of raw keys of which two blocks give each other their halves.
var mutationsExchanged = []mutation{
	// The giver.
	{"no fence behind a rotation", spec.Extend, spec.Raw, publishKeys, "auto publish_keys = [&]() {\n    ptx::sync_warp();\n", false},
	{"keys given before they are rotated", spec.Extend, spec.Raw, waitForOwn, strings.Replace(waitForOwn, "own_rotated", "key_full", 1), false},
	{"a warp's rotation too few to give keys", spec.Extend, spec.Raw, "shared.own_rotated[s]), Config::rotators);", "shared.own_rotated[s]), Config::rotators - 1);", false},
	{"the other's half not expected", spec.Extend, spec.Raw, expectOther, "ptx::barrier_arrive(rotated);", false},
	{"the other's half expected of no tile", spec.Extend, spec.Raw, expectOther, "ptx::barrier_arrive_expecting(rotated, bytes);", false},
	{"the other's half given back", spec.Extend, spec.Raw, "+ own * bytes;", "+ other * bytes;", false},
	{"a half in the other's place", spec.Extend, spec.Raw, giveOwn, strings.Replace(giveOwn, "(part,", "(part - own * bytes + other * bytes,", 1), false},
	{"a part that is not given", spec.Extend, spec.Raw, eachPart, strings.Replace(eachPart, "+ bytes", "+ bytes - 1024", 1), false},
	{"all halves of the first stage", spec.Extend, spec.Raw, "shared.key[place.stage].bytes) + own", "shared.key[0].bytes) + own", false},
	{"half of a half given", spec.Extend, spec.Raw, "bytes = OwnKeys<Config>::count * ColumnTile", "bytes = OwnKeys<Config>::count / 2 * ColumnTile", false},
	{"work that is not read for the giver", spec.Extend, spec.Raw, "copiers - 1 + exchanges_keys<Config>>", "copiers - 1>", false},

	// Who waits for whom.
	{"no wait for rotated keys", spec.Extend, spec.Raw, rotatedWait, copiedWait, false},
	{"no wait for the other's half", spec.Extend, spec.Raw, rotatedWait, strings.Replace(rotatedWait, "key_rotated", "own_rotated", 1), false},
	{"rotators counted for the giver", spec.Extend, spec.Raw, "exchanges_keys<Config> ? 1 : Config::rotators", "Config::rotators", false},
	{"stages that either block gives back", spec.Extend, spec.Raw, "shared.key_free[s]), cluster_blocks * 4 * consumers", "shared.key_free[s]), 4 * consumers", false},
	{"a block that ends before its keys are given", spec.Extend, spec.Raw, "wait_for_all(shared.key_free, place);", remove, false},

	// Which half is whose.
	{"all is done to the first half", spec.Extend, spec.Raw, "return block_in_cluster() * count;", "return 0;", false},
	{"the first half copied by both", spec.Extend, spec.Raw, "return block_in_cluster() * own;", "return 0;", false},
	{"the first half rotated by both", spec.Extend, spec.Raw, "return Own::first() + ((ptx::lane_index() - first)", "return ((ptx::lane_index() - first)", false},
	{"both halves rotated by both", spec.Extend, spec.Raw, "rounds = Own::count / lanes", "rounds = Config::keys / lanes", false},
	{"the first round's low terms for both", spec.Extend, spec.Raw, "low[slot][step % alike]", "low[slot][0]", false},
	{"low terms of half as far", spec.Extend, spec.Raw, "add_two_angles(add_two_angles(two, half), half)", "add_two_angles(two, half)", false},
	{"the high terms of no tile", spec.Extend, spec.Raw, "if (steps < 3) fetch(next_tile);", "if (steps < 3) fetch({-1, 0, 0, 0, 0, 0});", false},
	{"elements of the second half left as bf16", spec.Extend, spec.Raw, "row < Own::first() + Own::count;", "row < Own::count;", false},
	{"high terms of the first half for both", spec.Extend, spec.Raw, "first_key_position(tile) + Own::first(),", "first_key_position(tile),", false},
	{"high terms past the end of the table", spec.Extend, spec.Raw, "tile.end - tile.begin - Own::first();", "tile.end - tile.begin;", false},
	{"keys copied to both", spec.Extend, spec.Raw, "copy_tile<Config, !exchanges_keys<Config>, false>(", "copy_tile<Config, true, false>(", false},
	{"fewer pages than none", spec.Extend, spec.Raw, ownBoxes, "return left < own ? left : own;", false},
	{"pages without tokens", spec.Extend, spec.Raw, ownBoxes, "return left < 0 ? 0 : own;", false},
}

// exchanged is a spec for them: of a head half is rotated.
func exchanged(s *spec.Spec) {
	sm90(s)
	s.Model.HeadDim, s.Model.VHeadDim = 128, 128
	s.Tiles = map[spec.Kind]spec.Tile{spec.Extend: {Rows: 256, Keys: 128, Stages: 2, Warps: 16}}
}
