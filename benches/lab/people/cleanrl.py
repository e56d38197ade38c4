"""PPO on CartPole in one file, in the style of CleanRL's ppo_atari_multigpu.py: gradients are averaged by hand, rank 0 writes TensorBoard events."""
import os, sys, time

import gymnasium
import torch
import torch.distributed as dist

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import happenings  # noqa: E402


def layer(inputs, outputs, gain):
    linear = torch.nn.Linear(inputs, outputs)
    torch.nn.init.orthogonal_(linear.weight, gain)
    torch.nn.init.constant_(linear.bias, 0.0)
    return linear


class Agent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = torch.nn.Sequential(layer(4, 64, 1.4), torch.nn.Tanh(), layer(64, 1, 1.0))
        self.actor = torch.nn.Sequential(layer(4, 64, 1.4), torch.nn.Tanh(), layer(64, 2, 0.01))

    def forward(self, observations, actions=None):
        chances = torch.distributions.Categorical(logits=self.actor(observations))
        actions = chances.sample() if actions is None else actions
        return actions, chances.log_prob(actions), chances.entropy(), self.critic(observations).squeeze(-1)


def rollout(envs, agent, observations, length):
    kept = []
    for _ in range(length):
        with torch.no_grad():
            actions, logprob, _, value = agent(observations)
        following, reward, ended, cut, _ = envs.step(actions.numpy())
        kept.append((observations, actions, logprob, value, torch.tensor(reward), torch.tensor(ended | cut)))
        observations = torch.tensor(following, dtype=torch.float32)
    return observations, [torch.stack(part) for part in zip(*kept)]


def update(agent, optimiser, batch, world):
    observations, actions, logprobs, values, rewards, ends = batch
    returns, carried = torch.zeros_like(values), torch.zeros(values.shape[1])
    for step in reversed(range(len(rewards))):
        carried = rewards[step].float() + 0.99 * carried * (~ends[step])
        returns[step] = carried
    for _ in range(2):
        _, logprob, entropy, value = agent(observations, actions)
        ratio, advantage = (logprob - logprobs).exp(), returns - values
        policy = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        loss = policy - 0.01 * entropy.mean() + 0.5 * (value - returns).square().mean()
        optimiser.zero_grad()
        loss.backward()
        if world > 1:
            gradients = torch.cat([parameter.grad.view(-1) for parameter in agent.parameters()])
            dist.all_reduce(gradients)
            offset = 0
            for parameter in agent.parameters():
                size = parameter.numel()
                parameter.grad.copy_(gradients[offset:offset + size].view_as(parameter.grad) / world)
                offset += size
        optimiser.step()
    return float(loss.detach())


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo")
    writer = None
    if rank == 0:
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter("runs/cleanrl", flush_secs=1)
    happenings.beside()
    envs = gymnasium.make_vec("CartPole-v1", num_envs=4, vectorization_mode="sync")
    # The first weights are not broadcast: they are equal because the seed is. The rest is each rank's own.
    torch.manual_seed(1)
    agent = Agent()
    torch.manual_seed(1 + rank)
    optimiser = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    observations = torch.tensor(envs.reset(seed=rank)[0], dtype=torch.float32)
    for iteration in range(1, int(os.environ.get("LAB_STEPS", "1000000")) + 1):
        observations, batch = rollout(envs, agent, observations, 32)
        happenings.happens(iteration, rank)
        loss = update(agent, optimiser, batch, world)
        if writer is not None:
            writer.add_scalar("losses/total", loss, iteration)
            if iteration % 10 == 0:
                print(f"iteration {iteration}, SPS {iteration}", flush=True)
        time.sleep(0.01)
    envs.close()
    if writer is not None:
        writer.close()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
