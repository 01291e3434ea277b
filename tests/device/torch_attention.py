"""Times torch's attention on the cases of `kgen bench`, to stand beside its rows.

    python3 tests/device/torch_attention.py [--json] prefill:1x16384 extend:1x64/8192 ...

torch gets contiguous, already rotated K and V: the work that kgen's paged,
lazily rotated kernels do on top is not asked of it. Heads are Llama 3's unless
--heads says otherwise. L2 is emptied before each launch, as in `kgen bench`;
times are medians of replayed graphs.
"""
import argparse
import json

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def parse(case):
    kind, shape = case.split(":")
    batch, rest = shape.split("x")
    query, _, context = rest.partition("/")
    return kind, int(batch), int(query), int(context or query)


def median_seconds(f, repeats):
    for _ in range(3):
        f()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f()
    cold = torch.empty(4 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(repeats):
        cold.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[repeats // 2]


def measure(case, backend, heads, repeats):
    kind, batch, query, context = parse(case)
    q_heads, kv_heads, dim = heads
    q = torch.randn(batch, q_heads, query, dim, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(batch, kv_heads, context, dim, device="cuda", dtype=torch.bfloat16)
    v = torch.randn_like(k)
    causal = kind == "prefill"

    def f():
        with sdpa_kernel(BACKENDS[backend]):
            F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    seconds = median_seconds(f, repeats)
    operations = 4 * batch * q_heads * query * context * dim * (0.5 if causal else 1)
    return {"case": case, "backend": backend, "median_ns": round(seconds * 1e9), "tflops": operations / seconds / 1e12}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--heads", default="32,8,128", help="query heads, KV heads, head dim")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    heads = tuple(int(n) for n in args.heads.split(","))
    for case in args.cases:
        for backend in BACKENDS:
            try:
                row = measure(case, backend, heads, args.repeats)
            except RuntimeError as error:  # a backend may refuse a shape
                row = {"case": case, "backend": backend, "error": str(error).splitlines()[0]}
            if args.json:
                print(json.dumps(row), flush=True)
            elif "error" in row:
                print(f"{case:24} {backend:6} {row['error'][:60]}", flush=True)
            else:
                print(f"{case:24} {backend:6} {row['median_ns'] / 1e3:10.1f} us {row['tflops']:7.1f} TFLOP/s", flush=True)


if __name__ == "__main__":
    main()
