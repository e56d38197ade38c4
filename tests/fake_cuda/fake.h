// What the fakes of the NVIDIA libraries share. Everything here is defined in driver.c (libcuda.so.1).
//
// A test gives a folder in FAKE_CUDA. In it:
//   knobs lines `name=value`, read again whenever they are asked for; `name.RANK` counts for one rank only
//   counters/RANK.PID lines of 32 bytes, `name value`, always up to date (a mapping); RANK is `-` without one
//   gpus/INDEX/PID bytes that a process has on a GPU
//
// Knobs (default):
//   gpus (1) models (NVIDIA H200; one for each GPU, divided by `|`, the last one repeated) memory_mib
//   (143771) multiprocessors (132) driver (13000, as cuDriverGetVersion returns it) driver_name (580.95.05)
//   hang_at (never): the collective of this number, counted from 0, never ends; abort_hangs (0):
//   ncclCommAbort neither hang_holds (0): and from then on no call on the GPU
//   network_dies (never): from the collective of this number on, the network card is dead;
//   init_hangs (0): ncclCommInitRankConfig never returns
//   ras (0): NCCL's RAS is not there; 1: it answers, as the version in `nccl` does; 2: it never answers
//   utilization (50) process_utilization (20): their value may be `unsupported`
//   capture_refused (0): no capture of a CUDA graph begins; capture_fails (0): none ends well
//   mig (0): GPUs are divided; mig_instances (0): number of instances of each, MIG-... with the GPU's and the
//   instance's number as its last two digits; hide_pids (0): NVML reports pids of another namespace; idle (0):
//   processes that were there before get no new samples of their use
//   nvml (0): what NVML answers to the first call: 9 for no module in the kernel, 18 for one of another
//     version
//   lost (none): index of a GPU that has fallen off the bus: NVML has lost it, and every call on it
//   fails; renumbers (0): NVML then renumbers the others; row_remap (none): PENDING FAILED, as NVML reports
//   them; retired_pending (0); xid (none): `INDEX NUMBER`, reported once per process
//   ecc_corrected ecc_uncorrected nvlink_errors (0) pcie_rx pcie_tx (0, KB/s) nvlink_rx nvlink_tx (0, KiB/s):
//   their value may be `unsupported`; throttle (0): NVML's bits
//   without (none): `LIBRARY:SYMBOL`, which that library does not have; the test kit builds one for it
//   nccl (22809) cudnn (91900): versions that these libraries report; start_error (0): cuInit fails
//   with this number: 34 the library is the toolkit's stub, 802 not ready, 803 not the kernel's version
//   cuda_error (0): every call on the GPU fails with this number: 2 no memory, 209 no kernel for
//   this model, 214 ECC, 719 a kernel failed
#ifndef FAKE_H
#define FAKE_H
#include <stddef.h>
#include <stdint.h>

enum Count {
  LAUNCHES, GEMMS, CONVOLUTIONS, GRAPH_LAUNCHES, GRAPH_NODES, COPIES_UP, COPIES_DOWN, COPIES_INSIDE, BYTES_UP,
  BYTES_DOWN, MEMSETS, STREAM_WAITS, EVENT_WAITS, DEVICE_WAITS, COPY_WAITS, EVENT_RECORDS, EVENT_QUERIES,
  EVENTS_MADE, STREAMS_MADE, STREAM_DEPENDENCIES, DEVICE_ALLOCATIONS, HOST_ALLOCATIONS, COLLECTIVES,
  COLLECTIVE_THREADS, COLLECTIVE_POLLS, ABORTS, LAUNCH_SHAPES, LAUNCHES_BESIDE,
  CHANNELS_LAST, BF16_TENSORS, HOST_US, COUNTS
};

void fake_count(enum Count which, uint64_t by);
// The value of a knob; `otherwise` where it is not set.
long fake_knob(const char* name, long otherwise);
// The same as text, into `out`.
const char* fake_text(const char* name, const char* otherwise, char* out, size_t size);
const char* fake_folder(void);
// GPUs of this machine, and those that this process sees.
int fake_gpus(void);
int fake_seen(void);
// The GPU of this machine that the process sees under this number, or -1.
int fake_real(int seen);
// The instance of MIG that this process has, or -1.
int fake_instance(void);
void fake_model(int real, char* out, size_t size);
// The device of the calling thread, as the process sees it.
int fake_device(void);
void fake_set_device(int seen);
// The error that every call on the GPU of this thread gives now, 0 for none.
int fake_broken(void);
// From here on no call on a GPU returns.
void fake_hold(void);
const char* fake_error_words(int error);
// Memory that this process has on a GPU grows; 0 when there is no room.
int fake_take(int seen, long bytes);

// Kernels do nothing, so what lies in memory after one is left from before. A copy to the host therefore
// gives zeros, unless exactly these bytes were written by a copy, a memset or a collective.
void fake_written(const void* at, size_t size);
int fake_is_written(const void* at, size_t size);

// Streams do everything at once, except for what other libraries put on them (collectives): that is `begun`
// in order and `ended` later. `fake_stream_ready` returns whether everything that was put on a stream before is
// done.
typedef struct Stream Stream;
Stream* fake_stream(void* handle);
uint64_t fake_stream_begin(Stream* stream);
void fake_stream_end(Stream* stream, uint64_t upto);
// What is on the stream now, to wait for later; freed by waiting.
void* fake_stream_mark(Stream* stream);
void fake_mark_join(void* mark);
// A collective was put on this stream. Until the device's own stream waits for that one, what is launched
// continues meanwhile.
void fake_collective_begun(Stream* stream);
void fake_launched(void);
// Waits for what is on the stream. Not counted.
void fake_stream_join(Stream* stream);
#endif
