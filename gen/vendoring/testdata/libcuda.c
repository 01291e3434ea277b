// A libcuda that hands each call to a test over the socket named in KGEN_TEST_DEVICE.
// Machine code is text here: what the test takes it for is its business.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum Call { attribute = 1, load, unload, function, shared, launch, allocate, release, upload, download, synchronize, map };
enum { error_not_initialized = 3, error_no_device = 100 };

struct Request {
  uint64_t call, arguments[6], bytes;
};
struct Answer {
  uint64_t code, value, more, bytes;
};
struct Function {
  uint64_t id, bytes;  // of its parameters
};

static int file = -1;

static int all(int writes, void *data, size_t bytes) {
  for (char *p = data; bytes > 0;) {
    ssize_t n = writes ? write(file, p, bytes) : read(file, p, bytes);
    if (n <= 0) return 0;
    p += n;
    bytes -= (size_t)n;
  }
  return 1;
}

static int ask(struct Request request, const void *data, struct Answer *answer, void *result) {
  struct Answer ignored;
  if (!answer) answer = &ignored;
  if (file < 0 || !all(1, &request, sizeof request) || !all(1, (void *)(uintptr_t)data, request.bytes) ||
      !all(0, answer, sizeof *answer) || !all(0, result, answer->bytes)) {
    return error_not_initialized;
  }
  return (int)answer->code;
}
#define ASK(call, data, bytes, answer, result, ...) ask((struct Request){call, {__VA_ARGS__}, bytes}, data, answer, result)

int cuInit(unsigned flags) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const char *path = getenv("KGEN_TEST_DEVICE");
  if (flags) return 1;
  if (!path || !*path) return error_no_device;
  strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  if (file >= 0) return 0;
  file = socket(AF_UNIX, SOCK_STREAM, 0);
  return connect(file, (struct sockaddr *)&address, sizeof address) == 0 ? 0 : error_no_device;
}
int cuGetErrorName(int code, const char **name) {
  *name = code == error_no_device ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR";
  return 0;
}
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 7; return ordinal == 0 ? 0 : 101; }
int cuDeviceGetAttribute(int *value, int which, int device) {
  struct Answer a;
  int code = ASK(attribute, NULL, 0, &a, NULL, (uint64_t)which);
  *value = (int)a.value;
  return device == 7 ? code : 101;
}
int cuDeviceGetName(char *name, int size, int device) {
  const char *given = getenv("KGEN_TEST_NAME");
  strncpy(name, given ? given : "kgen emulator", (size_t)size);
  return device == 7 ? 0 : 101;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)0x1234; return device == 7 ? 0 : 101; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device == 7 ? 0 : 101; }
int cuCtxSetCurrent(void *context) { return context == (void *)0x1234 ? 0 : 201; }
int cuModuleLoadData(void **module, const void *image) {
  struct Answer a;
  int code = ASK(load, image, strlen(image), &a, NULL, 0);
  *module = (void *)(uintptr_t)a.value;
  return code;
}
int cuModuleUnload(void *module) { return ASK(unload, NULL, 0, NULL, NULL, (uintptr_t)module); }
int cuModuleGetFunction(void **f, void *module, const char *name) {
  struct Answer a;
  int code = ASK(function, name, strlen(name), &a, NULL, (uintptr_t)module);
  struct Function *made = malloc(sizeof *made);
  *made = (struct Function){a.value, a.more};
  *f = made;
  return code;
}
int cuFuncSetAttribute(struct Function *f, int which, int value) { return ASK(shared, NULL, 0, NULL, NULL, f->id, (uint64_t)which, (uint64_t)value); }
int cuLaunchKernel(struct Function *f, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z,
                   unsigned bytes, void *stream, void **params, void **extra) {
  if (z != 1 || threads_y != 1 || threads_z != 1 || stream || extra) return 1;
  return ASK(launch, params[0], f->bytes, NULL, NULL, f->id, x, y, threads, bytes);
}
int cuMemAlloc_v2(uint64_t *p, size_t bytes) {
  struct Answer a;
  int code = ASK(allocate, NULL, 0, &a, NULL, bytes);
  *p = a.value;
  return code;
}
int cuMemFree_v2(uint64_t p) { return ASK(release, NULL, 0, NULL, NULL, p); }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) { return ASK(upload, from, bytes, NULL, NULL, to); }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { return ASK(download, NULL, 0, NULL, to, from, bytes); }
int cuStreamSynchronize(void *stream) { return ASK(synchronize, NULL, 0, NULL, NULL, (uintptr_t)stream); }
int cuTensorMapEncodeTiled(void *result, int type, unsigned rank, uint64_t base, const uint64_t *dims, const uint64_t *strides,
                           const unsigned *box, const unsigned *steps, int interleave, int swizzle, int l2, int fill) {
  uint64_t all[15] = {base};
  if (type != 1 || rank != 5 || (uintptr_t)result % 64 || interleave || swizzle != 3 || l2 != 2 || fill) return 1;
  for (int i = 0; i < 5; i++) {
    if (steps[i] != 1) return 1;
    all[1 + i] = dims[i];
    all[10 + i] = box[i];
    if (i < 4) all[6 + i] = strides[i];
  }
  return ASK(map, all, sizeof all, NULL, result, 0);
}
