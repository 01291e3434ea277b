#!/usr/bin/env bash
# Measures what README.md here and that of the project say was measured, on this machine's GPU:
#
#   tests/device/measure.sh FOLDER [PART...]
#
# prints each part's tables and keeps its reports in FOLDER. Parts: peers, prompts, layers, shares, clean,
# encodings, windows, caps, sharing, batching, heads, dram, sm80, verify, variants, random, sanitize, clusters, tune; all
# of them by default. It needs bin/kgen (or another one in KGEN) and, for one thing each, torch, ncu
# and compute-sanitizer.
set -euo pipefail
cd "$(dirname "$0")/../.."
kgen=${KGEN:-bin/kgen}
out=${1:?where to keep the reports: tests/device/measure.sh FOLDER [PART...]}
shift
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(peers prompts layers shares clean encodings sharing batching heads windows caps dram sm80 verify variants random sanitize clusters tune)
mkdir -p "$out"

extend=extend:1x64/8192,extend:1x64/32768,extend:1x64/131072,extend:8x64/8192,extend:1x256/16384,extend:4x512/8192
attention=prefill:4x4096,prefill:1x16384,$extend
decode=decode:1x1/8192,decode:1x1/32768,decode:8x1/8192,decode:32x1/8192,decode:128x1/4096
prompts=prefill:128x64,prefill:64x128,prefill:32x256,prefill:16x512,prefill:8x1024
batches=extend:8x16/4096,extend:16x32/8192,extend:16x40/4096,extend:8x64/2048,extend:32x64/2048,extend:2x64/8192,extend:4x64/8192,extend:8x64/8192,extend:16x64/8192,extend:8x128/8192,extend:2x256/6144,extend:4x512/8192
shared=shared:32x8192+512,shared:128x4096+256
zipf=$(for s in 0 1.07 2.1; do for batch in 64 256; do printf ',zipf:%s:%s/1000x512x5+64-192' $s $batch; done; done)

# llama3 with other lines: edited SED-SCRIPT
edited() { sed "$1" specs/llama3.yaml; }

# clustered WARPS SED-SCRIPT: llama3 with other lines, for sm_90a, prefill and extend by tiles
# of two blocks, extend by so many warps, prefill by the planner's.
clustered() {
  edited "$2; s/^targets:.*/targets: [sm_90a]/; \$a tiles: {prefill: {rows: 256}, extend: {rows: 256, warps: $1}}"
}

# bench NAME SPEC ARGUMENTS...: a run of kgen bench. A spec on standard input (-) has the
# plans of a GPU without a table: a tuned table is beside a file.
bench() {
  local name=$1
  shift
  echo "== $name: kgen bench $*"
  "$kgen" bench --json "$@" >"$out/$name.json"
  "$kgen" bench --from "$out/$name.json"
}

# sanitized TOOL ARGUMENTS...: kgen under compute-sanitizer; prints how it ends, and how many of
# the tool's findings name each kernel.
sanitized() {
  local tool=$1
  shift
  compute-sanitizer --tool "$tool" "$kgen" "$@" >"$out/sanitizer.txt" 2>&1 || true
  tail -n 3 "$out/sanitizer.txt"
  { grep '^=====' "$out/sanitizer.txt" | grep -o 'kgen_[a-z0-9_]*' || true; } | sort | uniq -c
}

# steps_of: what ncu --csv counted, on standard input, as a line for launches in a row of the
# same kernels that read about as much: their number, and a median one's megabytes.
steps_of() {
  python3 -c '
import csv, statistics, sys
scale = {"byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1, "Gbyte": 1e3}
launches = [(r["Kernel Name"], float(r["Metric Value"].replace(",", "")) * scale[r["Metric Unit"]])
            for r in csv.DictReader(l for l in sys.stdin if l.startswith("\"")) if r["Metric Name"] == "dram__bytes_read.sum"]
steps = []  # of kernels and megabytes: merge ends one, and decode without shared decode before it begins one
for name, read in launches:
    kind = name.removeprefix("kgen_llama3_").split("_sm")[0]
    if not steps or kind == "shared_decode" or kind == "decode" and steps[-1][0] != ["shared_decode"]:
        steps.append(([], []))
    steps[-1][0].append(kind), steps[-1][1].append(read)
groups = []
for kinds, reads in steps:
    if not groups or groups[-1][0] != kinds or abs(sum(reads) / groups[-1][1][-1] - 1) > 0.02:
        groups.append((kinds, []))
    groups[-1][1].append(sum(reads))
for kinds, reads in groups:
    print("  %2d times %-30s %8.1f MB" % (len(reads), ", ".join(kinds), statistics.median(reads)))
'
}

for part in "${parts[@]}"; do
  case $part in
    peers) bench peers specs/llama3.yaml --case "$attention,$decode" --against torch ;;
    prompts) bench prompts specs/llama3.yaml --case "$prompts" --against torch ;;
    layers) bench layers specs/llama3.yaml --case "$extend,$decode" --layers 8 --against torch ;;
    shares) bench fixed-shares specs/llama3.yaml --case "$attention,$decode" --fixed-shares ;;
    clean) bench clean specs/llama3.yaml --case "$attention,$decode,$shared" --clean ;;
    encodings)
      for encoding in segment baked raw; do
        edited '' | bench "encoding-$encoding" - --case "$attention,$decode" --encoding $encoding
        edited '' | bench "encoding-$encoding-layers" - --case "$extend,$decode" --encoding $encoding --layers 8
      done
      while read -r encoding warps; do
        clustered "$warps" "s/encoding: [a-z]*/encoding: $encoding/" | bench "clusters-$encoding" - --case "$extend"
      done <<'END'
segment 16
baked 12
raw 16
END
      for edit in 'layout: hnd' 'page_size: 64'; do
        name=${edit//: /-}
        edited "s/${edit%:*}: [a-z0-9]*/$edit/" | bench "$name" - --case "$attention,$decode"
        edited "s/${edit%:*}: [a-z0-9]*/$edit/" | bench "$name-layers" - --case "$extend,$decode" --layers 8
      done
      ;;
    windows)
      while read -r name edits; do
        edited "s/^targets:.*/targets: [sm_90a]/; $edits" | bench "windows-$name" - --case "prefill:64x128,prefill:16x512,$attention,$decode,decode:1x1/131072"
      done <<'END'
4096 s/^cache:/masks: {window: 4096}\n&/
1024 s/^cache:/masks: {window: 1024}\n&/
128 s/query_heads: 32/query_heads: 64/; s/head_dim: 128/head_dim: 64/; s/^cache:/masks: {window: 128, sink_tokens: 4}\n&/
END
      ;;
    caps) # Gemma 2's heads of 256 dimensions, and as many of 128 and 64 as models have
      while read -r dim heads kv_heads; do
        printf '%s\n' 'name: capped' 'rope: {type: default, theta: 10000}' 'masks: {soft_cap: 50}' 'targets: [sm_90a]' \
          "model: {query_heads: $heads, kv_heads: $kv_heads, head_dim: $dim, dtype: bf16}" | bench "caps-$dim" - --case "$prompts,$attention"
      done <<'END'
256 16 8
128 32 16
64 32 8
END
      ;;
    sharing)
      bench sharing-fastest specs/llama3.yaml --case "$shared$zipf"
      edited '$a sharing: bitwise' | bench sharing-bitwise - --case "$shared$zipf"
      ;;
    batching)
      bench batching specs/llama3.yaml --case "$batches" --against batching
      for encoding in baked raw; do
        edited '' | bench "batching-$encoding" - --case "$batches" --encoding $encoding --against batching
      done
      ;;
    heads)
      for dim in 64 256; do
        edited "s/head_dim: 128/head_dim: $dim/" | bench "head-dim-$dim" - --case "$attention,$decode" --against torch
      done
      edited 's/head_dim: 128/head_dim: 256/; s/encoding: segment/encoding: baked/' | bench head-dim-256-baked - --case "$attention"
      clustered 16 's/head_dim: 128/head_dim: 256/' | bench head-dim-256-clusters - --case "$attention"
      ;;
    dram) # read by plain decode, and then by shared decode, which has decode beside it
      for case in ${decode//,/ } ${shared//,/ } ${zipf//,/ }; do
        echo "== dram: $case"
        edited '' | ncu --csv --clock-control none --cache-control none --metrics dram__bytes_read.sum \
          -k regex:^kgen_llama3_ -c 60 "$kgen" bench - --case "$case" --repeats 2 --read 1 --product 1 >"$out/dram-${case//[:\/+]/_}.csv"
        steps_of <"$out/dram-${case//[:\/+]/_}.csv"
      done
      ;;
    sm80) edited 's/^targets:.*/targets: [sm_80]/' | bench sm80 - --case prefill:1x16384 --against torch ;;
    verify)
      for spec in llama3 smollm2_135m; do
        "$kgen" verify specs/$spec.yaml --backend gpu --encoding segment,raw,baked --cases 500 --seed 2030 | tee "$out/verify-$spec.txt"
      done
      edited 's/^targets:.*/targets: [sm_80]/' | "$kgen" verify - --backend gpu --encoding segment,raw,baked --cases 500 --seed 2030 | tee "$out/verify-sm80.txt"
      ;;
    variants) # of llama3, for sm_90a
      while read -r encodings edits; do
        echo "== $edits"
        edited "s/^targets:.*/targets: [sm_90a]/; $edits" | "$kgen" verify - --backend gpu --kernel prefill,extend,decode,shared_decode --encoding "$encodings" --cases 60 --seed 2032
      done <<'END' 2>&1 | tee "$out/variants.txt"
segment,raw,baked s/head_dim: 128/head_dim: 256/
segment,raw,baked s/head_dim: 128/head_dim: 64/
segment,raw,baked s/query_heads: 32/query_heads: 8/
segment,raw,baked s/query_heads: 32/query_heads: 24/; s/dtype: bf16/dtype: fp16/
segment,raw,baked s/query_heads: 32/query_heads: 64/
segment,raw,baked s/query_heads: 32/query_heads: 48/; s/layout: nhd/layout: hnd/; s/^cache:/masks: {sink_logits: true}\n&/
segment,raw,baked s/query_heads: 32/query_heads: 128/; s/layout: nhd/layout: hnd/
segment,raw,baked s/head_dim: 128/&\n  v_head_dim: 64/; s/query_heads: 32/query_heads: 56/
segment,raw,baked s/theta: 500000/&\n  pairing: interleaved\n  rotary_dim: 64/
segment,raw,baked s/head_dim: 128/head_dim: 256/; s/query_heads: 32/query_heads: 128/; s/theta: 500000/&\n  pairing: interleaved/
segment,raw,baked s/^cache:/masks: {window: 300, sink_tokens: 4, sink_logits: true}\n&/
segment,raw,baked s/^cache:/masks: {window: 100, sink_tokens: 200}\n&/
segment,raw s/^cache:/masks: {window: 1024}\n&/; $a tiles: {prefill: {rows: 256}, extend: {rows: 256, warps: 16}}
segment,raw,baked s/head_dim: 128/head_dim: 64/; s/^cache:/masks: {window: 128, sink_tokens: 4}\n&/
segment,raw,baked s/^cache:/masks: {soft_cap: 30}\n&/
segment,raw,baked s/head_dim: 128/head_dim: 256/; s/dtype: bf16/dtype: fp16/; s/^cache:/masks: {soft_cap: 50, window: 4096}\n&/
segment,raw,baked s/layout: nhd/layout: hnd/; s/page_size: 16/page_size: 64/
segment,raw,baked s/layout: nhd/layout: hnd/; s/page_size: 16/page_size: 8/
segment,raw s/page_size: 16/page_size: 256/; $a tiles: {extend: {warps: 16}}
segment,raw,baked $a batching: fastest
raw s/encoding: segment/encoding: raw/; $a tiles: {extend: {rows: 256, warps: 16}}
raw s/encoding: segment/encoding: raw/; s/head_dim: 128/head_dim: 64/; $a tiles: {prefill: {rows: 256, warps: 16}, extend: {rows: 256, warps: 16}}
raw s/encoding: segment/encoding: raw/; s/layout: nhd/layout: hnd/; s/page_size: 16/page_size: 8/; s/theta: 500000/&\n  rotary_dim: 64/; $a tiles: {extend: {rows: 256, keys: 64, warps: 16}}
segment,raw s/head_dim: 128/head_dim: 64/; s/query_heads: 32/query_heads: 64/; $a tiles: {extend: {warps: 16}}
END
      ;;
    random) # ten at a time; status 2 is of specs whose tiles do not fit
      mkdir -p "$out/random"
      python3 tests/device/random_specs.py 3 200 "$out/random"
      seq 0 199 | xargs -P 10 -I{} sh -c '
        "$0" verify "$1/{}.yaml" --backend gpu --encoding segment,raw,baked --cases 15 --seed $((2400 + {})) >"$1/{}.txt" 2>&1
        echo "$? {}"' "$kgen" "$out/random" >"$out/random.txt"
      echo "== random: how many specs end with which status, and those that failed"
      cut -d' ' -f1 "$out/random.txt" | sort | uniq -c
      grep '^1 ' "$out/random.txt" || true
      ;;
    sanitize)
      for tool in memcheck racecheck synccheck initcheck; do
        echo "== $tool"
        sanitized $tool verify specs/llama3.yaml --backend gpu --cases 2 --seed 5
        edited 's/^targets:.*/targets: [sm_80]/' | sanitized $tool verify - --backend gpu --cases 2 --seed 5
        # Rows whose scores are near each other and far apart in one tile, and rows that do not exist.
        sanitized $tool verify specs/llama2_7b.yaml --backend gpu --kernel prefill,extend --cases 25 --seed 5
      done 2>&1 | tee "$out/sanitize.txt"
      ;;
    clusters) # for all lengths, and prefill too, where defaults choose them by length
      while read -r warps edits; do
        echo "== extend by $warps warps${edits:+, $edits}"
        clustered "$warps" "$edits" | "$kgen" verify - --backend gpu --kernel prefill,extend --cases 40 --seed 7
      done <<'END' 2>&1 | tee "$out/clusters.txt"
12
16
12 s/encoding: segment/encoding: baked/
16 s/layout: nhd/layout: hnd/; s/page_size: 16/page_size: 64/
12 s/page_size: 16/page_size: 8/
16 s/page_size: 16/page_size: 256/
16 s/query_heads: 32/query_heads: 8/
12 s/query_heads: 32/query_heads: 24/
16 s/query_heads: 32/query_heads: 128/
16 s/head_dim: 128/head_dim: 64/
12 s/head_dim: 128/head_dim: 256/; s/dtype: bf16/dtype: fp16/
16 s/head_dim: 128/head_dim: 256/
12 s/dtype: bf16/dtype: fp16/; s/^cache:/masks: {window: 300, sink_tokens: 4, sink_logits: true}\n&/
END
      for tool in memcheck racecheck synccheck initcheck; do
        for edits in '' 's/head_dim: 128/head_dim: 256/'; do
          echo "== $tool, extend by 16 warps${edits:+, $edits}"
          clustered 16 "$edits" | sanitized $tool verify - --backend gpu --kernel prefill,extend --cases 2 --seed 5
        done
      done 2>&1 | tee "$out/clusters-sanitize.txt"
      ;;
    tune)
      for turn in 1 2; do
        "$kgen" tune specs/llama3.yaml --budget 140s -o "$out/tuned-$turn.yaml" | tee "$out/tune-$turn.txt"
        "$kgen" tune specs/llama3.yaml --score "$out/tuned-$turn.yaml"
      done
      ;;
    *)
      echo "no part $part" >&2
      exit 2
      ;;
  esac
done
