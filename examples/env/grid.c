/* Walk to the right end of a corridor: action 1 goes right, 0 goes left; one step in ten goes astray. */
#include <stdlib.h>
#include <string.h>
#include "rankdeck_env.h"

#define LENGTH 10
#define LIMIT 100

struct walker { uint64_t random; int32_t place, steps; };
struct batch { uint32_t count; struct walker walkers[]; };

static uint32_t draw(struct walker *w) {
  w->random = w->random * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(w->random >> 33);
}

static void observe(const struct walker *w, float *row) {
  row[0] = (float)w->place / LENGTH;
  row[1] = (float)w->steps / LIMIT;
}

int rankdeck_env_describe(const char *options, struct rankdeck_env_spec *spec) {
  (void)options;
  memset(spec, 0, sizeof *spec);
  spec->version = RANKDECK_ENV_VERSION;
  spec->observation_type = RANKDECK_ENV_F32;
  spec->observation_dims = 1;
  spec->observation_shape[0] = 2;
  spec->actions = 2;
  spec->state_bytes = sizeof(struct walker);
  return 0;
}

void *rankdeck_env_create(const char *options, uint32_t count) {
  (void)options;
  struct batch *batch = calloc(1, sizeof *batch + count * sizeof(struct walker));
  if (batch) batch->count = count;
  return batch;
}

int rankdeck_env_reset(void *all, const uint64_t *seeds, void *observations) {
  struct batch *batch = all;
  for (uint32_t i = 0; i < batch->count; i++) {
    batch->walkers[i] = (struct walker){ .random = seeds[i] };
    observe(&batch->walkers[i], (float *)observations + 2 * i);
  }
  return 0;
}

int rankdeck_env_step(void *all, const void *actions, struct rankdeck_env_outcome *out) {
  struct batch *batch = all;
  for (uint32_t i = 0; i < batch->count; i++) {
    struct walker *w = &batch->walkers[i];
    int right = ((const int64_t *)actions)[i] == 1;
    if (draw(w) % 10 == 0) right = !right;
    w->place += right ? 1 : w->place > 0 ? -1 : 0;
    w->steps++;
    out->terminated[i] = w->place == LENGTH;
    out->truncated[i] = !out->terminated[i] && w->steps == LIMIT;
    out->rewards[i] = out->terminated[i] ? 1.0 : -0.01;
    if (out->terminated[i] || out->truncated[i]) {
      observe(w, (float *)out->final_observations + 2 * i);
      w->place = w->steps = 0;
    }
    observe(w, (float *)out->observations + 2 * i);
  }
  return 0;
}

int rankdeck_env_save(void *all, void *states) {
  struct batch *batch = all;
  memcpy(states, batch->walkers, batch->count * sizeof(struct walker));
  return 0;
}

int rankdeck_env_restore(void *all, const void *states, void *observations) {
  struct batch *batch = all;
  memcpy(batch->walkers, states, batch->count * sizeof(struct walker));
  for (uint32_t i = 0; i < batch->count; i++) observe(&batch->walkers[i], (float *)observations + 2 * i);
  return 0;
}

void rankdeck_env_destroy(void *batch) { free(batch); }
