// A CUDA driver, runtime and kernel of a few functions that do nothing, for tests of scripts/trace_dispatch --cuda
// where there is no GPU. Each part becomes a library of its own, under the name by which the real one is known.
#include <stddef.h>
#include <stdint.h>

#ifdef DRIVER  // libcuda.so.1
int cuLaunchKernelEx(const void* config, void* function, void** arguments, void** extra) {
  (void)config, (void)function, (void)arguments, (void)extra;
  return 0;
}

int cuFuncGetName(const char** name, void* function) {
  *name = "gemm_of_a_library";
  return (uintptr_t)function == 7 ? 0 : 1;
}

int cuGetProcAddress_v2(const char* name, void** found, int version, uint64_t flags, int* status) {
  (void)name, (void)found, (void)version, (void)flags, (void)status;
  return 1;
}
#endif

#ifdef RUNTIME  // libcudart.so.13
int cuLaunchKernelEx(const void* config, void* function, void** arguments, void** extra);

int cudaGetDevice(int* device) {
  *device = 0;
  return 0;
}

int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) {
  (void)to, (void)from, (void)bytes, (void)kind, (void)stream;
  return 0;
}

int __cudaPushCallConfiguration(void) {
  return 0;
}

int __cudaLaunchKernel(void* kernel) {
  return cuLaunchKernelEx(NULL, kernel, NULL, NULL);
}
#endif

#ifdef KERNELS  // _kernels.so
int cudaGetDevice(int* device);
int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream);
int __cudaPushCallConfiguration(void);
int __cudaLaunchKernel(void* kernel);
int cuLaunchKernelEx(const void* config, void* function, void** arguments, void** extra);

// What nvcc makes of `add<<<…>>>`, a kernel `void add(float*)` in an anonymous namespace.
__attribute__((noinline)) int _Z38__device_stub__ZN12_GLOBAL__N_13addEPfPf(float* x) {
  (void)x;
  return __cudaLaunchKernel((void*)3) + 0 * __cudaPushCallConfiguration();
}

int call_cuda(void) {
  int device = 0;
  char from[64], to[64];
  for (int i = 0; i < 3; ++i) cudaGetDevice(&device);
  cudaMemcpyAsync(to, from, 64, 1, NULL);
  __cudaPushCallConfiguration();
  _Z38__device_stub__ZN12_GLOBAL__N_13addEPfPf(NULL);
  cuLaunchKernelEx(NULL, (void*)7, NULL, NULL);  // as cuBLAS does, past the runtime
  return device + cuLaunchKernelEx(NULL, (void*)8, NULL, NULL);
}
#endif
