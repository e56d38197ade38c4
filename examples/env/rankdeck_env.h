/* An RL environment of your own for rankdeck's trainer: build these functions into a shared library and set
 * `env.library = "path/to/library.so"`. All functions are called by one thread. Functions that return int return 0, or
 * another number after a failure that rankdeck_env_error describes.
 *
 *     cc -O2 -shared -fPIC -o grid.so grid.c
 *     rankdeck-trainer --check-env grid --config experiment.toml
 */
#ifndef RANKDECK_ENV_H
#define RANKDECK_ENV_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RANKDECK_ENV_VERSION 1

enum { RANKDECK_ENV_F32 = 0, RANKDECK_ENV_U8 = 1 };

struct rankdeck_env_spec {
  uint32_t version;              /* RANKDECK_ENV_VERSION */
  uint32_t observation_type;     /* RANKDECK_ENV_F32, or RANKDECK_ENV_U8 for images [channels, height, width] */
  uint32_t observation_dims;     /* 1 to 4 */
  uint32_t actions;              /* number of discrete actions; 0: continuous actions */
  uint64_t observation_shape[4];
  uint64_t action_len;           /* continuous: numbers of an action */
  const float *low, *high;       /* continuous: bounds, action_len each; alive while the library is */
  uint64_t state_bytes;          /* size of one environment's saved state; 0: it cannot be saved */
};

/* The outcome of a step of all environments; arrays have a row or an element for each environment. */
struct rankdeck_env_outcome {
  void *observations;            /* next input of the policy: after an end, the first observation of a new episode */
  void *final_observations;      /* the last observation of an episode; only written where one ended */
  double *rewards;
  uint8_t *terminated;           /* 1: the task itself ended */
  uint8_t *truncated;            /* 1: a limit such as time ended the episode */
};

/* Describes one environment. `options` is a JSON object: `env.kwargs`, and `max_episode_steps` if it is set. */
int rankdeck_env_describe(const char *options, struct rankdeck_env_spec *spec);

/* Creates `count` environments; NULL after a failure. */
void *rankdeck_env_create(const char *options, uint32_t count);

/* Starts an episode in every environment, with a seed for each, and writes the first observations. */
int rankdeck_env_reset(void *batch, const uint64_t *seeds, void *observations);

/* Steps every environment. `actions` are int64_t [count], or float [count][action_len]. Where an episode ends, the
 * environment starts the next one in the same step. */
int rankdeck_env_step(void *batch, const void *actions, struct rankdeck_env_outcome *outcome);

void rankdeck_env_destroy(void *batch);

/* Optional: the text of the latest failure. */
const char *rankdeck_env_error(void);

/* Needed if state_bytes is not 0: the state of every environment, one after the other. Restoring also writes the
 * observations. A restored environment continues exactly as the saved one would have. */
int rankdeck_env_save(void *batch, void *states);
int rankdeck_env_restore(void *batch, const void *states, void *observations);

#ifdef __cplusplus
}
#endif
#endif
