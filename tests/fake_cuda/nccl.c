// libnccl.so.2: communicators whose collectives are real sums over shared memory, done in order by one thread
// per communicator. A rank that is gone is an error of the others; a GPU that two ranks of one host share is
// refused; `blocking = 0` costs a thread for every call, as NCCL's does.
#define _GNU_SOURCE
#include "fake.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "ras.h"

enum { SUCCESS = 0, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum { MAX_RANKS = 16, SLOT = 64 << 20, UNDEFINED = INT32_MIN };
enum What { REDUCE, BROADCAST, GATHER };

typedef struct Shared {
  _Atomic int joined;
  _Atomic int pid[MAX_RANKS];
  _Atomic int64_t step[MAX_RANKS];
  char place[MAX_RANKS][128];
  Member members[MAX_RANKS];
} Shared;
typedef struct Job {
  enum What what;
  const char* in;
  char* out;
  size_t count;
  int type, op, root;
  Stream* stream;
  uint64_t ticket;
  // What was put on the stream before.
  void* before;
  struct Job* next;
} Job;
typedef struct Comm {
  int rank, ranks, blocking, device;
  char name[64], error[256];
  Shared* shared;
  char* slots;
  _Atomic int state, aborted;
  int64_t number;
  pthread_t worker;
  pthread_mutex_t lock;
  pthread_cond_t moved;
  Job *first, *last;
} Comm;
typedef struct Id {
  char bytes[128];
} Id;
typedef struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
} Config;

static char failure[256];
static const size_t SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

static size_t whole(int ranks) { return 16384 + (size_t)ranks * SLOT; }

int ncclGetVersion(int* version) {
  *version = (int)fake_knob("nccl", 22809);
  return SUCCESS;
}
int ncclGetUniqueId(Id* id) {
  unsigned char random[12] = {0};
  FILE* file = fopen("/dev/urandom", "r");
  memset(id, 0, sizeof *id);
  if (file) {
    if (fread(random, 1, sizeof random, file) != sizeof random) random[0] = 1;
    fclose(file);
  }
  for (int i = 0; i < 12; i++) sprintf(id->bytes + 2 * i, "%02x", random[i]);
  return SUCCESS;
}

// A process is gone when it has ended, also before its parent has waited for it.
static int gone(int pid) {
  char path[64], state = 'Z';
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE* file = fopen(path, "re");
  if (!file) return 1;
  if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
  fclose(file);
  return state == 'Z' || state == 'X';
}

// Waits for all ranks to come to a step; 0 when one is gone or the communicator is aborted. Who has not come
// for a while is polled less often: some never come.
static int together(Comm* comm, int64_t step) {
  unsigned polls = 0;
  for (int rank = 0; rank < comm->ranks; rank++) {
    while (comm->shared->step[rank] < step) {
      int pid = comm->shared->pid[rank];
      if (comm->aborted) return 0;
      polls++;
      if (pid && polls % (polls < 500 ? 500 : 10) == 0 && gone(pid)) {
        snprintf(comm->error, sizeof comm->error, "peer of rank %d is gone", rank);
        comm->state = REMOTE_ERROR;
        return 0;
      }
      usleep(polls < 500 ? 20 : 1000);
    }
  }
  return 1;
}

#define COMBINE(T)                                                                        \
  for (size_t i = 0; i < job->count; i++) {                                               \
    T value = ((T*)comm->slots)[i];                                                       \
    for (int rank = 1; rank < comm->ranks; rank++) {                                      \
      T other = ((T*)(comm->slots + (size_t)rank * SLOT))[i];                             \
      value = job->op == 0 ? (T)(value + other)                                           \
                           : job->op == 2 ? (other > value ? other : value) : (other < value ? other : value); \
    }                                                                                     \
    ((T*)job->out)[i] = value;                                                            \
  }

static int done(Comm* comm, Job* job, int64_t number) {
  size_t bytes = job->count * SIZES[job->type];
  if (number == fake_knob("hang_at", -1)) {
    if (fake_knob("hang_holds", 0)) fake_hold();
    while (!comm->aborted) usleep(200);
    return 0;
  }
  // What NCCL reports once its card's timeouts are over.
  if (number >= fake_knob("network_dies", INT32_MAX)) {
    snprintf(comm->error, sizeof comm->error, "NET/IB : Got completion from peer with status=12 opcode=0 len=0 vendor err 129 (Send)");
    comm->state = REMOTE_ERROR;
    return 0;
  }
  if (!together(comm, 2 * number)) return 0;
  memcpy(comm->slots + (size_t)comm->rank * SLOT, job->in, bytes);
  comm->shared->step[comm->rank] = 2 * number + 1;
  if (!together(comm, 2 * number + 1)) return 0;
  if (job->what == BROADCAST) {
    memcpy(job->out, comm->slots + (size_t)job->root * SLOT, bytes);
  } else if (job->what == GATHER) {
    for (int rank = 0; rank < comm->ranks; rank++)
      memcpy(job->out + (size_t)rank * bytes, comm->slots + (size_t)rank * SLOT, bytes);
  } else {
    switch (job->type) {
      case 4: COMBINE(int64_t) break;
      case 7: COMBINE(float) break;
      case 8: COMBINE(double) break;
      default: COMBINE(uint8_t)
    }
  }
  // What was gathered is read part by part.
  for (int rank = 0; rank < (job->what == GATHER ? comm->ranks : 1); rank++)
    fake_written(job->out + (size_t)rank * bytes, bytes);
  comm->shared->step[comm->rank] = 2 * number + 2;
  return 1;
}

static void* work(void* argument) {
  Comm* comm = argument;
  fake_set_device(comm->device);
  for (;;) {
    pthread_mutex_lock(&comm->lock);
    while (!comm->first && !comm->aborted) pthread_cond_wait(&comm->moved, &comm->lock);
    Job* job = comm->first;
    if (job) comm->first = job->next;
    pthread_mutex_unlock(&comm->lock);
    if (!job) return 0;
    fake_mark_join(job->before);
    // An operation that fails never ends on the device, until the communicator is aborted.
    if (!done(comm, job, comm->number++))
      while (!comm->aborted) usleep(200);
    fake_stream_end(job->stream, job->ticket);
    free(job);
  }
}

static int joined(Comm* comm) {
  if (fake_knob("init_hangs", 0))
    while (!comm->aborted) usleep(1000);
  int file = shm_open(comm->name, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, (off_t)whole(comm->ranks))) return 2;
  char* at = mmap(0, whole(comm->ranks), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  if (at == MAP_FAILED) return 2;
  comm->shared = (Shared*)at;
  comm->slots = at + 16384;
  const char* host = getenv("NCCL_HOSTID");
  snprintf(comm->shared->place[comm->rank], 128, "%s/%d", host ? host : "this host", fake_real(comm->device));
  comm->shared->pid[comm->rank] = getpid();
  comm->shared->joined++;
  while (comm->shared->joined < comm->ranks) {
    if (comm->aborted) return REMOTE_ERROR;
    usleep(100);
  }
  shm_unlink(comm->name);
  for (int a = 0; a < comm->ranks; a++) {
    for (int b = a + 1; b < comm->ranks; b++) {
      if (strcmp(comm->shared->place[a], comm->shared->place[b]) == 0) {
        snprintf(failure, sizeof failure, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d", a, b,
                 (fake_real(comm->device) + 1) << 12);
        return INVALID_USAGE;
      }
    }
  }
  ras_know(comm->name, comm->ranks, comm->rank, comm->shared->members, comm->device, fake_real(comm->device));
  pthread_create(&comm->worker, 0, work, comm);
  return SUCCESS;
}

static void* join_later(void* argument) {
  Comm* comm = argument;
  fake_set_device(comm->device);
  comm->state = joined(comm);
  return 0;
}

int ncclCommInitRankConfig(Comm** out, int ranks, Id id, int rank, Config* config) {
  Comm* comm = calloc(1, sizeof *comm);
  comm->rank = rank;
  comm->ranks = ranks;
  comm->device = fake_device();
  comm->blocking = !config || config->blocking == UNDEFINED || config->blocking;
  comm->state = IN_PROGRESS;
  pthread_mutex_init(&comm->lock, 0);
  pthread_cond_init(&comm->moved, 0);
  snprintf(comm->name, sizeof comm->name, "/fakenccl-%.24s", id.bytes);
  *out = comm;
  if (comm->blocking) return comm->state = joined(comm);
  pthread_t thread;
  pthread_create(&thread, 0, join_later, comm);
  pthread_detach(thread);
  return IN_PROGRESS;
}

static void put(Comm* comm, Job* job) {
  pthread_mutex_lock(&comm->lock);
  if (comm->first) comm->last->next = job;
  else comm->first = job;
  comm->last = job;
  pthread_cond_signal(&comm->moved);
  pthread_mutex_unlock(&comm->lock);
}

static void* nothing(void* argument) { return argument; }

static int begin(Comm* comm, Job requested, void* stream) {
  fake_count(COLLECTIVES, 1);
  if (requested.count * SIZES[requested.type] > SLOT) return INVALID_USAGE;
  Job* job = malloc(sizeof *job);
  *job = requested;
  job->stream = fake_stream(stream);
  job->before = fake_stream_mark(job->stream);
  job->ticket = fake_stream_begin(job->stream);
  comm->shared->members[comm->rank].launched[requested.what]++;
  put(comm, job);
  fake_collective_begun(job->stream);
  if (comm->blocking) return SUCCESS;
  pthread_t thread;
  fake_count(COLLECTIVE_THREADS, 1);
  pthread_create(&thread, 0, nothing, 0);
  pthread_join(thread, 0);
  return SUCCESS;
}
int ncclAllReduce(const void* in, void* out, size_t count, int type, int op, Comm* comm, void* stream) {
  return begin(comm, (Job){REDUCE, in, out, count, type, op, 0}, stream);
}
int ncclBroadcast(const void* in, void* out, size_t count, int type, int root, Comm* comm, void* stream) {
  return begin(comm, (Job){BROADCAST, in, out, count, type, 0, root}, stream);
}
int ncclAllGather(const void* in, void* out, size_t count, int type, Comm* comm, void* stream) {
  return begin(comm, (Job){GATHER, in, out, count, type, 0, 0}, stream);
}
int ncclCommGetAsyncError(Comm* comm, int* state) {
  fake_count(COLLECTIVE_POLLS, 1);
  *state = comm->state;
  return SUCCESS;
}
int ncclCommAbort(Comm* comm) {
  fake_count(ABORTS, 1);
  if (fake_knob("abort_hangs", 0)) pause();
  comm->aborted = 1;
  if (comm->shared) comm->shared->members[comm->rank].aborted = 1;
  pthread_mutex_lock(&comm->lock);
  pthread_cond_broadcast(&comm->moved);
  pthread_mutex_unlock(&comm->lock);
  return SUCCESS;
}
int ncclCommFinalize(Comm* comm) { return SUCCESS; }
int ncclCommDestroy(Comm* comm) { return SUCCESS; }
const char* ncclGetErrorString(int error) {
  switch (error) {
    case SUCCESS: return "no error";
    case INVALID_USAGE: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case REMOTE_ERROR: return "remote process exited or there was a network error";
    default: return "unhandled system error";
  }
}
const char* ncclGetLastError(Comm* comm) { return comm && *comm->error ? comm->error : failure; }
