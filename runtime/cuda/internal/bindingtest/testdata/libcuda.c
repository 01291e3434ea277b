// A libcuda that writes down each call and its arguments, so that a test can
// tell whether the binding passes them as C does. With -include cuda.h the
// compiler also holds the prototypes to the real ones.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#ifndef CUDA_VERSION
typedef int CUresult, CUdevice, CUdevice_attribute, CUfunction_attribute, CUjit_option, CUstreamCaptureMode;
typedef unsigned long long CUdeviceptr, cuuint64_t;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUtensorMap_st { cuuint64_t opaque[16]; } CUtensorMap;
typedef unsigned int cuuint32_t;
typedef struct {
  size_t srcXInBytes, srcY;
  int srcMemoryType;
  const void *srcHost;
  CUdeviceptr srcDevice;
  struct CUarray_st *srcArray;
  size_t srcPitch, dstXInBytes, dstY;
  int dstMemoryType;
  void *dstHost;
  CUdeviceptr dstDevice;
  struct CUarray_st *dstArray;
  size_t dstPitch, WidthInBytes, Height;
} CUDA_MEMCPY2D;
typedef struct {
  int id;
  char pad[4];
  union {
    char pad[64];
    int programmaticStreamSerializationAllowed;
  } value;
} CUlaunchAttribute;
typedef struct {
  unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute *attrs;
  unsigned int numAttrs;
} CUlaunchConfig;
typedef int CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill;
#endif

static char record[4096];
static size_t used;
static CUresult answer;
static char host[] = "host";
static CUresult note(const char *format, ...) {
  va_list args;
  va_start(args, format);
  used += (size_t)vsnprintf(record + used, sizeof record - used, format, args);
  va_end(args);
  return answer;
}

void fake_answer(CUresult code) { answer = code; }

const char *fake_record(void) {
  used = 0;
  return record;
}

CUresult cuInit(unsigned int flags) { return note("cuInit %u", flags); }
CUresult cuGetErrorName(CUresult c, const char **s) { *s = "NAME"; return note("cuGetErrorName %d", (int)c); }
CUresult cuGetErrorString(CUresult c, const char **s) { *s = "TEXT"; return note("cuGetErrorString %d", (int)c); }
CUresult cuDriverGetVersion(int *v) { *v = 13010; return note("cuDriverGetVersion"); }
CUresult cuDeviceGetCount(int *n) { *n = 3; return note("cuDeviceGetCount"); }
CUresult cuDeviceGet(CUdevice *d, int i) { *d = 40; return note("cuDeviceGet %d", i); }
CUresult cuDeviceGetName(char *s, int n, CUdevice d) { strcpy(s, "GPU"); return note("cuDeviceGetName %d %d", n, d); }
CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) { *v = -5; return note("cuDeviceGetAttribute %d %d", (int)a, d); }
CUresult cuDeviceTotalMem_v2(size_t *n, CUdevice d) { *n = 1ull << 40; return note("cuDeviceTotalMem_v2 %d", d); }
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { *c = (CUcontext)0x1234567890; return note("cuDevicePrimaryCtxRetain %d", d); }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) { return note("cuDevicePrimaryCtxRelease_v2 %d", d); }
CUresult cuCtxSetCurrent(CUcontext c) { return note("cuCtxSetCurrent %p", (void *)c); }
CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n) { *p = 0xabcdef0123456789; return note("cuMemAlloc_v2 %zu", n); }
CUresult cuMemFree_v2(CUdeviceptr p) { return note("cuMemFree_v2 %llx", p); }
CUresult cuMemGetInfo_v2(size_t *f, size_t *t) { *f = 5; *t = 6; return note("cuMemGetInfo_v2"); }
CUresult cuMemcpyHtoD_v2(CUdeviceptr d, const void *s, size_t n) { return note("cuMemcpyHtoD_v2 %llx %.*s %zu", d, (int)n, (const char *)s, n); }
CUresult cuMemcpyDtoH_v2(void *d, CUdeviceptr s, size_t n) { memset(d, 'z', n); return note("cuMemcpyDtoH_v2 %llx %zu", s, n); }
CUresult cuMemHostAlloc(void **p, size_t n, unsigned int flags) { *p = host; return note("cuMemHostAlloc %zu %u", n, flags); }
CUresult cuMemFreeHost(void *p) { return note("cuMemFreeHost %.4s", (const char *)p); }
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, CUstream s) {
  return note("cuMemcpy2DAsync_v2 %zu %zu %d %.1s %llx %p %zu %zu %zu %d %.1s %llx %p %zu %zu %zu %p", c->srcXInBytes, c->srcY,
              (int)c->srcMemoryType, (const char *)c->srcHost, c->srcDevice, (void *)c->srcArray, c->srcPitch, c->dstXInBytes, c->dstY,
              (int)c->dstMemoryType, (const char *)c->dstHost, c->dstDevice, (void *)c->dstArray, c->dstPitch, c->WidthInBytes,
              c->Height, (void *)s);
}
CUresult cuMemsetD8Async(CUdeviceptr d, unsigned char v, size_t n, CUstream s) { return note("cuMemsetD8Async %llx %d %zu %p", d, v, n, (void *)s); }
CUresult cuModuleLoadDataEx(CUmodule *m, const void *image, unsigned int n, CUjit_option *options, void **values) {
  strcpy(values[0], "log");
  *m = (CUmodule)0x77;
  note("cuModuleLoadDataEx %s %u:", (const char *)image, n);
  for (unsigned int i = 0; i < n; i++) note(" %d", (int)options[i]);
  return note(" %zu", (size_t)values[1]);
}
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) { *f = (CUfunction)0x88; return note("cuModuleGetFunction %p %s", (void *)m, name); }
CUresult cuModuleUnload(CUmodule m) { return note("cuModuleUnload %p", (void *)m); }
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) { return note("cuFuncSetAttribute %p %d %d", (void *)f, (int)a, v); }
CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
                        unsigned int bz, unsigned int shared, CUstream s, void **params, void **extra) {
  return note("cuLaunchKernel %p %u %u %u %u %u %u %u %p %s %d", (void *)f, gx, gy, gz, bx, by, bz, shared, (void *)s,
                (const char *)params[0], extra != NULL);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra) {
  note("cuLaunchKernelEx %p %u %u %u %u %u %u %u %p %u", (void *)f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX,
       c->blockDimY, c->blockDimZ, c->sharedMemBytes, (void *)c->hStream, c->numAttrs);
  for (unsigned int i = 0; i < c->numAttrs; i++) note(" %d %d", (int)c->attrs[i].id, c->attrs[i].value.programmaticStreamSerializationAllowed);
  return note(" %s %d", (const char *)params[0], extra != NULL);
}
CUresult cuStreamCreate(CUstream *s, unsigned int flags) { *s = (CUstream)0x99; return note("cuStreamCreate %u", flags); }
CUresult cuStreamDestroy_v2(CUstream s) { return note("cuStreamDestroy_v2 %p", (void *)s); }
CUresult cuStreamQuery(CUstream s) { return note("cuStreamQuery %p", (void *)s); }
CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned int flags) { return note("cuStreamWaitEvent %p %p %u", (void *)s, (void *)e, flags); }
CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode mode) { return note("cuStreamBeginCapture_v2 %p %d", (void *)s, (int)mode); }
CUresult cuStreamEndCapture(CUstream s, CUgraph *g) { *g = (CUgraph)0xaa; return note("cuStreamEndCapture %p", (void *)s); }
CUresult cuGraphInstantiateWithFlags(CUgraphExec *e, CUgraph g, unsigned long long flags) { *e = (CUgraphExec)0xbb; return note("cuGraphInstantiateWithFlags %p %llu", (void *)g, flags); }
CUresult cuGraphDestroy(CUgraph g) { return note("cuGraphDestroy %p", (void *)g); }
CUresult cuGraphLaunch(CUgraphExec e, CUstream s) { return note("cuGraphLaunch %p %p", (void *)e, (void *)s); }
CUresult cuGraphExecDestroy(CUgraphExec e) { return note("cuGraphExecDestroy %p", (void *)e); }
CUresult cuEventCreate(CUevent *e, unsigned int flags) { *e = (CUevent)0xcc; return note("cuEventCreate %u", flags); }
CUresult cuEventDestroy_v2(CUevent e) { return note("cuEventDestroy_v2 %p", (void *)e); }
CUresult cuEventQuery(CUevent e) { return note("cuEventQuery %p", (void *)e); }
CUresult cuEventRecord(CUevent e, CUstream s) { return note("cuEventRecord %p %p", (void *)e, (void *)s); }
CUresult cuEventElapsedTime(float *ms, CUevent a, CUevent b) { *ms = 2.5f; return note("cuEventElapsedTime %p %p", (void *)a, (void *)b); }
CUresult cuTensorMapEncodeTiled(CUtensorMap *m, CUtensorMapDataType type, cuuint32_t rank, void *base, const cuuint64_t *dims,
                                const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                                CUtensorMapFloatOOBfill fill) {
  memcpy(m, "map!", 4);
  note("cuTensorMapEncodeTiled %s %d %u %p", (size_t)m % 64 ? "crooked" : "aligned", (int)type, rank, base);
  note(" dims");
  for (cuuint32_t i = 0; i < rank; i++) note(" %llu", (unsigned long long)dims[i]);
  note(" strides");
  for (cuuint32_t i = 0; i + 1 < rank; i++) note(" %llu", (unsigned long long)strides[i]);
  note(" box");
  for (cuuint32_t i = 0; i < rank; i++) note(" %u", box[i]);
  note(" steps");
  for (cuuint32_t i = 0; i < rank; i++) note(" %u", steps[i]);
  return note(" %d %d %d %d", (int)interleave, (int)swizzle, (int)l2, (int)fill);
}
