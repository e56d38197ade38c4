// libnvidia-ml.so.1: each GPU as in the knobs, and the processes that use it.
#include "fake.h"
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15 };
typedef void* Device;
typedef struct ProcessInfo {
  unsigned pid;
  unsigned long long used;
  unsigned instance, compute;
} ProcessInfo;
typedef struct ProcessSample {
  unsigned pid;
  unsigned long long time;
  unsigned sm, memory, encoder, decoder;
} ProcessSample;

// Handles: a GPU's index + 1, and from INSTANCES on, 16 for each GPU and one for each of its instances.
enum { INSTANCES = 1024 };
static int instance_of(Device device) { return (intptr_t)device < INSTANCES ? -1 : (int)((intptr_t)device % 16); }
static int index_of(Device device) {
  return instance_of(device) < 0 ? (int)(intptr_t)device - 1 : (int)(((intptr_t)device - INSTANCES) / 16);
}
static int instances(void) { return fake_knob("mig", 0) ? (int)fake_knob("mig_instances", 0) : 0; }
// The GPU that NVML does not count any more, or -1.
static int gone(void) { return fake_knob("renumbers", 0) ? (int)fake_knob("lost", -1) : -1; }
static int lost(Device device) { return fake_knob("lost", -1) == index_of(device); }

// A knob that may be `unsupported`, with a value for each GPU: `NAME.INDEX` is not distinguished, so GPU n
// shows value + 10 n.
static int figure(const char* name, long otherwise, Device device, unsigned* out) {
  char text[64];
  if (lost(device)) return LOST;
  fake_text(name, "", text, sizeof text);
  if (strcmp(text, "unsupported") == 0) return NOT_SUPPORTED;
  *out = (unsigned)((*text ? atol(text) : otherwise) + 10 * index_of(device));
  return SUCCESS;
}

int nvmlInit_v2(void) { return (int)fake_knob("nvml", SUCCESS); }
int nvmlInitWithFlags(unsigned flags) { return (int)fake_knob("nvml", SUCCESS); }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlSystemGetDriverVersion(char* out, unsigned size) {
  fake_text("driver_name", "580.95.05", out, size);
  return SUCCESS;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = (int)fake_knob("driver", 13000);
  return SUCCESS;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = (unsigned)(fake_gpus() - (gone() >= 0));
  return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* out) {
  if (gone() >= 0 && (int)index >= gone()) index++;
  if ((int)index >= fake_gpus()) return INVALID_ARGUMENT;
  *out = (Device)(intptr_t)(index + 1);
  return lost(*out) ? LOST : SUCCESS;
}
// libtorch asks when memory is short.
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, Device* out) {
  unsigned domain, number = 0;
  sscanf(bus, "%x:%x", &domain, &number);
  return nvmlDeviceGetHandleByIndex_v2(number ? number - 1 : 0, out);
}
int nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned link, int* out) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, void* out) { return NOT_SUPPORTED; }
int nvmlDeviceGetIndex(Device device, unsigned* out) {
  *out = (unsigned)(index_of(device) - (gone() >= 0 && index_of(device) > gone()));
  return lost(device) ? LOST : SUCCESS;
}
int nvmlDeviceGetName(Device device, char* out, unsigned size) {
  fake_model(index_of(device), out, size);
  if (instance_of(device) >= 0) strncat(out, " MIG 1g", size - strlen(out) - 1);
  return SUCCESS;
}
int nvmlDeviceGetUUID(Device device, char* out, unsigned size) {
  if (instance_of(device) >= 0)
    snprintf(out, size, "MIG-00000000-0000-0000-0000-0000000000%x%x", index_of(device), instance_of(device));
  else
  snprintf(out, size, "GPU-00000000-0000-0000-0000-0000000000%02x", index_of(device));
  return SUCCESS;
}
int nvmlDeviceGetMigMode(Device device, unsigned* now, unsigned* later) {
  *now = *later = (unsigned)fake_knob("mig", 0);
  return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned* count) {
  *count = 7;
  return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device* out) {
  if ((int)index >= instances()) return NOT_FOUND;
  *out = (Device)(intptr_t)(INSTANCES + 16 * index_of(device) + (int)index);
  return SUCCESS;
}
int nvmlDeviceGetRemappedRows(Device device, unsigned* corrected, unsigned* uncorrected, unsigned* pending, unsigned* failed) {
  char text[64];
  *corrected = *uncorrected = *pending = *failed = 0;
  fake_text("row_remap", "0 0", text, sizeof text);
  sscanf(text, "%u %u", pending, failed);
  return SUCCESS;
}
int nvmlDeviceGetRetiredPagesPendingStatus(Device device, int* pending) {
  *pending = (int)fake_knob("retired_pending", 0);
  return SUCCESS;
}

static int processes(Device device, ProcessInfo* out, unsigned room) {
  char path[4096];
  int count = 0, hidden = fake_knob("hide_pids", 0) ? 5000000 : 0;
  snprintf(path, sizeof path, "%s/gpus/%d", fake_folder(), index_of(device));
  DIR* folder = opendir(path);
  if (!folder) return 0;
  for (struct dirent* entry; (entry = readdir(folder));) {
    int pid = atoi(entry->d_name), instance = -1;
    unsigned long long used = 0;
    if (pid <= 0 || (kill(pid, 0) && errno == ESRCH)) continue;
    snprintf(path, sizeof path, "%s/gpus/%d/%d", fake_folder(), index_of(device), pid);
    FILE* file = fopen(path, "re");
    if (file) {
      if (fscanf(file, "%llu %d", &used, &instance) < 1) used = 0;
      fclose(file);
    }
    if (instance_of(device) >= 0 && instance != instance_of(device)) continue;
    if (out && (unsigned)count < room) out[count] = (ProcessInfo){(unsigned)(pid + hidden), used, (unsigned)instance, ~0u};
    count++;
  }
  closedir(folder);
  return count;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned* count, ProcessInfo* out) {
  unsigned room = *count;
  if (lost(device)) return LOST;
  *count = (unsigned)processes(device, out, room);
  return *count > room ? TOO_SMALL : SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses(Device device, unsigned* count, ProcessInfo* out) {
  return nvmlDeviceGetComputeRunningProcesses_v3(device, count, out);
}
int nvmlDeviceGetProcessUtilization(Device device, ProcessSample* out, unsigned* count, unsigned long long since) {
  ProcessInfo found[256];
  unsigned each, room = *count;
  int status = figure("process_utilization", 20, device, &each);
  if (status != SUCCESS) return status;
  int there = processes(device, found, 256);
  if (there == 0) return NOT_FOUND;
  *count = (unsigned)there;
  if (!out || room < (unsigned)there) return TOO_SMALL;
  // Each process uses one more per cent than the one before. The driver takes samples all the time.
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  unsigned long long time = fake_knob("idle", 0) ? 1 : now.tv_sec * 1000000ull + now.tv_nsec / 1000;
  for (int i = 0; i < there; i++) out[i] = (ProcessSample){found[i].pid, time, each + (unsigned)i, 1, 0, 0};
  return SUCCESS;
}
// { total, free, used }
int nvmlDeviceGetMemoryInfo(Device device, unsigned long long* out) {
  ProcessInfo found[256];
  if (lost(device)) return LOST;
  int count = processes(device, found, 256);
  out[0] = (unsigned long long)fake_knob("memory_mib", 143771) << 20;
  if (instance_of(device) >= 0) out[0] /= (unsigned)instances();
  out[2] = (unsigned long long)fake_knob("reserved_mib", 0) << 20;
  for (int i = 0; i < count && i < 256; i++) out[2] += found[i].used;
  out[1] = out[0] - out[2];
  return SUCCESS;
}
// The layout of nvmlMemory_v2_t; `reserved` is what the driver keeps for itself.
struct MemoryV2 { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(Device device, struct MemoryV2* out) {
  unsigned long long memory[3];
  int code = nvmlDeviceGetMemoryInfo(device, memory);
  if (code != SUCCESS) return code;
  out->total = memory[0], out->free = memory[1], out->used = memory[2], out->reserved = 0;
  return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(Device device, unsigned* out) {
  out[1] = 5;
  return figure("utilization", 50, device, out);
}
int nvmlDeviceGetPowerUsage(Device device, unsigned* out) {
  *out = 312000;
  return lost(device) ? LOST : SUCCESS;
}
int nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned* out) {
  *out = 700000;
  return SUCCESS;
}
int nvmlDeviceGetTemperature(Device device, int sensor, unsigned* out) {
  *out = 55;
  return lost(device) ? LOST : SUCCESS;
}
int nvmlDeviceGetClockInfo(Device device, int clock, unsigned* out) {
  *out = clock == 1 ? 1980 : 3201;
  return SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long* out) {
  *out = (unsigned long long)fake_knob("throttle", 0);
  return SUCCESS;
}
// A knob that counts for every GPU alike, and may be `unsupported`.
static int number(const char* name, Device device, unsigned long long* out) {
  char text[64];
  if (lost(device)) return LOST;
  fake_text(name, "0", text, sizeof text);
  if (strcmp(text, "unsupported") == 0) return NOT_SUPPORTED;
  *out = strtoull(text, 0, 10);
  return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(Device device, int kind, int counter, unsigned long long* out) {
  return number(kind == 0 ? "ecc_corrected" : "ecc_uncorrected", device, out);
}
int nvmlDeviceGetPcieThroughput(Device device, int counter, unsigned* out) {
  unsigned long long value = 0;
  int status = number(counter == 0 ? "pcie_tx" : "pcie_rx", device, &value);
  *out = (unsigned)value;
  return status;
}
typedef struct Field {
  unsigned id, scope;
  long long timestamp, latency;
  unsigned kind, status;
  unsigned long long value;
} Field;
// Received and sent are counters of KiB that grow by so much in a second, of all links together.
int nvmlDeviceGetFieldValues(Device device, int count, Field* fields) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  unsigned long long milliseconds = now.tv_sec * 1000ull + now.tv_nsec / 1000000;
  for (int i = 0; i < count; i++) {
    Field* field = &fields[i];
    unsigned long long value = 0;
    field->kind = 3;
    switch (field->scope == ~0u ? field->id : 0) {
      case 138: field->status = (unsigned)number("nvlink_tx", device, &value); break;
      case 139: field->status = (unsigned)number("nvlink_rx", device, &value); break;
      case 59: field->status = (unsigned)number("nvlink_errors", device, &field->value); continue;
      default: field->status = INVALID_ARGUMENT; continue;
    }
    field->value = value * milliseconds / 1000;
  }
  return SUCCESS;
}
int nvmlDeviceGetSupportedEventTypes(Device device, unsigned long long* out) {
  *out = 8;
  return SUCCESS;
}
int nvmlEventSetCreate(void** out) {
  *out = (void*)1;
  return SUCCESS;
}
int nvmlEventSetFree(void* set) { return SUCCESS; }
int nvmlDeviceRegisterEvents(Device device, unsigned long long types, void* set) { return SUCCESS; }
typedef struct EventData {
  Device device;
  unsigned long long type, data;
  unsigned instance, compute;
} EventData;
int nvmlEventSetWait_v2(void* set, EventData* out, unsigned milliseconds) {
  static int reported;
  char text[64];
  int index, number;
  fake_text("xid", "", text, sizeof text);
  if (!reported && sscanf(text, "%d %d", &index, &number) == 2) {
    reported = 1;
    *out = (EventData){(Device)(intptr_t)(index + 1), 8, (unsigned long long)number, ~0u, ~0u};
    return SUCCESS;
  }
  usleep(milliseconds * 1000);
  return TIMEOUT;
}
const char* nvmlErrorString(int error) { return error == LOST ? "GPU is lost" : "fake error"; }
