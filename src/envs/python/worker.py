"""rankdeck's environment worker: steps Python environments for one rank of the trainer.

Owner: the trainer that started it, which holds the other ends of its pipes; it ends when its standard input does.

Protocol. Standard input: JSON lines of what to make (the first requests one environment, to learn its spaces, or all; a second has
how many, and with which seeds), one JSON line (where in the shared memory everything is), then one byte per request: `s` step, `r` reset
with the seeds of the beginning, `p` draw the first environment. Standard output: `S` + length (u32) + JSON with the spaces for each line
of what to make, then `k` per request that is done (`P` + length + width and height (u32) + bytes for a picture), or `E` + length + JSON
about what failed, after which the worker ends. What environments print goes to standard error.
"""
import faulthandler
import json
import mmap
import os
import re
import signal
import struct
import sys
import traceback

# The rank decides when to stop; a terminal's Ctrl-C or a polite signal to the whole group must not take its
# environments away before.
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
faulthandler.enable()
# The rank requests stacks when a step takes too long.
faulthandler.register(signal.SIGUSR1, all_threads=True)

# Unbuffered: what follows a line is read byte by byte.
REQUESTS = open(0, "rb", buffering=0, closefd=False)
ANSWERS = os.dup(1)
os.dup2(2, 1)


class Refused(Exception):
    """A configuration error, with a hint."""

    def __init__(self, message, hint):
        super().__init__(message)
        self.hint = hint


def answer(tag, value=None):
    data = tag
    if value is not None:
        text = json.dumps(value).encode()
        data += struct.pack("<I", len(text)) + text
    while data:
        data = data[os.write(ANSWERS, data):]


def answer_picture(frame):
    if frame is None:
        return answer(b"k")
    data = struct.pack("<II", frame.shape[1], frame.shape[0]) + frame.tobytes()
    data = b"P" + struct.pack("<I", len(data)) + data
    while data:
        data = data[os.write(ANSWERS, data):]


def read_line():
    line = REQUESTS.readline()
    if not line.endswith(b"\n"):
        os._exit(0)
    return json.loads(line)


def install(*packages):
    quoted = ['"%s"' % package for package in packages]
    # What `--setup-env` installs anyway needs no word.
    extra = "".join(" --package %s" % text for text in quoted if not re.match('"(numpy|gymnasium|ale-py)[=<>"]', text))
    return "run `%s -m pip install %s`, or `rankdeck-trainer --setup-env DIR%s` and set env.python" % (
        sys.executable,
        " ".join(quoted),
        extra,
    )


def bound(value):
    """JSON has no infinity."""
    return float(value) if abs(float(value)) < 3.0e38 else None


class Atari:
    """Games of ale-py's AtariVectorEnv: N emulators on threads of this process.

    It resets in the step in which a game ends. Lost lives are found here rather than by its `episodic_life`, which resets the whole game,
    or `life_loss_info`, with which final observations are not those of the end (ale-py 0.12.1): a life is lost when there are fewer
    than before and still some, as in the wrapper of OpenAI's Baselines.
    """

    def __init__(self, config, game):
        import numpy

        self.numpy = numpy
        self.game = game
        self.env = None
        self.resize(config)
        self.spaces = Described(self.env.single_observation_space, self.env.single_action_space, {**config, "channels": "first"})
        # The layout is ale-py's, not a guess about it.
        self.spaces.images = None
        self.lives = None

    def resize(self, config):
        """Makes the environments, with their seeds."""
        self.seeds = self.numpy.array(config["small_seeds"], dtype=self.numpy.int64)
        if self.env is not None and self.env.num_envs == config["envs"]:
            return
        from ale_py.vector_env import AtariVectorEnv
        from gymnasium.vector import AutoresetMode

        options = config["atari"]
        # Their number is fixed when they are made.
        self.env = None
        self.env = AtariVectorEnv(
            self.game,
            config["envs"],
            num_threads=min(config["threads"], config["envs"]),
            max_num_frames_per_episode=options["max_frames"],
            repeat_action_probability=options["repeat_action_probability"],
            autoreset_mode=AutoresetMode.SAME_STEP,
            img_height=options["image_size"],
            img_width=options["image_size"],
            stack_num=options["frame_stack"],
            frameskip=options["frame_skip"],
            noop_max=options["noop_max"],
            reward_clipping=False,
        )

    def reset(self, shared):
        shared.observations[...], info = self.env.reset(seed=self.seeds)
        self.lives = info["lives"].copy()

    def step(self, shared):
        seen, rewards, terminated, truncated, info = self.env.step(shared.actions)
        shared.observations[...] = seen
        shared.rewards[...] = rewards
        shared.terminated[...] = terminated
        shared.truncated[...] = truncated
        ended = terminated | truncated
        if ended.any():
            shared.final_observations[ended] = info["final_obs"][ended]
        lives = info["lives"]
        lost = ~ended & (lives < self.lives) & (lives > 0)
        shared.lost_life[...] = lost
        if lost.any():
            shared.final_observations[lost] = seen[lost]
        self.lives = lives.copy()


    def picture(self):
        # It draws nothing but what the policy sees.
        return None


# Most pixels of a side of a picture: a terminal shows no more.
SIDE = 320
# Where environments return which actions are allowed: in their info, or in a Dict observation.
MASK = "action_mask"


class Broken(Exception):
    """An environment does not keep to its spaces."""


def branches_of(space, side):
    """The parts of a Dict observation with images, in the order in which Gymnasium flattens them; none of other observations."""
    import numpy
    from gymnasium import spaces

    found = []
    for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else ():
        branch = {"key": str(key), "shape": [int(spaces.flatdim(part))], "image": False, "last": False, "bytes": False}
        sides = len(part.shape) if isinstance(part, spaces.Box) else 0
        # Matrices of bytes are gray images.
        if sides == 3 or sides == 2 and part.dtype == numpy.uint8:
            rows, columns = part.shape[0], part.shape[-1]
            last = sides == 3 and (columns < rows if side is None else side == "last")
            shape = [1] * (3 - sides) + [int(length) for length in part.shape]
            branch.update(shape=shape, image=True, last=last, bytes=bool(part.dtype == numpy.uint8))
        found.append(branch)
    return found if any(branch["image"] for branch in found) else []


def layout_of(branches, side):
    """What was assumed about the images of a Dict observation, in words."""
    assumed = "" if side else " (assumed; env.channels sets it)"
    words = [
        "%s %s, channels %s%s" % (branch["key"], branch["shape"], "last" if branch["last"] else "first", assumed) for branch in branches if branch["image"]
    ]
    others = sum(branch["shape"][0] for branch in branches if not branch["image"])
    return "; ".join(words) + ("; %d other values" % others if others else "")


class Described:
    """What the trainer learns of an environment's spaces."""

    def __init__(self, observation, action, config, branches=()):
        import numpy

        self.type = "u8" if observation.dtype == numpy.uint8 else "f32"
        self.shape = observation.shape or (1,)
        # Images have their channels last; networks take them first.
        self.turn = False
        # What was assumed about images, in words.
        self.images = None
        side = config["channels"]
        # The parts of a Dict observation with images, which is flat.
        self.branches = list(branches)
        if self.branches:
            self.images = layout_of(self.branches, side)
        elif len(self.shape) == 3:
            rows, _, columns = self.shape
            # As Stable-Baselines3: the smaller side has the channels.
            self.turn = columns < rows if side is None else side == "last"
            seen = list(self.shape)
            if self.turn:
                self.shape = (self.shape[2], self.shape[0], self.shape[1])
            self.images = "%s, channels %s%s: networks get %s" % (
                seen, "last" if self.turn else "first", "" if side else " (assumed; env.channels sets it)", list(self.shape)
            )
        elif side is not None:
            raise Refused(
                "env.channels applies to images, and its observations have the shape %s" % (list(self.shape),), "remove env.channels"
            )
        self.actions, self.convert = actions_of(action)
        self.masked = config["action_masks"]
        if self.masked and "low" in self.actions:
            raise Refused("env.action_masks needs discrete actions, and its action space is %s" % (action,), "remove env.action_masks")
        # A mask was returned.
        self.known = False
        # Actions that a mask covers.
        self.width = self.actions.get("n") or sum(self.actions.get("sizes", []))
        self.announces = config["announce_masks"]

    def allow(self, row, info):
        """Writes which actions are allowed."""
        import numpy

        found = info.get(MASK)
        if found is None and not self.known:
            raise Refused("it returns no action_mask in its info", "return it at every reset and step, or remove env.action_masks")
        if found is None:
            raise Broken("it returned no action_mask in its info")
        self.known = True
        # Of several parts they come one after the other, or as a tuple of masks, as Gymnasium samples by.
        parts = found if isinstance(found, (tuple, list)) else (found,)
        mask = numpy.concatenate([numpy.ravel(part) for part in parts])
        if mask.size != row.size:
            raise Broken("it returned an action_mask of %d values for %d actions" % (mask.size, row.size))
        row[...] = mask != 0

    def allow_last(self, row, info):
        """Writes which actions the last observation of an episode allows: all where the environment does not say."""
        if info is not None and info.get(MASK) is not None:
            self.allow(row, info)
        else:
            row[...] = 0
        if not row.any():
            row[...] = 1

    def announce(self, offered):
        """Points to masks that are not used."""
        if offered and self.announces and not self.masked:
            sys.stderr.write("this environment offers action masks; env.action_masks = true uses them\n")
            sys.stderr.flush()
        self.announces = False


def actions_of(action):
    """The actions, and how one is made of the policy's numbers. It is a copy: environments may keep what they are given."""
    import numpy
    from gymnasium import spaces

    if isinstance(action, spaces.Discrete):
        start = int(getattr(action, "start", 0))
        return {"n": int(action.n)}, lambda value: int(value) + start
    if isinstance(action, spaces.MultiDiscrete):
        starts = getattr(action, "start", 0)
        sizes = {"sizes": [int(n) for n in action.nvec.ravel()]}
        return sizes, lambda value: (value.reshape(action.nvec.shape) + starts).astype(action.dtype)
    if isinstance(action, spaces.MultiBinary):
        return {"sizes": [2] * int(numpy.prod(action.shape))}, lambda value: value.reshape(action.shape).astype(action.dtype)
    if isinstance(action, spaces.Box) and numpy.issubdtype(action.dtype, numpy.floating):
        bounds = {"low": [bound(value) for value in action.low.ravel()], "high": [bound(value) for value in action.high.ravel()]}
        return bounds, lambda value: value.reshape(action.shape).astype(action.dtype)
    raise Refused(
        "its action space %s is not supported" % (action,),
        "choose another env.id, or add a wrapper to env.wrappers whose action space is Discrete, MultiDiscrete, MultiBinary or a Box of floats",
    )


def without_mask(env):
    """The same environment with the mask of its Dict observation in its info."""
    import gymnasium

    rest = {key: space for key, space in env.observation_space.spaces.items() if key != MASK}
    if not rest:
        raise Refused("its observation has no key besides %r" % MASK, "add what the policy observes to its Dict observation")
    plain = list(rest) == ["observation"]

    class WithoutMask(gymnasium.Wrapper):
        def split(self, seen, info):
            info = {**info, MASK: seen[MASK]}
            return seen["observation"] if plain else {key: seen[key] for key in rest}, info

        def reset(self, **options):
            return self.split(*self.env.reset(**options))

        def step(self, action):
            seen, reward, terminated, truncated, info = self.env.step(action)
            seen, info = self.split(seen, info)
            return seen, reward, terminated, truncated, info

    env = WithoutMask(env)
    env.observation_space = rest["observation"] if plain else gymnasium.spaces.Dict(rest)
    return env


def named(text, key):
    """What `module:name` names."""
    import importlib
    import types

    module, _, name = text.partition(":")
    if not name:
        raise Refused("env.%s: %r names no attribute of a module" % (key, text), "write it as `module:name`")
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
            # What a module imports is not part of it.
            if isinstance(found, types.ModuleType) and not found.__name__.startswith(module + "."):
                raise AttributeError("%s is another module" % found.__name__)
    except ModuleNotFoundError as error:
        raise Refused("%s: %s" % (sys.executable, error), "install the package, or set PYTHONPATH in launch.env to the folder of the module")
    except AttributeError as error:
        raise Refused("env.%s: %s" % (key, error), "name a callable of the module %s" % module)
    return found


class Vector:
    """A vector environment made by other code: by `env.vector`, or EnvPool.

    Such environments reset in the step in which an episode ends (SAME_STEP, and Gymnasium 0.29), or in the one after it (NEXT_STEP), which
    then does not count as a step.
    """

    def __init__(self, config):
        import numpy

        self.numpy = numpy
        self.env = None
        self.current = None
        self.resize(config)
        observation = getattr(self.env, "single_observation_space", None) or self.env.observation_space
        action = getattr(self.env, "single_action_space", None) or self.env.action_space
        if getattr(observation, "dtype", None) is None or not hasattr(observation, "shape"):
            raise Refused("its observation space %s is not a Box" % (observation,), "flatten it in the factory of env.vector")
        self.spaces = Described(observation, action, config)
        convert = self.spaces.convert
        self.convert = lambda values: numpy.stack([numpy.asarray(convert(value)) for value in values])

    def resize(self, config):
        """Makes the environments, with their seeds. Their number is fixed when they are made."""
        self.seeds = [int(seed) for seed in config["small_seeds"]]
        self.first_env = config["first_env"]
        envs = config["envs"]
        # EnvPool takes its seeds only when it is made.
        if self.env is not None and self.count == envs and not (self.pool and self.seeds[:1] != self.seeded):
            return
        self.config, self.count, self.seeded = config, envs, self.seeds[:1]
        if self.env is not None:
            self.env.close()
        self.env = None
        self.fresh = True
        if config["vector"]:
            self.env = named(config["vector"], "vector")(num_envs=envs, **config["kwargs"])
            self.pool = False
        else:
            import envpool

            # Seeds are given when they are made.
            self.env = envpool.make(config["id"].partition(":")[2], env_type="gymnasium", num_envs=envs, seed=self.seeds[0] if self.seeds else 0, **config["kwargs"])
            self.pool = True
        found = getattr(self.env, "num_envs", envs)
        if not self.pool and found != envs:
            raise Refused("its factory made %s environments instead of %d" % (found, envs), "use the argument num_envs")
        mode = getattr(self.env, "metadata", {}).get("autoreset_mode") if not self.pool else "NEXT_STEP"
        mode = str(getattr(mode, "name", mode)).upper()
        if mode == "DISABLED":
            raise Refused("its vector environment does not reset by itself", "set its autoreset_mode to SAME_STEP or NEXT_STEP")
        import gymnasium

        older = gymnasium.__version__.startswith("0.")
        self.same_step = mode == "SAME_STEP" or mode == "NONE" and older
        self.ended = self.numpy.zeros(envs, dtype=bool)

    def put(self, rows, seen):
        seen = self.numpy.asarray(seen)
        if self.spaces.turn:
            seen = self.numpy.moveaxis(seen, -1, -3)
        if seen.shape[0] != rows.shape[0] or seen[0].size != rows[0].size:
            raise Broken("it returned observations of shape %s; its space has %s" % (seen.shape, self.spaces.shape))
        rows[...] = seen.reshape(rows.shape)

    def allow(self, shared, info):
        if not self.spaces.masked:
            return
        masks = info.get(MASK)
        for i in range(self.count):
            self.current = self.first_env + i
            self.spaces.allow(shared.masks[i], {} if masks is None else {MASK: masks[i]})
        self.current = None

    def reset(self, shared):
        self.ended[:] = False
        if self.pool and not self.fresh:
            # Its generators go on at a reset: the same episodes begin in a new one only.
            self.seeded = None
            self.resize(self.config)
        self.fresh = False
        seen, info = self.env.reset() if self.pool else self.env.reset(seed=self.seeds)
        self.put(shared.observations, seen)
        self.allow(shared, info)
        self.spaces.announce(MASK in info)
        shared.moves += 1

    def step(self, shared):
        numpy = self.numpy
        seen, rewards, terminated, truncated, info = self.env.step(self.convert(shared.actions))
        terminated, truncated = numpy.asarray(terminated, dtype=bool), numpy.asarray(truncated, dtype=bool)
        self.put(shared.observations, seen)
        self.allow(shared, info)
        shared.rewards[...] = rewards
        shared.terminated[...], shared.truncated[...] = terminated, truncated
        ended = terminated | truncated
        if self.same_step:
            last = info.get("final_obs", info.get("final_observation"))
            for i in numpy.flatnonzero(ended):
                if last is None or last[i] is None:
                    raise Broken("it returned no final observation of environment %d" % (self.first_env + i))
                self.put(shared.final_observations[i : i + 1], numpy.asarray(last[i])[None])
                if self.spaces.masked:
                    self.spaces.allow_last(shared.final_masks[i], self.last_info(info, i))
        else:
            # The step after an end only resets.
            shared.only_reset[...] = self.ended
            shared.rewards[self.ended] = 0.0
            ended &= ~self.ended
            shared.terminated[self.ended], shared.truncated[self.ended] = False, False
            shared.final_observations[ended] = shared.observations[ended]
            if self.spaces.masked:
                shared.final_masks[ended] = shared.masks[ended]
            self.ended = ended
        shared.moves += 1

    def last_info(self, info, i):
        """What environment `i` returned with its last observation, as far as it has a mask."""
        final = info.get("final_info")
        if isinstance(final, dict):
            masks = final.get(MASK)
            return None if masks is None else {MASK: masks[i]}
        return None if final is None else final[i]

    def picture(self):
        return None

    @property
    def envs(self):
        return [self.env]


class Single:
    """Any environments of Gymnasium, one after the other."""

    def __init__(self, config):
        import numpy

        self.numpy = numpy
        self.draws = config["show"]
        self.envs = []
        # Observations hold a mask that is not used.
        self.offers = False
        self.branches = []
        self.resize(config)
        observation = self.envs[0].observation_space
        # The environment that is being stepped or reset, counted over all ranks.
        self.current = None
        self.expected = observation.shape
        self.spaces = Described(observation, self.envs[0].action_space, config, self.branches)

    def resize(self, config):
        """Makes the environments, with their seeds. Existing ones stay: some simulators cannot be started twice."""
        self.envs += [self.one(config) for _ in range(config["envs"] - len(self.envs))]
        self.seeds = [sum(word << (32 * i) for i, word in enumerate(words)) for words in config["seeds"]]
        self.small_seeds = config["small_seeds"]
        self.first_env = config["first_env"]

    def one(self, config):
        import gymnasium

        options = dict(config["kwargs"])
        if config["max_episode_steps"] is not None:
            options["max_episode_steps"] = config["max_episode_steps"]
        env = None
        if self.draws:
            try:
                env = gymnasium.make(config["id"], disable_env_checker=True, render_mode="rgb_array", **options)
            except Exception as error:  # It can be played without.
                sys.stderr.write("%s cannot be drawn: %s\n" % (config["id"], one_line(error)))
                self.draws = False
        if env is None:
            env = gymnasium.make(config["id"], disable_env_checker=True, **options)
        for wrapper in config["wrappers"]:
            env = named(wrapper, "wrappers")(env)
        if isinstance(env.observation_space, gymnasium.spaces.Dict) and MASK in env.observation_space.spaces:
            if config["action_masks"]:
                env = without_mask(env)
            self.offers = not config["action_masks"]
        if not isinstance(env.observation_space, gymnasium.spaces.Box):
            if not env.observation_space.is_np_flattenable:
                raise Refused(
                    "its observation space %s has no fixed number of values" % (env.observation_space,),
                    "choose another env.id, or add a wrapper to env.wrappers that returns a Box",
                )
            self.branches = branches_of(env.observation_space, config["channels"])
            env = gymnasium.wrappers.FlattenObservation(env)
        return env

    def put(self, row, seen):
        found = self.numpy.shape(seen)
        if found != self.expected:
            raise Broken("it returned an observation of shape %s; its space has %s" % (found, self.expected))
        if self.spaces.turn:
            seen = self.numpy.moveaxis(seen, 2, 0)
        row[...] = self.numpy.reshape(seen, self.spaces.shape)

    def picture(self):
        if not self.draws:
            return None
        numpy = self.numpy
        try:
            frame = numpy.asarray(self.envs[0].render())
        except Exception as error:  # It can be played without.
            sys.stderr.write("%s cannot be drawn: %s\n" % (self.envs[0], one_line(error)))
            frame = None
        if frame is None or frame.ndim != 3 or frame.shape[2] < 3 or frame.dtype != numpy.uint8:
            self.draws = False
            return None
        frame = frame[:, :, :3]
        part = -(-max(frame.shape[:2]) // SIDE)
        if part > 1:
            rows, columns = frame.shape[0] // part, frame.shape[1] // part
            parts = frame[: rows * part, : columns * part].reshape(rows, part, columns, part, 3)
            frame = parts.mean(axis=(1, 3)).astype(numpy.uint8)
        return numpy.ascontiguousarray(frame)

    def number(self, reward):
        try:
            return float(reward)
        except (TypeError, ValueError):
            raise Broken("it returned %.60r as its reward, which is not a number" % (reward,)) from None

    def reset(self, shared):
        for i, env in enumerate(self.envs):
            self.current = self.first_env + i
            try:
                seen, info = env.reset(seed=self.seeds[i])
            except (ValueError, OverflowError, TypeError):
                # Some take only what NumPy's old generator took.
                seen, info = env.reset(seed=self.small_seeds[i])
            self.put(shared.observations[i], seen)
            if self.spaces.masked:
                self.spaces.allow(shared.masks[i], info)
            self.spaces.announce(self.offers or MASK in info)
            shared.moves += 1

    def step(self, shared):
        for i, env in enumerate(self.envs):
            if shared.retired[i]:
                continue
            self.current = self.first_env + i
            seen, reward, terminated, truncated, info = env.step(self.spaces.convert(shared.actions[i]))
            shared.rewards[i] = self.number(reward)
            shared.terminated[i] = terminated
            shared.truncated[i] = truncated
            if terminated or truncated:
                self.put(shared.final_observations[i], seen)
                if self.spaces.masked:
                    self.spaces.allow_last(shared.final_masks[i], info)
                seen, info = env.reset()
            self.put(shared.observations[i], seen)
            if self.spaces.masked:
                self.spaces.allow(shared.masks[i], info)
            shared.moves += 1


class Shared:
    """Views into the shared memory."""

    def __init__(self, fd, layout, spaces):
        import numpy

        memory = mmap.mmap(fd, layout["size"])
        envs = layout["envs"]

        def view(name, dtype, shape):
            return numpy.ndarray((envs, *shape), dtype=dtype, buffer=memory, offset=layout[name])

        seen = numpy.uint8 if spaces.type == "u8" else numpy.float32
        if "n" in spaces.actions:
            self.actions = view("actions", numpy.int64, ())
        elif "sizes" in spaces.actions:
            self.actions = view("actions", numpy.int64, (len(spaces.actions["sizes"]),))
        else:
            self.actions = view("actions", numpy.float32, (len(spaces.actions["low"]),))
        if spaces.masked:
            self.masks = view("masks", numpy.uint8, (spaces.width,))
            self.final_masks = view("final_masks", numpy.uint8, (spaces.width,))
        self.observations = view("observations", seen, spaces.shape)
        self.final_observations = view("final_observations", seen, spaces.shape)
        self.rewards = view("rewards", numpy.float64, ())
        self.terminated = view("terminated", numpy.bool_, ())
        self.truncated = view("truncated", numpy.bool_, ())
        self.lost_life = view("lost_life", numpy.bool_, ())
        self.only_reset = view("only_reset", numpy.bool_, ())
        self.retired = view("retired", numpy.bool_, ())
        # The rank reads this one while it waits.
        self.moves = numpy.ndarray((1,), dtype=numpy.uint64, buffer=memory, offset=layout["moves"])


def one_line(error):
    return " ".join(str(error).split()).rstrip(".")


def atari_game(env_id):
    """The ROM that an id of ale-py names; None for other ids."""
    import ale_py.roms as roms

    names = {rom.title().replace("_", ""): rom for rom in roms.get_all_rom_ids()}
    found = re.fullmatch(r"ALE/(\w+)-v5|(\w+)NoFrameskip-v[04]", env_id)
    if found:
        name = found[1] or found[2]
        if name in names:
            return names[name]
        import difflib

        close = difflib.get_close_matches(name, names, 1)
        raise Refused(
            "unknown Atari game",
            "a similar game exists: `%s`" % env_id.replace(name, close[0]) if close else "games are named as in `ALE/SpaceInvaders-v5`",
        )
    found = re.fullmatch(r"(\w+?)(Deterministic)?-v[045]", env_id)
    if found and found[1] in names:
        raise Refused(
            "this variant skips frames by itself",
            "set env.id to %r or %r; env.frame_skip sets the number of frames" % ("ALE/%s-v5" % found[1], found[1] + "NoFrameskip-v4"),
        )
    return None


def make(config):
    try:
        import gymnasium
        import numpy  # noqa: F401
    except ImportError as error:
        raise Refused("%s: module %s not found" % (sys.executable, error.name), install("gymnasium>=1.0", "numpy"))
    if config["vector"] or config["id"].startswith("envpool:"):
        try:
            return Vector(config)
        except ModuleNotFoundError as error:
            raise Refused("%s: module %s not found" % (sys.executable, error.name), install(error.name or "envpool"))
    game = None
    try:
        import ale_py

        gymnasium.register_envs(ale_py)
        game = atari_game(config["id"])
    except ImportError as error:
        if config["is_atari"]:
            raise Refused("%s: module %s not found" % (sys.executable, error.name or "ale-py"), install("ale-py==0.12.*", "gymnasium>=1.0"))
    if game:
        try:
            import ale_py.vector_env  # noqa: F401
        except ImportError as error:
            raise Refused("its ale-py does not support vector environments: %s" % error, install("ale-py==0.12.*"))
        return Atari(config, game)
    if config["atari_keys"]:
        raise Refused(
            "env.%s applies to Atari games only" % config["atari_keys"][0],
            "remove %s" % ", ".join("env.%s" % key for key in config["atari_keys"]),
        )
    try:
        return Single(config)
    except gymnasium.error.DependencyNotInstalled as error:
        # Box2D is two lines of it.
        found = re.findall(r"pip install ['\"`]?([\w\-]+(?:\[[\w\-, ]+\])?)", str(error))
        raise Refused(one_line(error), install(*(found or ["gymnasium[all]"])))
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        raise Refused(one_line(error), "change env.id, or name the module that registers it: `module:Name-v0`")
    except ModuleNotFoundError as error:
        raise Refused(
            "%s: %s" % (sys.executable, error),
            "install the package, or set PYTHONPATH in launch.env to the folder of the module",
        )


def report(error, doing, current):
    """Reports a failure: in full to the log, in short to the rank. `current`: the environment, counted over all ranks."""
    if isinstance(error, Refused):
        answer(b"E", {"error": str(error), "hint": error.hint, "usage": True, "traceback": ""})
        return
    text = traceback.format_exc()
    sys.stderr.write(text)
    sys.stderr.flush()
    frames = traceback.extract_tb(error.__traceback__)
    where = " (%s:%d in %s)" % (frames[-1].filename, frames[-1].lineno, frames[-1].name) if frames else ""
    if current is not None:
        doing += " of environment %d" % current
    if isinstance(error, Broken):
        message = "%s failed: %s" % (doing, error)
    else:
        message = "%s failed: %s%s" % (doing, " ".join(traceback.format_exception_only(error)[-1].split())[:500].rstrip("."), where)
    answer(b"E", {"error": message, "hint": "", "usage": False, "traceback": text[-8000:]})


def main(memory):
    config = read_line()
    doing, worker = "making the environments", None
    try:
        worker = make(config)
        while "id" in config:
            spaces = worker.spaces
            described = {"shape": list(spaces.shape), "type": spaces.type, "actions": spaces.actions}
            answer(b"S", {**described, "images": spaces.images, "branches": spaces.branches})
            config = read_line()
            if "id" in config:
                worker.resize(config)
                worker.spaces.announces = config["announce_masks"]
        shared = Shared(memory, config, worker.spaces)
        while True:
            request = REQUESTS.read(1)
            if request == b"s":
                doing = "a step"
                worker.step(shared)
            elif request == b"r":
                doing = "a reset"
                worker.reset(shared)
            elif request == b"p":
                doing = "a picture"
                answer_picture(worker.picture())
                continue
            else:
                break
            answer(b"k")
    except BaseException as error:  # What an environment raises is for the rank to report, SystemExit too.
        report(error, doing, getattr(worker, "current", None))
        os._exit(1)
    # Not by way of interpreter shutdown: threads and destructors of environments may hang there.
    for env in getattr(worker, "envs", []):
        try:
            env.close()
        except Exception:
            pass
    os._exit(0)


main(int(sys.argv[1]))
