package verify

import "github.com/kgen-project/kgen/gen/spec"

const (
	waitForKeys   = "ptx::cp_async_wait<pending>();  // this tile's keys"
	waitForValues = "ptx::cp_async_wait<pending>();  // this tile's values"
	keysThere     = "ptx::sync_threads();  // all threads' keys are there; all warps have left the previous tile"
	valuesThere   = "ptx::sync_threads();            // all threads' values are there; all warps have left these keys"
	decodeThere   = "ptx::sync_warp();\n\n    Accumulator<m_tiles, keys> scores;"
)

// Those of the kernels for sm_80.
var mutations = []mutation{
	// Order of asynchronous copies and barriers.
	{"no wait for the keys' copies", spec.Extend, spec.Segment, waitForKeys, remove, false},
	{"no wait for the values' copies", spec.Extend, spec.Segment, waitForValues, remove, false},
	{"no barrier before the keys are read", spec.Extend, spec.Segment, keysThere, remove, false},
	{"no barrier before the values are read", spec.Extend, spec.Segment, valuesThere, remove, false},
	{"one group too many under way", spec.Prefill, spec.Raw, "pending = 2 * (stages - 1)", "pending = 2 * (stages - 1) + 1", false},
	{"decode: one group too many under way", spec.Decode, spec.Segment, "ptx::cp_async_wait<stages - 1>()", "ptx::cp_async_wait<stages>()", false},
	{"decode: no barrier before the keys are read", spec.Decode, spec.Segment, decodeThere, "Accumulator<m_tiles, keys> scores;", false},
	{"decode: results over tiles in use", spec.Decode, spec.Segment, "ptx::sync_threads();  // the results take the place of the tiles", remove, false},

	// Fragments and addresses.
	{"key fragments swapped", spec.Extend, spec.Segment,
		"ptx::mma_m16n8k16<Element>(scores.block[m][2 * n], a[m], b[0], b[1]);",
		"ptx::mma_m16n8k16<Element>(scores.block[m][2 * n], a[m], b[1], b[0]);", false},
	{"weights swapped", spec.Prefill, spec.Segment,
		"a[m][1] = ptx::pack<Element>(left[2], left[3]);", "a[m][1] = ptx::pack<Element>(left[3], left[2]);", false},
	{"values not transposed", spec.Decode, spec.Segment, "ptx::ldmatrix_x4_trans(b, Value::step", "ptx::ldmatrix_x4(b, Value::step", false},
	{"page stride", spec.Extend, spec.Segment,
		"static_cast<long long>(page) * Config::page_size + place", "static_cast<long long>(page) * (Config::page_size - 1) + place", false},
	{"place in the page", spec.Append, spec.Segment, "place = slot % Config::page_size", "place = slot % (Config::page_size / 2)", false},
	{"no zeros behind a ragged tail", spec.Extend, spec.Segment,
		"const bool valid = index < end;", "const bool valid = index < (end + 15) / 16 * 16;", false},
	{"a copy's begin", spec.Materialise, spec.Segment, "from = copy.src_begin + token, to = copy.dst_begin + token, to_page", "from = token, to = copy.dst_begin + token, to_page", false},

	// Masks.
	{"causal, one key too few", spec.Prefill, spec.Segment, "index + tile.causal + 1;", "index + tile.causal;", false},
	{"causal, one key too many", spec.Extend, spec.Raw, "index + tile.causal + 1;", "index + tile.causal + 2;", false},
	{"last tile not masked", spec.Decode, spec.Segment, "return last >= tile.end || ", "return ", false},
	{"diagonal tile not masked", spec.Prefill, spec.Segment, " || last > first_index + tile.causal", remove, false},
	{"a window that cuts no tile", spec.Extend, spec.Segment, "item.q_index, kept_last_position(shared))", "item.q_index, 0)", true},
	{"window, a key too many of a pair", spec.Extend, spec.Segment, "(below + 7) / 8 + (below + 6) / 8", "(below + 7) / 8 * 2", true},
	{"window, one key too many", spec.Extend, spec.Segment, "- Config::window + 1;", "- Config::window;", true},
	{"sink tokens at local positions", spec.Extend, spec.Segment, "keys.sinks = Config::sink_tokens - offset;", "keys.sinks = Config::sink_tokens;", true},
	{"sink logit of another base", spec.Decode, spec.Segment, "[head] * log2_e", "[head]", true},
	{"soft cap of half the height", spec.Extend, spec.Segment, "ptx::multiply_add(-2.f * cap, reciprocal, cap)", "ptx::multiply_add(-1.f * cap, reciprocal, cap)", true},

	// Rotation.
	{"sign of the sine", spec.Append, spec.Segment, "u.x * c0 - v.x * s0", "u.x * c0 + v.x * s0", false},
	{"backward angles turn forward", spec.Extend, spec.Segment, "terms.negative ? -factor : factor", "factor", false},
	{"high level of the table", spec.Decode, spec.Baked, "(magnitude >> Config::rope_low_bits)) * row", "(magnitude >> (Config::rope_low_bits + 1))) * row", false},
	{"rotated for the first run only", spec.Extend, spec.Segment, "return rotated_base != tile.offset;", "return rotated_base == no_base;", false},
	{"a tile's keys all at its first position", spec.Decode, spec.Raw, "rope, position + (row < count ? row : count - 1), unit", "rope, position, unit", false},
	{"materialise by the offset alone", spec.Materialise, spec.Raw, "return copy.offset + index;", "return copy.offset;", false},
	{"materialise K alone through the page table", spec.Materialise, spec.Raw, "params.dst_v != nullptr ? page_table[to_page] : to_page", "page_table[to_page]", false},
	{"materialise without the last head", spec.Materialise, spec.Segment, "head < params.kv_heads; head +=", "head < params.kv_heads - 1; head +=", false},

	// Members of shared decode.
	{"shared: all at the first member's offset", spec.SharedDecode, spec.Segment, "position - offsets[base + token]", "position - offsets[base]", true},
	{"shared: all at the first member's position", spec.SharedDecode, spec.Segment, "= positions[members[token].token]", "= positions[members[0].token]", true},
	{"shared: queries that follow one another", spec.SharedDecode, spec.Segment, "q + members[token].token * token_bytes", "q + (members[0].token + token) * token_bytes", true},
	{"shared: the slot of another member", spec.SharedDecode, spec.Segment, "place = member.slot;", "place = members_of(params, item)[item.q_count - 1 - token].slot;", true},
	{"shared: the window of the first member", spec.SharedDecode, spec.Segment, "[tile.offset + token]", "[tile.offset]", true},
	{"shared: raw keys moved by an offset", spec.SharedDecode, spec.Raw, "return tile.begin;", "return tile.offset + tile.begin;", false},

	// Softmax, rows, results.
	{"output not rescaled", spec.Extend, spec.Segment,
		"output.scale_row(m, h, rescale);", remove, false},
	{"sum not rescaled", spec.Prefill, spec.Segment, "ptx::multiply_add(sum[m][h], rescale, weigh_row(", "(sum[m][h] + weigh_row(", false},
	{"half of a row's lanes summed", spec.Decode, spec.Segment, "return x + ptx::shuffle_xor(x, 2);", "return x;", false},
	{"heads of a group in another order", spec.Extend, spec.Segment,
		"return kv_head * Config::group + row % Config::group;", "return row % Config::group * (kv_head + 1);", false},
	{"position of the tile's first token", spec.Extend, spec.Segment, "return positions[token] - base;", "return positions[0] - base;", false},
	{"slots of another stride", spec.Decode, spec.Segment, "static_cast<long long>(token) * item.slot_stride", "static_cast<long long>(token)", false},
	{"splits all of one weight", spec.Merge, spec.Segment, "ptx::exp2_approx(before - maximum)", "1.f", false},
	{"folded groups kept in another place", spec.Merge, spec.Segment, "(groups & (groups + 1)) * at_a_time", "groups * at_a_time", false},
	{"log-sum-exp in base 2", spec.Merge, spec.Segment, "] = lse * ln_2;", "] = lse;", false},
}

// Those of the kernel that makes work lists, which is the same in any encoding.
var mutationsLists = []mutation{
	{"chunks that meet in the table taken for one", spec.Schedule, spec.Baked, "same_chunk(segments[chunks.table[at]], s) ? at : nobody", "at", false},
	{"the last segment of a chunk taken for its first", spec.Schedule, spec.Baked, "      ptx::atomic_min(place, i);\n", "", false},
	{"holds of one sequence for all", spec.Schedule, spec.Baked, "ptx::atomic_add(&chunks.queries[n], step.sequences[q].query_count);", "ptx::atomic_add(&chunks.queries[n], 1);", false},
	{"chunks that follow others bundled with them", spec.Schedule, spec.Baked, "chunks.stray[n] == 0 && ", "", false},
	{"chunks of fewer holds bundled", spec.Schedule, spec.Baked, " && chunks.holds[n] == chunks.holds[n - 1];", ";", false},
	{"bundles that gain nothing shared", spec.Schedule, spec.Baked, "params.bitwise || gain(c) > 0 ? 1 : 0", "1", false},
	{"a launch taken to cost nothing", spec.Schedule, spec.Baked, "gained * params.kv_heads < static_cast<long long>(launch_keys) * params.shared_blocks", "false", false},
	{"the first number of waves for all", spec.Schedule, spec.Baked, "if (best == 0 || cost < least)", "if (best == 0)", false},
	{"cuts inside a page", spec.Schedule, spec.Baked, "return (token + page_size - 1) & -page_size;", "return token;", false},
	{"no room asked for", spec.Schedule, spec.Baked, "if (items <= params.shared_item_room && members <= params.member_room) return;", "return;", false},
	{"items in the order of their bundles", spec.Schedule, spec.Baked, "bundles.order[place] = b;", "bundles.order[b] = b;", false},
	{"a part's pieces from those of the one before", spec.Schedule, spec.Baked, "/ unit < part;", "/ unit <= part;", false},
	{"one tile's offsets for all", spec.Schedule, spec.Baked, "offsets + tile * per_tile", "offsets", false},
	{"members of one warp's segments in each warp's places", spec.Schedule, spec.Baked, "        before += of_warp;\n", "", false},
	{"members of a sequence alike", spec.Schedule, spec.Baked, "slot + t * slots + part", "slot + part", false},
	{"a bundle's slots those of the sequence's first", spec.Schedule, spec.Baked, "tiles.slots[q] + tiles.slot[i] - tiles.slot[s.segment_begin]", "tiles.slots[q]", false},
	{"sequences cut as if they were short", spec.Schedule, spec.Baked, "if (total <= limit) return params.split_tokens;", "return params.split_tokens;", false},
	{"a part that goes on in the next segment", spec.Schedule, spec.Baked, "c < cuts || next > part + cuts", "c < cuts", false},
	{"chunks that others hold read once", spec.Schedule, spec.Baked, "segment.own || chunks.holds[chunks.number[i]] == 1", "true", false},
	{"own tokens seen from everywhere", spec.Schedule, spec.Baked, "segment.own && params.causal ? tokens - s.query_count : VISIBLE", "VISIBLE", false},
	{"parts of shared sequences folded", spec.Schedule, spec.Baked, "parts[q] > 1 && shared[q] == 0", "parts[q] > 1", false},
	{"a merge taken to cost nothing", spec.Schedule, spec.Baked, "cost += launch * key;", "{}", false},
	{"items forwards", spec.Schedule, spec.Baked, "backwards ? notes.buckets[bucket(i)] - 1 - before : before", "before", false},
	{"scratch of the item before", spec.Schedule, spec.Baked, "i * s.query_count * fold_levels(per_item)", "0", false},
	{"padding left as it was", spec.Schedule, spec.Baked, "put(all + count + i, 0, 0, 0, 0, 0, 0, 0, 0);", "{}", false},
	{"tokens of nobody without slots", spec.Schedule, spec.Baked, "slot_begin[last + t] = slots;", "{}", false},
	{"a barrier left out", spec.Schedule, spec.Baked, "notes.sums[t.warp] = mine;\n  t.sync();", "notes.sums[t.warp] = mine;", false},
}

// Those of windows longer than a tile of keys: of an item's tiles only those that a window cuts are masked.
var mutationsWindow = []mutation{
	{"a window from the first token's position alone", spec.Extend, spec.Segment, "token < own.count; token += 32) last", "token < 1; token += 32) last", false},
}
