"""PPO on Pong as CleanRL's ppo_atari.py computes it, with ale-py's AtariVectorEnv (the emulator that rankdeck uses).

    python3 baseline.py eager|graph SECONDS THREADS ENVS

Prints steps per second and the shares of emulator and update. `graph` replays acting and update as CUDA graphs. With WORLD_SIZE
above 1 it is one of several ranks, each with ENVS environments, whose gradients DDP averages."""

import json
import os
import sys
import time

import numpy as np
import torch
import torch.nn as nn
from ale_py.vector_env import AtariVectorEnv
from torch.distributions.categorical import Categorical

Categorical.set_default_validate_args(False)
MODE, SECONDS, THREADS, ENVS = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
STEPS = int(os.environ.get("KIT_STEPS", "128"))
BATCH = ENVS * STEPS
MINIBATCH = BATCH // 4
CUDA = torch.device("cuda")
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
if WORLD > 1:
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda:0"))


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        convolutions = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU()]
        self.trunk = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU())
        self.actor, self.critic = nn.Linear(512, 6), nn.Linear(512, 1)

    def forward(self, pixels):
        hidden = self.trunk(pixels / 255.0)
        return self.actor(hidden), self.critic(hidden)


agent = Agent().to(CUDA)
learner = torch.nn.parallel.DistributedDataParallel(agent, device_ids=[0]) if WORLD > 1 else agent
adam = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5, capturable=MODE == "graph")


def act(pixels):
    logits, value = agent(pixels)
    policy = Categorical(logits=logits)
    action = policy.sample()
    return action, policy.log_prob(action), value.flatten()


def update(pixels, actions, log_probs, advantages, returns, values):
    logits, now = learner(pixels.float())
    policy = Categorical(logits=logits)
    ratio = (policy.log_prob(actions) - log_probs).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(0.9, 1.1)).mean()
    now = now.view(-1)
    clipped = values + (now - values).clamp(-0.1, 0.1)
    value_loss = 0.5 * torch.max((now - returns) ** 2, (clipped - returns) ** 2).mean()
    loss = policy_loss - 0.01 * policy.entropy().mean() + 0.5 * value_loss
    adam.zero_grad(set_to_none=MODE != "graph")
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5, foreach=True)
    adam.step()


class Graphs:
    """Acting and update, captured once."""

    def __init__(self):
        self.seen = torch.zeros(ENVS, 4, 84, 84, device=CUDA)
        self.batch = [torch.zeros(MINIBATCH, 4, 84, 84, dtype=torch.uint8, device=CUDA)]
        self.batch += [torch.zeros(MINIBATCH, device=CUDA) for _ in range(5)]
        for parameter in agent.parameters():
            parameter.grad = torch.zeros_like(parameter)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                with torch.no_grad():
                    act(self.seen)
                update(*self.batch)
        torch.cuda.current_stream().wait_stream(side)
        self.acting, self.updating = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.acting), torch.no_grad():
            self.acted = act(self.seen)
        with torch.cuda.graph(self.updating):
            update(*self.batch)

    def act(self, pixels):
        self.seen.copy_(pixels)
        self.acting.replay()
        return self.acted

    def update(self, *batch):
        for to, values in zip(self.batch, batch):
            to.copy_(values)
        self.updating.replay()


def main():
    graphs = Graphs() if MODE == "graph" else None
    env = AtariVectorEnv(
        "pong", num_envs=ENVS, num_threads=THREADS, frameskip=4, stack_num=4, img_height=84, img_width=84, grayscale=True
    )
    column = lambda: torch.zeros(STEPS, ENVS, device=CUDA)
    pixels = torch.zeros(STEPS, ENVS, 4, 84, 84, dtype=torch.uint8, device=CUDA)
    actions, log_probs, rewards, dones, values = (column() for _ in range(5))
    now, _ = env.reset()
    now, done = torch.as_tensor(now).to(CUDA), torch.zeros(ENVS, device=CUDA)
    begun, iteration, steps, emulating, updating = None, 0, 0, 0.0, 0.0
    while True:
        for step in range(STEPS):
            pixels[step], dones[step] = now, done
            with torch.no_grad():
                action, log_probs[step], values[step] = graphs.act(now) if graphs else act(now.float())
            actions[step] = action
            chosen, since = np.ascontiguousarray(action.cpu().numpy(), dtype=np.int64), time.time()
            seen, reward, terminated, truncated, _ = env.step(chosen)
            emulating += time.time() - since
            now = torch.as_tensor(seen).to(CUDA)
            done = torch.as_tensor((terminated | truncated).astype(np.float32)).to(CUDA)
            rewards[step] = torch.as_tensor(np.sign(reward).astype(np.float32)).to(CUDA)
        since = time.time()
        with torch.no_grad():
            last_value, last, advantages = agent(now.float())[1].flatten(), 0, torch.zeros_like(rewards)
            for step in reversed(range(STEPS)):
                alive, value = (1 - done, last_value) if step == STEPS - 1 else (1 - dones[step + 1], values[step + 1])
                delta = rewards[step] + 0.99 * value * alive - values[step]
                advantages[step] = last = delta + 0.99 * 0.95 * alive * last
        columns = [x.reshape(BATCH, *x.shape[2:]) for x in (pixels, actions, log_probs, advantages, advantages + values, values)]
        for _ in range(4):
            order = torch.randperm(BATCH, device=CUDA)
            for start in range(0, BATCH, MINIBATCH):
                batch = [x[order[start:start + MINIBATCH]] for x in columns]
                graphs.update(*batch) if graphs else update(*batch)
        torch.cuda.synchronize()
        updating += time.time() - since
        iteration += 1
        if iteration == 2:
            begun, steps, emulating, updating = time.time(), 0, 0.0, 0.0
        else:
            steps += BATCH
        over = iteration > 2 and time.time() - begun >= SECONDS
        if WORLD > 1:
            # All ranks end together.
            flag = torch.tensor([over], dtype=torch.float32, device=CUDA)
            torch.distributed.broadcast(flag, 0)
            over = flag.item() > 0
        if over:
            break
    whole = time.time() - begun
    found = {"mode": MODE, "envs": ENVS, "threads": THREADS, "steps_per_s": steps / whole}
    if WORLD > 1:
        torch.distributed.destroy_process_group()
    print(json.dumps(found | {"emulator_share": emulating / whole, "update_share": updating / whole}))


main()
