// libcudart.so.13: memory, copies, launches and graphs, as far as libtorch asks for them. Copies are real and
// done at once, but wait for what their stream waits for. Launches are counted.
#define _GNU_SOURCE
#include "fake.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int cuInit(unsigned);
int cuDriverGetVersion(int*);
int cuStreamCreate(void**, unsigned);
int cuStreamQuery(void*);
int cuStreamSynchronize(void*);
int cuStreamWaitEvent(void*, void*, unsigned);
int cuEventCreate(void**, unsigned);
int cuEventDestroy_v2(void*);
int cuEventRecord(void*, void*);
int cuEventQuery(void*);
int cuEventSynchronize(void*);
int fake_nothing(void);

enum { RUNTIME = 13000 };

// Memory: which addresses are whose.

enum Kind { PAGEABLE = 0, HOST = cudaMemoryTypeHost, DEVICE = cudaMemoryTypeDevice };
typedef struct Block {
  char* at;
  size_t size;
  enum Kind kind;
  int device;
  struct Block* next;
} Block;
static Block* blocks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void* take(size_t size, enum Kind kind) {
  size_t whole = (size + 4095) & ~(size_t)4095;
  char* at = aligned_alloc(4096, whole ? whole : 4096);
  Block* block = malloc(sizeof *block);
  if (!at || !block) return 0;
  memset(at, 0, whole);
  *block = (Block){at, whole, kind, fake_device(), 0};
  pthread_mutex_lock(&lock);
  block->next = blocks;
  blocks = block;
  pthread_mutex_unlock(&lock);
  return at;
}

static void give(void* at) {
  pthread_mutex_lock(&lock);
  for (Block** block = &blocks; *block; block = &(*block)->next) {
    if ((*block)->at == at) {
      Block* gone = *block;
      *block = gone->next;
      if (gone->kind == DEVICE) fake_take(gone->device, -(long)gone->size);
      free(gone->at);
      free(gone);
      break;
    }
  }
  pthread_mutex_unlock(&lock);
}

static Block of(const void* at) {
  Block found = {0};
  pthread_mutex_lock(&lock);
  for (Block* block = blocks; block; block = block->next) {
    if ((char*)at >= block->at && (char*)at < block->at + block->size) {
      found = *block;
      break;
    }
  }
  pthread_mutex_unlock(&lock);
  return found;
}

cudaError_t cudaMalloc(void** out, size_t size) {
  if (fake_broken()) return (cudaError_t)fake_broken();
  if (!fake_take(fake_device(), (long)((size + 4095) & ~(size_t)4095))) return cudaErrorMemoryAllocation;
  fake_count(DEVICE_ALLOCATIONS, 1);
  *out = take(size, DEVICE);
  return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaMallocAsync(void** out, size_t size, cudaStream_t stream) { return cudaMalloc(out, size); }
cudaError_t cudaFree(void* at) {
  if (at) give(at);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* at, cudaStream_t stream) { return cudaFree(at); }
cudaError_t cudaHostAlloc(void** out, size_t size, unsigned flags) {
  fake_count(HOST_ALLOCATIONS, 1);
  *out = take(size, HOST);
  return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void* at) { return cudaFree(at); }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* out, const void* at) {
  Block block = of(at);
  memset(out, 0, sizeof *out);
  out->type = (enum cudaMemoryType)block.kind;
  out->device = block.device;
  out->devicePointer = (void*)at;
  out->hostPointer = block.kind == HOST ? (void*)at : 0;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* left, size_t* all) {
  *all = (size_t)fake_knob("memory_mib", 143771) << 20;
  *left = *all;
  return cudaSuccess;
}

// Graphs: what is put on a stream that is being captured becomes a node and is not done.

typedef struct Graph {
  uint64_t nodes;
} Graph;
static Graph* graph;
static Stream* captured;

// Whether the work becomes a node.
static int node(void* stream) {
  if (!captured || fake_stream(stream) != captured) return 0;
  graph->nodes++;
  return 1;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  if (captured) return cudaErrorIllegalState;
  if (fake_knob("capture_refused", 0)) return cudaErrorStreamCaptureUnsupported;
  captured = fake_stream(stream);
  graph = calloc(1, sizeof(Graph));
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
  if (!captured || fake_stream(stream) != captured) return cudaErrorStreamCaptureUnmatched;
  *out = (cudaGraph_t)graph;
  captured = 0;
  graph = 0;
  if (fake_knob("capture_fails", 0)) {
    *out = 0;
    return cudaErrorStreamCaptureInvalidated;
  }
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) {
  *status = captured && fake_stream(stream) == captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream, enum cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* out,
    const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges, size_t* count) {
  enum cudaStreamCaptureStatus own;
  cudaStreamIsCapturing(stream, &own);
  if (status) *status = own;
  if (id) *id = (unsigned long long)(uintptr_t)graph;
  if (out) *out = (cudaGraph_t)graph;
  if (count) *count = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode* mode) { return cudaSuccess; }
// CPU time of the process from its first launch to its latest.
static void count_host_time(void) {
  static _Atomic uint64_t latest;
  struct timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  uint64_t now = used.tv_sec * 1000000ull + used.tv_nsec / 1000, before = atomic_exchange(&latest, now);
  if (before && now > before) fake_count(HOST_US, now - before);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t from, unsigned long long flags) {
  Graph* own = malloc(sizeof *own);
  *own = *(Graph*)from;
  *out = (cudaGraphExec_t)own;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (fake_broken()) return (cudaError_t)fake_broken();
  fake_count(GRAPH_LAUNCHES, 1);
  count_host_time();
  fake_launched();
  fake_count(GRAPH_NODES, ((Graph*)exec)->nodes);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t from, cudaGraphNode_t* nodes, size_t* count) {
  *count = ((Graph*)from)->nodes;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t own) {
  free(own);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t own) {
  free(own);
  return cudaSuccess;
}

// Copies.

static cudaError_t copy(void* to, const void* from, size_t size, void* stream) {
  if (fake_broken()) return (cudaError_t)fake_broken();
  enum Kind target = of(to).kind, source = of(from).kind;
  if (captured && fake_stream(stream) == captured && (target == PAGEABLE || source == PAGEABLE))
    return cudaErrorStreamCaptureUnsupported;
  if (node(stream)) return cudaSuccess;
  if (target == DEVICE && source == DEVICE) {
    fake_count(COPIES_INSIDE, 1);
  } else if (target == DEVICE) {
    fake_count(COPIES_UP, 1);
    fake_count(BYTES_UP, size);
  } else if (source == DEVICE) {
    fake_count(COPIES_DOWN, 1);
    fake_count(BYTES_DOWN, size);
  }
  fake_stream_join(fake_stream(stream));
  if (source == DEVICE && !fake_is_written(from, size)) {
    memset(to, 0, size);
    return cudaSuccess;
  }
  memmove(to, from, size);
  if (target == DEVICE) fake_written(to, size);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
  return copy(to, from, size, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, enum cudaMemcpyKind kind) {
  fake_count(COPY_WAITS, 1);
  return copy(to, from, size, 0);
}
cudaError_t cudaMemcpy2DAsync(
    void* to, size_t pitch, const void* from, size_t other, size_t width, size_t height, enum cudaMemcpyKind kind,
    cudaStream_t stream) {
  for (size_t row = 0; row < height; row++)
    copy((char*)to + row * pitch, (const char*)from + row * other, width, stream);
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int target, const void* from, int source, size_t size, cudaStream_t stream) {
  return copy(to, from, size, stream);
}
cudaError_t cudaMemcpyToSymbol(const void* to, const void* from, size_t size, size_t offset, enum cudaMemcpyKind kind) {
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t size, cudaStream_t stream) {
  if (fake_broken()) return (cudaError_t)fake_broken();
  if (node(stream)) return cudaSuccess;
  fake_count(MEMSETS, 1);
  fake_stream_join(fake_stream(stream));
  memset(at, value, size);
  fake_written(at, size);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* at, int value, size_t size) { return cudaMemsetAsync(at, value, size, 0); }

// Devices.

cudaError_t cudaGetDeviceCount(int* count) {
  int driver;
  cuDriverGetVersion(&driver);
  *count = 0;
  // A driver runs programs of its own and of earlier major versions.
  if (driver / 1000 < RUNTIME / 1000) return cudaErrorInsufficientDriver;
  cuInit(0);
  *count = fake_seen();
  return *count ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= fake_seen()) return cudaErrorInvalidDevice;
  fake_set_device(device);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = fake_device();
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* out, int device) {
  memset(out, 0, sizeof *out);
  fake_model(fake_real(device), out->name, sizeof out->name);
  ((char*)&out->uuid)[15] = (char)fake_real(device);
  out->totalGlobalMem = (size_t)fake_knob("memory_mib", 143771) << 20;
  out->sharedMemPerBlock = 49152;
  out->regsPerBlock = 65536;
  out->warpSize = 32;
  out->maxThreadsPerBlock = 1024;
  out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
  out->maxThreadsDim[2] = 64;
  out->maxGridSize[0] = 2147483647;
  out->maxGridSize[1] = out->maxGridSize[2] = 65535;
  out->totalConstMem = 65536;
  out->major = 9;
  out->multiProcessorCount = (int)fake_knob("multiprocessors", 132);
  out->l2CacheSize = 60 << 20;
  out->maxThreadsPerMultiProcessor = 2048;
  out->sharedMemPerMultiprocessor = 233472;
  out->regsPerMultiprocessor = 65536;
  out->sharedMemPerBlockOptin = 232448;
  out->maxBlocksPerMultiProcessor = 32;
  out->unifiedAddressing = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attribute, int device) {
  struct cudaDeviceProp own;
  cudaGetDeviceProperties(&own, device);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = 65536; break;
    case cudaDevAttrMultiProcessorCount: *value = own.multiProcessorCount; break;
    case cudaDevAttrL2CacheSize: *value = own.l2CacheSize; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = own.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = own.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 233472; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
    default: *value = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* out, int size, int device) {
  snprintf(out, (size_t)size, "0000:%02x:00.0", fake_real(device) + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* low, int* high) {
  *low = 0;
  *high = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
  if (fake_broken()) return (cudaError_t)fake_broken();
  fake_count(DEVICE_WAITS, 1);
  fake_stream_join(fake_stream(0));
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return (cudaError_t)cuDriverGetVersion(version); }
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = RUNTIME;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = 0;
  return cudaSuccess;
}

// Streams and events.

cudaError_t cudaEventCreate(cudaEvent_t* out) { return (cudaError_t)cuEventCreate((void**)out, 0); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) { return (cudaError_t)cuEventCreate((void**)out, flags); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return (cudaError_t)cuEventDestroy_v2(event); }
cudaError_t cudaEventElapsedTime(float* out, cudaEvent_t from, cudaEvent_t to) {
  *out = 0.001f;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return (cudaError_t)cuEventQuery(event); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return (cudaError_t)cuEventRecord(event, stream); }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return (cudaError_t)cuEventRecord(event, stream);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return (cudaError_t)cuEventSynchronize(event); }
cudaError_t cudaStreamCreate(cudaStream_t* out) { return (cudaError_t)cuStreamCreate((void**)out, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int priority) {
  return (cudaError_t)cuStreamCreate((void**)out, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return (cudaError_t)cuStreamQuery(stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (captured) return cudaErrorStreamCaptureUnsupported;
  return (cudaError_t)cuStreamSynchronize(stream);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return (cudaError_t)cuStreamWaitEvent(stream, event, flags);
}

// Launches.

// Kernels that put tensors one behind the other. They cut their work by the number of multiprocessors, and
// compute nothing: their shapes do not count.
static const void* joining[8192];
static int joinings;
void __cudaRegisterFunction(
    void** handle, const char* host, char* device, const char* name, int threads, void* thread, void* block, void* blocks,
    void* grid, int* words) {
  if (strstr(name, "CatArrayBatchedCopy") && joinings < (int)(sizeof joining / sizeof *joining)) joining[joinings++] = host;
}
static int joins(const void* kernel) {
  for (int i = 0; i < joinings; i++)
    if (joining[i] == kernel) return 1;
  return 0;
}

static cudaError_t launch(const void* kernel, dim3 grid, dim3 block, size_t shared, void* stream) {
  if (fake_broken()) return (cudaError_t)fake_broken();
  if (node(stream)) return cudaSuccess;
  fake_count(LAUNCHES, 1);
  count_host_time();
  fake_launched();
  if (joins(kernel)) return cudaSuccess;
  // A sum of hashes: which shapes there were, and how often each.
  uint64_t hash = shared;
  unsigned const sides[] = {grid.x, grid.y, grid.z, block.x, block.y, block.z};
  for (int i = 0; i < 6; i++) hash = (hash ^ sides[i]) * 0x100000001b3ull;
  fake_count(LAUNCH_SHAPES, hash & 0xffffffff);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  return launch(kernel, grid, block, shared, stream);
}
cudaError_t __cudaLaunchKernel(void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  return launch(kernel, grid, block, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  return launch(kernel, config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream);
}
cudaError_t cudaLaunchCooperativeKernel(
    const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  return launch(kernel, grid, block, shared, stream);
}
cudaError_t __cudaGetKernel(void** out, const void* kernel) {
  *out = (void*)kernel;
  return cudaSuccess;
}
static _Thread_local struct {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
} next;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  next.grid = grid;
  next.block = block;
  next.shared = shared;
  next.stream = stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = next.grid;
  *block = next.block;
  *shared = next.shared;
  *(cudaStream_t*)stream = next.stream;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* out, const void* kernel) {
  memset(out, 0, sizeof *out);
  out->binaryVersion = out->ptxVersion = 90;
  out->maxThreadsPerBlock = 1024;
  out->numRegs = 32;
  out->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* out, const void* kernel, int block, size_t shared) {
  *out = 2;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* out, const void* kernel, int block, size_t shared, unsigned flags) {
  *out = 2;
  return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void** out, const void* symbol) {
  static void* at;
  if (!at) at = take(1 << 20, DEVICE);
  *out = at;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** out, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult* found) {
  *out = dlsym(RTLD_DEFAULT, name);
  if (!*out) *out = (void*)fake_nothing;
  if (found) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

// A launch is asked for its error afterwards.
cudaError_t cudaGetLastError(void) { return (cudaError_t)fake_broken(); }
cudaError_t cudaPeekAtLastError(void) { return (cudaError_t)fake_broken(); }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : error == cudaErrorUnknown ? "cudaErrorUnknown" : "cudaErrorFake";
}
const char* cudaGetErrorString(cudaError_t error) { return fake_error_words((int)error); }
