"""Times torch's attention on the cases of `kgen bench`, to stand beside its rows.

    python3 gen/bench/torch_attention.py [--json] prefill:1x16384 extend:1x64/8192 ...

torch gets contiguous, already rotated K and V: the work that kgen's paged,
lazily rotated kernels do on top is not asked of it. Heads are Llama 3's unless
--heads says otherwise. L2 is emptied before each launch, as in `kgen bench`;
times are medians of replayed graphs. With --layers N a graph has N calls, each with K
and V of its own, L2 is left as it is, and a time is a call's share.

With --serve it is what `kgen bench --against torch` talks to: it prints what it is,
then reads a case a line and answers each with a line of JSON.
"""
import argparse
import json
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"FA2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def parse(case):
    kind, shape = case.split(":")
    batch, rest = shape.split("x")
    query, _, context = rest.partition("/")
    return kind, int(batch), int(query), int(context or query)


def times(f, layers, repeats, clean):
    """Seconds of each replay, for a layer, sorted."""
    for _ in range(3):
        f(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(layers):
            f(layer)
    cold = torch.empty(4 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda")
    all_times = []
    warm_up = 2
    for i in range(warm_up + repeats):
        if layers == 1:
            cold.zero_()
        if clean:
            cold.view(torch.int32).sum()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= warm_up:
            all_times.append(start.elapsed_time(end) / 1e3 / layers)
    return sorted(all_times)


def measure(case, backend, heads, dtype, layers, repeats, clean):
    kind, batch, query, context = parse(case)
    q_heads, kv_heads, dim = heads
    q = torch.randn(batch, q_heads, query, dim, device="cuda", dtype=dtype)
    kv = [[torch.randn(batch, kv_heads, context, dim, device="cuda", dtype=dtype) for _ in "kv"] for _ in range(layers)]
    causal = kind == "prefill"

    def f(layer):
        with sdpa_kernel(BACKENDS[backend]):
            F.scaled_dot_product_attention(q, *kv[layer], is_causal=causal, enable_gqa=True)

    seconds = times(f, layers, repeats, clean)
    n, median = len(seconds), seconds[len(seconds) // 2]
    operations = 4 * batch * q_heads * query * context * dim * (0.5 if causal else 1)
    figures = {"median": median, "fastest": seconds[0], "slowest": seconds[-1], "p10": seconds[n // 10], "p90": seconds[n - 1 - n // 10]}
    row = {name + "_ns": round(value * 1e9) for name, value in figures.items()}
    return row | {"tflops": operations / median / 1e12}


def rows(case, heads, dtype, layers, repeats, clean):
    for backend in BACKENDS:
        row = {"case": case, "backend": backend}
        try:
            row |= measure(case, backend, heads, dtype, layers, repeats, clean)
        except RuntimeError as error:  # a backend may refuse a shape
            row["error"] = str(error).splitlines()[0]
        yield row
    torch.cuda.empty_cache()  # kgen allocates from the same memory


def serve(heads, dtype, layers, repeats, clean):
    if not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device")
    print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name(0)}), flush=True)
    for line in sys.stdin:
        print(json.dumps(list(rows(line.strip(), heads, dtype, layers, repeats, clean))), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--heads", default="32,8,128", help="query heads, KV heads, head dim")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--clean", action="store_true", help="leave L2 full of reads, not of writes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help="read cases from standard input")
    args = parser.parse_args()
    heads, dtype = tuple(int(n) for n in args.heads.split(",")), DTYPES[args.dtype]
    if args.serve:
        serve(heads, dtype, args.layers, args.repeats, args.clean)
        return
    for case in args.cases:
        for row in rows(case, heads, dtype, args.layers, args.repeats, args.clean):
            if args.json:
                print(json.dumps(row), flush=True)
            elif "error" in row:
                print(f"{case:24} {row['backend']:6} {row['error'][:60]}", flush=True)
            else:
                print(f"{case:24} {row['backend']:6} {row['median_ns'] / 1e3:10.1f} us {row['tflops']:7.1f} TFLOP/s", flush=True)


if __name__ == "__main__":
    main()
