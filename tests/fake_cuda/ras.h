// NCCL's RAS: one thread per process that answers questions about its communicators, over TCP at
// NCCL_RAS_ADDR. It replies as NCCL does: JSON from 2.28.7 on, in which a comma is missing up to
// 2.28.9, and text before. A member answers by its own thread here, whatever its other threads do;
// one that is stopped does not.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <time.h>

enum { KINDS = 3, COMMS = 16, KEEPALIVE_MS = 100 };
static const char* const KIND[KINDS] = {"AllReduce", "Broadcast", "AllGather"};

// What a member of a communicator shows to the others.
typedef struct Member {
  _Atomic int pid, device, real, aborted;
  _Atomic int64_t alive;
  _Atomic uint64_t launched[KINDS];
} Member;
typedef struct Known {
  char hash[20];
  int ranks, own;
  Member* members;
} Known;

static Known known[COMMS];
static _Atomic int knowns;

static int64_t ras_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

typedef struct Text {
  char bytes[32768];
  size_t length;
} Text;
static void add(Text* text, const char* format, ...) {
  va_list list;
  va_start(list, format);
  int more = vsnprintf(text->bytes + text->length, sizeof text->bytes - text->length, format, list);
  va_end(list);
  if (more > 0 && text->length + (size_t)more < sizeof text->bytes) text->length += (size_t)more;
}

static void add_json(Text* text, Known* comm, const int* answers, const char* host, long version) {
  int missing = 0, first = 1;
  add(text, "    {\n      \"hash\": \"%s\",\n      \"size\": %d,\n      \"ranks\": [", comm->hash, comm->ranks);
  for (int rank = 0; rank < comm->ranks; rank++) {
    Member* member = &comm->members[rank];
    missing += !answers[rank];
    if (!answers[rank]) continue;
    add(text, "%s\n        {\n          \"rank\": %d,\n          \"host\": \"%s\",\n          \"pid\": %d,\n", first ? "" : ",", rank, host, member->pid);
    add(text, "          \"cuda_dev\": %d,\n          \"nvml_dev\": %d,\n", member->device, member->real);
    add(text, "          \"status\": {\n            \"init_state\": 0,\n            \"async_error\": 0,\n            \"finalize_called\": false,\n");
    add(text, "            \"destroy_flag\": false,\n            \"abort_flag\": %s\n          },\n", member->aborted ? "true" : "false");
    add(text, "          \"collective_counts\": {");
    for (int kind = 0; kind < KINDS; kind++)
      add(text, "%s\n            \"%s\": %llu", kind ? "," : "", KIND[kind], (unsigned long long)member->launched[kind]);
    add(text, "\n          }\n        }");
    first = 0;
  }
  add(text, "\n      ],\n      \"missing_ranks_count\": %d,\n      \"missing_ranks\": [", missing);
  first = 1;
  for (int rank = 0; rank < comm->ranks; rank++) {
    Member* member = &comm->members[rank];
    if (answers[rank]) continue;
    add(text, "%s\n        {\n          \"rank\": %d,\n          \"host\": \"%s\",\n          \"pid\": %d,\n", first ? "" : ",", rank, host, member->pid);
    add(text, "          \"cuda_dev\": %d,\n          \"nvml_dev\": %d%s\n", member->device, member->real, version > 22809 ? "," : "");
    add(text, "          \"status\": {\n            \"unresponsive\": true,\n            \"considered_dead\": false\n          }\n        }");
    first = 0;
  }
  add(text, "\n      ]\n    }");
}

static void add_words(Text* text, Known* comm, const int* answers, const char* host) {
  for (int rank = 0; rank < comm->ranks; rank++) {
    Member* member = &comm->members[rank];
    if (answers[rank]) add(text, "  Rank %d (pid %d on %s): %llu AllReduces\n", rank, member->pid, host, (unsigned long long)member->launched[0]);
    else add(text, "  Rank %d (pid %d on %s) is UNRESPONSIVE\n", rank, member->pid, host);
  }
}

// Waits for every member to answer, for this time in all.
static void status(Text* text, int json, int64_t patience) {
  char host[64] = "";
  long version = fake_knob("nccl", 22809);
  int64_t asked = ras_now();
  int count = knowns < COMMS ? knowns : COMMS;
  gethostname(host, sizeof host - 1);
  if (json) add(text, "{\n  \"nccl_version\": \"%ld.%ld.%ld\",\n  \"communicators_count\": %d,\n  \"communicators\": [\n", version / 10000, version / 100 % 100, version % 100, count);
  else add(text, "NCCL version %ld.%ld.%ld compiled with CUDA 13.0\n\n", version / 10000, version / 100 % 100, version % 100);
  for (int i = 0; i < count; i++) {
    Known* comm = &known[i];
    int answers[64] = {0};
    for (int rank = 0; rank < comm->ranks; rank++) {
      while (rank != comm->own && comm->members[rank].alive < asked && ras_now() < asked + patience) usleep(10000);
      answers[rank] = rank == comm->own || comm->members[rank].alive >= asked;
    }
    if (json && i) add(text, ",\n");
    if (json) add_json(text, comm, answers, host, version);
    else add_words(text, comm, answers, host);
  }
  if (json) add(text, "\n  ],\n  \"ras\": {\n    \"collective_timeouts\": 0\n  }\n}\n");
}

// One client: lines until it asks for the status.
static void* answer(void* argument) {
  int client = (int)(intptr_t)argument, json = 0;
  int64_t patience = 5000;
  FILE* stream = fdopen(client, "r");
  char line[256];
  while (stream && fgets(line, sizeof line, stream)) {
    const char* reply = "OK\n";
    Text* text = 0;
    if (strcmp(line, "SET FORMAT json\n") == 0) {
      json = fake_knob("nccl", 22809) >= 22807;
      if (!json) reply = "ERROR: Unknown command\n";
    } else if (strncmp(line, "TIMEOUT ", 8) == 0) {
      patience = atol(line + 8) * 1000;
    } else if (strcmp(line, "STATUS\n") == 0 || strcmp(line, "VERBOSE STATUS\n") == 0) {
      text = calloc(1, sizeof *text);
      status(text, json, patience);
      reply = text->bytes;
    } else {
      reply = "ERROR: Unknown command\n";
    }
    ssize_t sent = send(client, reply, strlen(reply), MSG_NOSIGNAL);
    free(text);
    if (text || sent < 0) break;
  }
  if (stream) fclose(stream);
  return 0;
}

static int listening(void) {
  const char* address = getenv("NCCL_RAS_ADDR");
  const char* port = address ? strrchr(address, ':') : 0;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)(port ? atoi(port + 1) : 28028))};
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int yes = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) return -1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes);
  if (bind(listener, (struct sockaddr*)&at, sizeof at) || listen(listener, 16)) {
    close(listener);
    return -1;
  }
  return listener;
}

static void* serve(void* argument) {
  // A negative number is waited for in vain.
  struct pollfd wait = {.fd = (int)(intptr_t)argument, .events = POLLIN};
  for (;;) {
    for (int i = 0; i < knowns && i < COMMS; i++) known[i].members[known[i].own].alive = ras_now();
    // Connections of one that never answers are taken by the kernel, and never read.
    int silent = fake_knob("ras", 0) == 2;
    if (poll(silent ? 0 : &wait, !silent, KEEPALIVE_MS) <= 0) continue;
    int client = accept4(wait.fd, 0, 0, SOCK_CLOEXEC);
    pthread_t thread;
    if (client >= 0 && pthread_create(&thread, 0, answer, (void*)(intptr_t)client) == 0) pthread_detach(thread);
  }
  return 0;
}

// Makes a communicator known. A used port is not an error: NCCL continues without RAS.
static void ras_know(const char* name, int ranks, int own, Member* members, int device, int real) {
  Member* member = &members[own];
  member->device = device, member->real = real, member->pid = getpid();
  const char* enabled = getenv("NCCL_RAS_ENABLE");
  if (!fake_knob("ras", 0) || (enabled && atoi(enabled) == 0)) return;
  static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
  static int begun;
  pthread_mutex_lock(&one);
  if (knowns < COMMS) {
    Known* comm = &known[knowns];
    unsigned long long hash = 14695981039346656037ull;
    for (const char* at = name; *at; at++) hash = (hash ^ (unsigned char)*at) * 1099511628211ull;
    snprintf(comm->hash, sizeof comm->hash, "0x%016llx", hash);
    comm->ranks = ranks, comm->own = own, comm->members = members;
    knowns++;
  }
  pthread_t thread;
  // Without the port, it still answers the other members.
  if (!begun && pthread_create(&thread, 0, serve, (void*)(intptr_t)listening()) == 0) pthread_detach(thread);
  begun = 1;
  pthread_mutex_unlock(&one);
}
