// libcuda.so.1: contexts, streams and events, the counters and the knobs of all fakes. Memory of the host is
// memory of the device, and kernels do nothing.
#define _GNU_SOURCE
#include "fake.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, NOT_READY = 600, UNKNOWN = 999 };

// Counters.

static const char* const NAMES[COUNTS] = {
    "launches",      "gemms",          "convolutions",  "graph_launches",     "graph_nodes",
    "copies_up",     "copies_down",    "copies_inside", "bytes_up",           "bytes_down",
    "memsets",       "stream_waits",   "event_waits",   "device_waits",       "copy_waits",
    "event_records", "event_queries",  "events_made",   "streams_made",       "stream_dependencies",
    "device_allocations", "host_allocations", "collectives", "collective_threads", "collective_polls",
    "aborts",        "launch_shapes",     "launches_beside",    "channels_last", "bf16_tensors",
    "host_us"};
static _Atomic uint64_t counts[COUNTS];
typedef struct Line {
  char name[24];
  _Atomic uint64_t value;
} Line;
static Line* lines;

const char* fake_folder(void) {
  const char* folder = getenv("FAKE_CUDA");
  return folder ? folder : "/nonexistent";
}

static const char* rank(void) {
  const char* rank = getenv("RANK");
  return rank && *rank ? rank : "-";
}

// When something is counted first: a process that is forked learns its rank after this library is loaded.
static pthread_once_t opened = PTHREAD_ONCE_INIT;

static void open_counters(void) {
  char path[4096];
  snprintf(path, sizeof path, "%s/counters", fake_folder());
  mkdir(path, 0777);
  snprintf(path, sizeof path, "%s/counters/%s.%d", fake_folder(), rank(), getpid());
  int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return;
  if (ftruncate(file, COUNTS * sizeof(Line)) == 0) {
    void* at = mmap(0, COUNTS * sizeof(Line), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) {
      lines = at;
      for (int i = 0; i < COUNTS; i++) snprintf(lines[i].name, sizeof lines[i].name, "%s", NAMES[i]);
    }
  }
  close(file);
}

void fake_count(enum Count which, uint64_t by) {
  pthread_once(&opened, open_counters);
  if (lines) atomic_fetch_add_explicit(&lines[which].value, by, memory_order_relaxed);
  else atomic_fetch_add_explicit(&counts[which], by, memory_order_relaxed);
}

// Knobs.

static int find(const char* name, char* out, size_t size) {
  char path[4096], line[512];
  snprintf(path, sizeof path, "%s/knobs", fake_folder());
  FILE* file = fopen(path, "re");
  if (!file) return 0;
  size_t length = strlen(name);
  int found = 0;
  while (fgets(line, sizeof line, file)) {
    if (strncmp(line, name, length) == 0 && line[length] == '=') {
      line[strcspn(line, "\n")] = 0;
      snprintf(out, size, "%s", line + length + 1);
      found = 1;
    }
  }
  fclose(file);
  return found;
}

const char* fake_text(const char* name, const char* otherwise, char* out, size_t size) {
  char own[128];
  snprintf(own, sizeof own, "%s.%s", name, rank());
  if (!find(own, out, size) && !find(name, out, size)) snprintf(out, size, "%s", otherwise);
  return out;
}

long fake_knob(const char* name, long otherwise) {
  char text[512];
  fake_text(name, "", text, sizeof text);
  return *text ? atol(text) : otherwise;
}

// Devices.

int fake_gpus(void) { return (int)fake_knob("gpus", 1); }

// Of instances of MIG, a process sees one. A divided GPU that is named as a whole is its first instance.
static int instance_of(const char* list) {
  int each = (int)fake_knob("mig_instances", 0);
  if (!fake_knob("mig", 0) || !each) return -1;
  if (!list || strncmp(list, "MIG-", 4)) return 0;
  int number = (int)strtol(list + strcspn(list, ",") - 2, 0, 16);
  return number % 16 < each && number / 16 < fake_gpus() ? number % 16 : -1;
}

int fake_instance(void) { return instance_of(getenv("CUDA_VISIBLE_DEVICES")); }

// Entry `seen` of CUDA_VISIBLE_DEVICES: an index, or GPU-... with the index in its last two digits, as NVML
// gives it here, or MIG-... likewise.
static int visible(int seen, int* count) {
  const char* list = getenv("CUDA_VISIBLE_DEVICES");
  int gpus = fake_gpus(), result = -1, n = 0;
  if (list && strncmp(list, "MIG-", 4) == 0) {
    *count = instance_of(list) >= 0;
    return *count && seen == 0 ? (int)strtol(list + strcspn(list, ",") - 2, 0, 16) / 16 : -1;
  }
  if (!list) {
    *count = gpus;
    return seen < gpus ? seen : -1;
  }
  while (*list) {
    int index = strncmp(list, "GPU-", 4) == 0 ? (int)strtol(list + strcspn(list, ",") - 2, 0, 16) : atoi(list);
    // What comes after an entry that is not a GPU of this machine is not seen either.
    if ((*list < '0' || *list > '9') && *list != 'G') break;
    if (index < 0 || index >= gpus) break;
    if (n == seen) result = index;
    n++;
    list += strcspn(list, ",");
    if (*list == ',') list++;
  }
  *count = n;
  return result;
}

int fake_seen(void) {
  int count;
  visible(-1, &count);
  return count;
}

int fake_real(int seen) {
  int count;
  return visible(seen, &count);
}

void fake_model(int real, char* out, size_t size) {
  char all[512];
  char* at = all;
  fake_text("models", "NVIDIA H200", all, sizeof all);
  for (; real > 0 && strchr(at, '|'); real--) at = strchr(at, '|') + 1;
  at[strcspn(at, "|")] = 0;
  snprintf(out, size, "%s", at);
}

// Knobs that every call asks for are read again every so often only.
static long milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static _Atomic int held;
void fake_hold(void) { held = 1; }

int fake_broken(void) {
  while (held) pause();
  static _Atomic long polled = -1000;
  static _Atomic int lost = -1, error;
  long now = milliseconds();
  if (now - polled > 20) {
    polled = now;
    lost = (int)fake_knob("lost", -1);
    error = (int)fake_knob("cuda_error", 0);
  }
  return lost >= 0 && fake_real(fake_device()) == lost ? UNKNOWN : error;
}

static _Thread_local int device;
int fake_device(void) { return device; }
void fake_set_device(int seen) { device = seen; }

enum { MAX_GPUS = 64 };
static _Atomic long used[MAX_GPUS];

int fake_take(int seen, long bytes) {
  long limit = fake_knob("memory_mib", 143771) << 20, before = used[seen];
  if (bytes > 0 && before + bytes > limit) return 0;
  used[seen] += bytes;
  char path[4096];
  snprintf(path, sizeof path, "%s/gpus", fake_folder());
  mkdir(path, 0777);
  snprintf(path, sizeof path, "%s/gpus/%d", fake_folder(), fake_real(seen));
  mkdir(path, 0777);
  snprintf(path, sizeof path, "%s/gpus/%d/%d", fake_folder(), fake_real(seen), getpid());
  FILE* file = fopen(path, "we");
  if (file) {
    fprintf(file, "%ld %d\n", used[seen], fake_instance());
    fclose(file);
  }
  return 1;
}

// What was written last at an address.
enum { PLACES = 1 << 14 };
static struct {
  const void* at;
  size_t size;
} places[PLACES];

static int place(const void* at) { return (int)(((uintptr_t)at >> 2) * 0x9e3779b97f4a7c15ull >> 50); }
void fake_written(const void* at, size_t size) {
  places[place(at)].at = at;
  places[place(at)].size = size;
}
int fake_is_written(const void* at, size_t size) { return places[place(at)].at == at && places[place(at)].size == size; }

static int started;

int cuInit(unsigned flags) {
  int failure = (int)fake_knob("start_error", 0);
  if (failure) return failure;
  started = 1;
  return fake_seen() > 0 ? OK : NO_DEVICE;
}
int cuDriverGetVersion(int* version) {
  *version = (int)fake_knob("driver", 13000);
  return OK;
}
int cuDeviceGetCount(int* count) {
  if (!started) return NOT_INITIALIZED;
  *count = fake_seen();
  return OK;
}
int cuDeviceGet(int* out, int index) {
  if (index < 0 || index >= fake_seen()) return INVALID_DEVICE;
  *out = index;
  return OK;
}
int cuDevicePrimaryCtxRetain(void** context, int index) {
  *context = (void*)(intptr_t)(index + 1);
  return fake_take(index, 512L << 20) ? OK : 2;
}
int cuDevicePrimaryCtxGetState(int index, unsigned* flags, int* active) {
  *flags = 0;
  *active = used[index] > 0;
  return OK;
}
int cuCtxSetCurrent(void* context) {
  if (context) device = (int)(intptr_t)context - 1;
  return OK;
}
int cuCtxGetCurrent(void** context) {
  *context = (void*)(intptr_t)(device + 1);
  return OK;
}
int cuDeviceGetAttribute(int* value, int attribute, int index) {
  *value = 0;
  return OK;
}
int cuDeviceGetUuid_v2(unsigned char* uuid, int index) {
  memset(uuid, 0, 16);
  uuid[15] = (unsigned char)fake_real(index);
  return OK;
}
int cuDeviceGetUuid(unsigned char* uuid, int index) { return cuDeviceGetUuid_v2(uuid, index); }

// Streams and events. A stream holds what it waits for: its own unfinished work, and that of others by their
// events.

enum { WAITS = 32 };
typedef struct Wait {
  Stream* stream;
  uint64_t upto;
} Wait;
struct Stream {
  _Atomic uint64_t begun, ended;
  Wait waits[WAITS];
  int count;
};
typedef struct Event {
  Wait waits[WAITS];
  int count;
  // Where it was recorded.
  Stream* on;
} Event;

static Stream null_streams[MAX_GPUS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;

Stream* fake_stream(void* handle) { return (uintptr_t)handle < 4 ? &null_streams[device] : handle; }

static void prune(Wait* waits, int* count) {
  int kept = 0;
  for (int i = 0; i < *count; i++)
    if (waits[i].stream->ended < waits[i].upto) waits[kept++] = waits[i];
  *count = kept;
}

static void add(Wait* waits, int* count, Wait wait) {
  for (int i = 0; i < *count; i++) {
    if (waits[i].stream == wait.stream) {
      if (waits[i].upto < wait.upto) waits[i].upto = wait.upto;
      return;
    }
  }
  if (*count < WAITS) waits[(*count)++] = wait;
}

uint64_t fake_stream_begin(Stream* stream) {
  pthread_mutex_lock(&lock);
  uint64_t number = ++stream->begun;
  pthread_mutex_unlock(&lock);
  return number;
}

void fake_stream_end(Stream* stream, uint64_t upto) {
  pthread_mutex_lock(&lock);
  if (stream->ended < upto) stream->ended = upto;
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&lock);
}

static void capture(Stream* stream, Event* event) {
  prune(stream->waits, &stream->count);
  memcpy(event->waits, stream->waits, sizeof event->waits);
  event->count = stream->count;
  if (stream->ended < stream->begun) add(event->waits, &event->count, (Wait){stream, stream->begun});
}

static Stream* _Atomic beside;
void fake_collective_begun(Stream* stream) { beside = stream; }
void fake_launched(void) {
  if (beside) fake_count(LAUNCHES_BESIDE, 1);
}

static void join(Event* event) {
  for (prune(event->waits, &event->count); event->count > 0; prune(event->waits, &event->count))
    pthread_cond_wait(&moved, &lock);
}

void* fake_stream_mark(Stream* stream) {
  Event* now = calloc(1, sizeof *now);
  pthread_mutex_lock(&lock);
  capture(stream, now);
  pthread_mutex_unlock(&lock);
  return now;
}

void fake_mark_join(void* mark) {
  pthread_mutex_lock(&lock);
  join(mark);
  pthread_mutex_unlock(&lock);
  free(mark);
}

void fake_stream_join(Stream* stream) {
  Event now;
  pthread_mutex_lock(&lock);
  capture(stream, &now);
  join(&now);
  pthread_mutex_unlock(&lock);
}

int cuStreamCreate(void** stream, unsigned flags) {
  *stream = calloc(1, sizeof(Stream));
  fake_count(STREAMS_MADE, 1);
  return OK;
}
// Streams stay: others may wait for what was on them.
int cuStreamDestroy_v2(void* stream) { return OK; }
int cuEventCreate(void** event, unsigned flags) {
  *event = calloc(1, sizeof(Event));
  fake_count(EVENTS_MADE, 1);
  return OK;
}
int cuEventDestroy_v2(void* event) {
  free(event);
  return OK;
}
int cuEventRecord(void* event, void* stream) {
  if (fake_broken()) return fake_broken();
  fake_count(EVENT_RECORDS, 1);
  pthread_mutex_lock(&lock);
  capture(fake_stream(stream), event);
  ((Event*)event)->on = fake_stream(stream);
  pthread_mutex_unlock(&lock);
  return OK;
}
int cuEventQuery(void* event) {
  if (fake_broken()) return fake_broken();
  fake_count(EVENT_QUERIES, 1);
  Event* own = event;
  pthread_mutex_lock(&lock);
  prune(own->waits, &own->count);
  int done = own->count == 0;
  pthread_mutex_unlock(&lock);
  return done ? OK : NOT_READY;
}
int cuEventSynchronize(void* event) {
  if (fake_broken()) return fake_broken();
  fake_count(EVENT_WAITS, 1);
  pthread_mutex_lock(&lock);
  join(event);
  pthread_mutex_unlock(&lock);
  return OK;
}
int cuEventElapsedTime(float* out, void* from, void* to) {
  *out = 0.001f;
  return OK;
}
int cuEventElapsedTime_v2(float* out, void* from, void* to) { return cuEventElapsedTime(out, from, to); }
int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  if (fake_broken()) return fake_broken();
  fake_count(STREAM_DEPENDENCIES, 1);
  Stream* own = fake_stream(stream);
  Event* other = event;
  if (own == &null_streams[device] && other->on == beside) beside = 0;
  pthread_mutex_lock(&lock);
  prune(own->waits, &own->count);
  prune(other->waits, &other->count);
  for (int i = 0; i < other->count; i++)
    if (other->waits[i].stream != own) add(own->waits, &own->count, other->waits[i]);
  pthread_mutex_unlock(&lock);
  return OK;
}
int cuStreamQuery(void* stream) {
  if (fake_broken()) return fake_broken();
  Event now;
  pthread_mutex_lock(&lock);
  capture(fake_stream(stream), &now);
  pthread_mutex_unlock(&lock);
  return now.count == 0 ? OK : NOT_READY;
}
int cuStreamSynchronize(void* stream) {
  if (fake_broken()) return fake_broken();
  fake_count(STREAM_WAITS, 1);
  fake_stream_join(fake_stream(stream));
  return OK;
}

const char* fake_error_words(int error) {
  switch (error) {
    case 2: return "out of memory";
    case 209: return "no kernel image is available for execution on the device";
    case 214: return "uncorrectable ECC error encountered";
    case 700: return "an illegal memory access was encountered";
    case 719: return "unspecified launch failure";
    case 999: return "unknown error";
    default: return "fake error";
  }
}
int cuGetErrorString(int error, const char** text) {
  *text = fake_error_words(error);
  return OK;
}
int cuGetErrorName(int error, const char** text) {
  switch (error) {
    case 2: *text = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case 214: *text = "CUDA_ERROR_ECC_UNCORRECTABLE"; break;
    case 719: *text = "CUDA_ERROR_LAUNCH_FAILED"; break;
    case 999: *text = "CUDA_ERROR_UNKNOWN"; break;
    default: *text = "CUDA_ERROR_FAKE";
  }
  return OK;
}

#define NOTHING(name) \
  int name(void) { return OK; }
NOTHING(cuFuncGetAttribute)
NOTHING(cuFuncSetAttribute)
NOTHING(cuFuncSetCacheConfig)
NOTHING(cuLaunchCooperativeKernel)
NOTHING(cuLaunchKernel)
NOTHING(cuLinkAddData_v2)
NOTHING(cuLinkComplete)
NOTHING(cuLinkCreate_v2)
NOTHING(cuModuleGetFunction)
NOTHING(cuModuleLoad)
NOTHING(cuModuleLoadData)
NOTHING(cuModuleLoadDataEx)
NOTHING(cuModuleUnload)
NOTHING(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NOTHING(cuPointerGetAttribute)
NOTHING(cuTensorMapEncodeTiled)
NOTHING(cuCtxPushCurrent)
NOTHING(cuCtxPopCurrent)
NOTHING(fake_nothing)
