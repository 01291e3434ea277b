// Every function of one number, over given numbers.
struct Params {
  const float* in;    // [n], n a multiple of 2
  uint32_t* bf16;     // [n/2] pairs
  uint32_t* fp16;     // [n/2] pairs
  float* from_bf16;   // [n], what bf16 unpacks to
  float* from_fp16;   // [n]
  float* exp2;        // [n]
  float* log2;        // [n]
  float* across;      // [n], shuffle_xor of the first 32 by 5
  int n;
  int reserved;
};

extern "C" __global__ void arithmetic(const __grid_constant__ Params p) {
  for (int i = ptx::thread_index(); i < p.n / 2; i += 32) {
    const float low = p.in[2 * i], high = p.in[2 * i + 1];
    p.bf16[i] = ptx::pack<ptx::bf16>(low, high);
    p.fp16[i] = ptx::pack<ptx::fp16>(low, high);
    const float2 x = ptx::unpack<ptx::bf16>(p.bf16[i]), y = ptx::unpack<ptx::fp16>(p.fp16[i]);
    p.from_bf16[2 * i] = x.x;
    p.from_bf16[2 * i + 1] = x.y;
    p.from_fp16[2 * i] = y.x;
    p.from_fp16[2 * i + 1] = y.y;
    p.exp2[2 * i] = ptx::exp2_approx(low);
    p.exp2[2 * i + 1] = ptx::exp2_approx(high);
    p.log2[2 * i] = ptx::log2_approx(low);
    p.log2[2 * i + 1] = ptx::log2_approx(high);
  }
  const int lane = ptx::thread_index();
  p.across[lane] = ptx::maximum(ptx::multiply_add(ptx::shuffle_xor(p.in[lane], 5), 1.0f, 0.0f), -ptx::infinity());
}

// Every function of pairs of fp16, over given pairs.
struct PairParams {
  const uint32_t *a, *b, *c;  // [n]
  uint32_t *product, *sum, *negated, *lower, *upper;
  int n;
  int reserved;
};

extern "C" __global__ void pairs(const __grid_constant__ PairParams p) {
  for (int i = ptx::thread_index(); i < p.n; i += 32) {
    p.product[i] = ptx::fp16_multiply(p.a[i], p.b[i]);
    p.sum[i] = ptx::fp16_multiply_add(p.a[i], p.b[i], p.c[i]);
    p.negated[i] = ptx::fp16_negate(p.a[i]);
    p.lower[i] = ptx::lower_halves(p.a[i], p.b[i]);
    p.upper[i] = ptx::upper_halves(p.a[i], p.b[i]);
  }
}
