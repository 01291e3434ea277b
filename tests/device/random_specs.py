"""Draws specs over most of their fields: random_specs.py SEED NUMBER FOLDER writes 0.yaml and so on.

A few have tiles by hand that do not fit, which kgen refuses.
"""

import random
import sys

seed, number, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
for k in range(number):
    r = random.Random(seed * 1000 + k)
    dim = r.choice([64, 128, 128, 128, 256])
    v_dim = r.choice([d for d in (64, 128, 256) if d <= dim] + [dim] * 3)
    group = r.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16] if v_dim == 256 else [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 16, 24, 32])
    kv_heads, dtype = r.choice([1, 2, 3, 4, 8]), r.choice(["bf16", "fp16"])
    rotary_dim = r.choice([dim, dim, dim, dim // 2, dim // 4, dim - 16, 32])
    pairing, theta, rule = r.choice(["half", "interleaved"]), r.choice([10000, 500000]), r.choice(["default", "default", "llama3"])
    factors = ", factor: 8, low_freq_factor: 1, high_freq_factor: 4, original_max_position: 8192" if rule == "llama3" else ""
    lines = [
        f"name: random_{k}",
        f"model: {{query_heads: {group * kv_heads}, kv_heads: {kv_heads}, head_dim: {dim}, v_head_dim: {v_dim}, dtype: {dtype}}}",
        f"rope: {{type: {rule}, theta: {theta}, pairing: {pairing}, rotary_dim: {rotary_dim}{factors}}}",
        f"cache: {{page_size: {r.choice([1, 2, 4, 8, 16, 16, 32, 64, 128, 256])}, layout: {r.choice(['nhd', 'hnd'])}}}",
    ]
    masks = []
    if r.random() < 0.4:
        masks.append(f"window: {r.choice([1, 7, 64, 300, 4096])}")
        if r.random() < 0.6:
            masks.append(f"sink_tokens: {r.choice([1, 4, 130])}")
    elif r.random() < 0.2:
        masks.append("causal: false")
    if r.random() < 0.3:
        masks.append("sink_logits: true")
    if r.random() < 0.3:
        masks.append(f"soft_cap: {r.choice([1, 30, 50])}")
    if masks:
        lines.append("masks: {" + ", ".join(masks) + "}")
    if r.random() < 0.4:
        lines.append(f"scale: {r.choice([0.003, 0.03, 0.5, 2, 20, 1000])}")
    lines.append(f"sharing: {r.choice(['fastest', 'bitwise'])}")
    lines.append(f"batching: {r.choice(['fastest', 'bitwise'])}")
    target = r.choice(["sm_90a", "sm_90a", "sm_90a", "sm_80"])
    lines.append(f"targets: [{target}]")
    tiles = []
    if target == "sm_90a" and r.random() < 0.4:
        tile = r.choice(["rows: 128, warps: 16", "rows: 256, warps: 12", "rows: 256, warps: 16", "rows: 64", "rows: 128, warps: 12", "keys: 64"])
        tiles.append(f"extend: {{{tile}}}")
    if r.random() < 0.2:
        tile = r.choice(["rows: 256, warps: 12", "rows: 64", "rows: 128"]) if target == "sm_90a" else "rows: 64"
        tiles.append(f"prefill: {{{tile}}}")
    if tiles:
        lines.append("tiles: {" + ", ".join(tiles) + "}")
    with open(f"{folder}/{k}.yaml", "w") as f:
        f.write("\n".join(lines) + "\n")
