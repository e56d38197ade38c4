"""What CleanRL's updates cost on a GPU, counted on fake ones as ours are (tests/trainer/gpu/budgets.rs, which runs this).

    python3 cleanrl.py FAKE        (FAKE: the folder that tests/fake_cuda/build.py has made)

The updates of ppo.py, ppo_atari.py, dqn.py, dqn_atari.py and sac_continuous_action.py in eager PyTorch, operation by operation what they ask
of torch, with the widths and batches of our rows. Prints, for each, means over UPDATES updates as JSON."""

import json
import os
import pathlib
import sys

FAKE = pathlib.Path(sys.argv[1]).resolve()
UPDATES = 8
if os.environ.get("CLEANRL_COUNTED") != "yes":
    # The dynamic linker reads its variable at the start only, and wrappers of interpreters set their own.
    path = {"LD_LIBRARY_PATH": str(FAKE / "driver"), "PYTHONPATH": str(FAKE / "python"), "CLEANRL_COUNTED": "yes"}
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **path})

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical, Normal

CUDA = torch.device("cuda")
HIDDEN = 64
# Kernels of the fake do nothing, so no argument of a distribution would pass its test. Its result is fetched.
torch.Tensor.__bool__ = lambda tensor: (tensor.item(), True)[1]


def counters():
    """This process's, from the file that the fake keeps up to date."""
    data = (pathlib.Path(os.environ["FAKE_CUDA"]) / f"counters/-.{os.getpid()}").read_bytes()
    lines = [data[at:at + 32] for at in range(0, len(data), 32)]
    return {line[:24].rstrip(b"\0").decode(): int.from_bytes(line[24:], "little") for line in lines}


def counted(update):
    """Means of an update's counts, once libraries have chosen and memory has been taken."""
    for _ in range(2):
        update()
    before = counters()
    for _ in range(UPDATES):
        update()
    after = counters()
    mean = lambda *names: sum(after[name] - before[name] for name in names) / UPDATES
    return {
        "launches": mean("launches"),
        "calls": mean("gemms", "convolutions"),
        "waits": mean("stream_waits", "event_waits", "device_waits", "copy_waits"),
        "down": mean("bytes_down"),
        "up": mean("bytes_up"),
        "host": mean("host_us") / 1000,
    }


def dense(widths, between):
    layers = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [nn.Linear(inputs, outputs), between()]
    return layers


class Separate(nn.Module):
    """Actor and critic of ppo.py."""

    def __init__(self, observation, actions):
        super().__init__()
        self.critic = nn.Sequential(*dense([observation, HIDDEN, HIDDEN], nn.Tanh), nn.Linear(HIDDEN, 1))
        self.actor = nn.Sequential(*dense([observation, HIDDEN, HIDDEN], nn.Tanh), nn.Linear(HIDDEN, actions))

    def forward(self, seen, taken):
        policy = Categorical(logits=self.actor(seen))
        return policy.log_prob(taken), policy.entropy(), self.critic(seen)


class Pixels(nn.Module):
    """The agent of ppo_atari.py, with the hidden layers of our row."""

    def __init__(self, actions):
        super().__init__()
        convolutions = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU()]
        self.trunk = nn.Sequential(*convolutions, nn.Flatten(), *dense([3136, HIDDEN, HIDDEN], nn.ReLU))
        self.actor, self.critic = nn.Linear(HIDDEN, actions), nn.Linear(HIDDEN, 1)

    def forward(self, seen, taken):
        hidden = self.trunk(seen / 255.0)
        policy = Categorical(logits=self.actor(hidden))
        return policy.log_prob(taken), policy.entropy(), self.critic(hidden)


def ppo(agent, shape, batch, minibatch, clip):
    """One update of a minibatch; indices are NumPy's, and a share of clipped ratios is read each time."""
    agent = agent.to(CUDA)
    adam = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    seen = torch.zeros(batch, *shape, device=CUDA)
    taken, log_probs, advantages, returns, values = (torch.zeros(batch, device=CUDA) for _ in range(5))
    order, clipped = np.arange(batch), []

    def update():
        chosen = order[:minibatch]
        now, entropy, value = agent(seen[chosen], taken.long()[chosen])
        change = now - log_probs[chosen]
        ratio = change.exp()
        with torch.no_grad():
            (-change).mean()
            ((ratio - 1) - change).mean()
            clipped.append(((ratio - 1.0).abs() > clip).float().mean().item())
        advantage = advantages[chosen]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy_loss = torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, 1 - clip, 1 + clip)).mean()
        value = value.view(-1)
        plain = (value - returns[chosen]) ** 2
        near = values[chosen] + torch.clamp(value - values[chosen], -clip, clip)
        value_loss = 0.5 * torch.max(plain, (near - returns[chosen]) ** 2).mean()
        loss = policy_loss - 0.01 * entropy.mean() + value_loss * 0.5
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        adam.step()

    return update


def drawn(batch, *columns):
    """Columns of a batch as a replay buffer of NumPy arrays gives them to the GPU."""
    return [torch.tensor(np.zeros((batch, width), dtype), device=CUDA) for width, dtype in columns]


class PixelValues(nn.Module):
    """The network of dqn_atari.py, with the hidden layers of our row."""

    def __init__(self, actions):
        super().__init__()
        convolutions = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU()]
        self.layers = nn.Sequential(*convolutions, nn.Flatten(), *dense([3136, HIDDEN, HIDDEN], nn.ReLU), nn.Linear(HIDDEN, actions))

    def forward(self, seen):
        return self.layers(seen.view(-1, 4, 84, 84) / 255.0)


def dqn(observation, actions, batch):
    small = lambda: nn.Sequential(*dense([observation, HIDDEN, HIDDEN], nn.ReLU), nn.Linear(HIDDEN, actions))
    pixels = observation == 4 * 84 * 84
    make = lambda: (PixelValues(actions) if pixels else small()).to(CUDA)
    network, target = make(), make()
    adam = torch.optim.Adam(network.parameters(), lr=2.5e-4)
    of = np.uint8 if pixels else np.float32
    columns = [(observation, of), (1, np.int64), (observation, of), (1, np.float32), (1, np.float32)]

    def update():
        seen, taken, after, done, reward = drawn(batch, *columns)
        with torch.no_grad():
            best, _ = target(after).max(dim=1)
            td_target = reward.flatten() + 0.99 * best * (1 - done.flatten())
        loss = F.mse_loss(td_target, network(seen).gather(1, taken).squeeze())
        adam.zero_grad()
        loss.backward()
        adam.step()

    return update


class Critic(nn.Module):
    def __init__(self, observation, action):
        super().__init__()
        self.layers = nn.Sequential(*dense([observation + action, HIDDEN, HIDDEN], nn.ReLU), nn.Linear(HIDDEN, 1))

    def forward(self, seen, action):
        return self.layers(torch.cat([seen, action], 1))


class Actor(nn.Module):
    def __init__(self, observation, action):
        super().__init__()
        self.trunk = nn.Sequential(*dense([observation, HIDDEN, HIDDEN], nn.ReLU))
        self.mean, self.log_std = nn.Linear(HIDDEN, action), nn.Linear(HIDDEN, action)
        self.register_buffer("scale", torch.ones(action))
        self.register_buffer("bias", torch.zeros(action))

    def forward(self, seen):
        hidden = self.trunk(seen)
        mean, log_std = self.mean(hidden), torch.tanh(self.log_std(hidden))
        normal = Normal(mean, (-5 + 0.5 * 7 * (log_std + 1)).exp())
        raw = normal.rsample()
        squashed = torch.tanh(raw)
        action = squashed * self.scale + self.bias
        log_prob = normal.log_prob(raw)
        log_prob -= torch.log(self.scale * (1 - squashed.pow(2)) + 1e-6)
        torch.tanh(mean) * self.scale + self.bias
        return action, log_prob.sum(1, keepdim=True)


def sac(observation, action, batch):
    """A step of the environment: a critic's update; every second one, two of the actor and of alpha; targets."""
    actor, critics, targets = Actor(observation, action).to(CUDA), [], []
    for networks in (critics, targets):
        networks += [Critic(observation, action).to(CUDA) for _ in range(2)]
    of_critics = torch.optim.Adam([p for critic in critics for p in critic.parameters()], lr=1e-3)
    of_actor = torch.optim.Adam(list(actor.parameters()), lr=3e-4)
    log_alpha = torch.zeros(1, requires_grad=True, device=CUDA)
    of_alpha = torch.optim.Adam([log_alpha], lr=1e-3)
    columns = [(observation, np.float32), (action, np.float32), (observation, np.float32), (1, np.float32), (1, np.float32)]
    state = {"step": 0, "alpha": 1.0}

    def update():
        seen, taken, after, done, reward = drawn(batch, *columns)
        with torch.no_grad():
            then, log_prob = actor(after)
            worth = torch.min(*[target(after, then) for target in targets]) - state["alpha"] * log_prob
            td_target = reward.flatten() + (1 - done.flatten()) * 0.99 * worth.view(-1)
        values = [critic(seen, taken).view(-1) for critic in critics]
        one, other = [F.mse_loss(value, td_target) for value in values]
        of_critics.zero_grad()
        (one + other).backward()
        of_critics.step()
        for _ in range(2 if state["step"] % 2 == 0 else 0):
            now, log_prob = actor(seen)
            actor_loss = ((state["alpha"] * log_prob) - torch.min(*[critic(seen, now) for critic in critics])).mean()
            of_actor.zero_grad()
            actor_loss.backward()
            of_actor.step()
            with torch.no_grad():
                _, log_prob = actor(seen)
            alpha_loss = (-log_alpha.exp() * (log_prob - float(action))).mean()
            of_alpha.zero_grad()
            alpha_loss.backward()
            of_alpha.step()
            state["alpha"] = log_alpha.exp().item()
        for critic, target in zip(critics, targets):
            for parameter, kept in zip(critic.parameters(), target.parameters()):
                kept.data.copy_(0.005 * parameter.data + (1 - 0.005) * kept.data)
        state["step"] += 1

    return update


print(json.dumps({
    "PPO, CartPole": counted(ppo(Separate(4, 2), [4], 512, 128, 0.2)),
    "PPO, Pong": counted(ppo(Pixels(6), [4, 84, 84], 32, 8, 0.1)),
    "DQN, CartPole": counted(dqn(4, 2, 32)),
    "DQN, Pong": counted(dqn(4 * 84 * 84, 6, 32)),
    "SAC, Pendulum": counted(sac(3, 1, 32)),
}))
