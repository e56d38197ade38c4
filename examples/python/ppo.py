"""PPO on CartPole-v1 in one file, in the style of CleanRL: DistributedDataParallel averages the gradients of all ranks.

The lines that end in `# +` are added for rankdeck; the script runs under torchrun, too. A restarted run resumes model,
optimizer, step and the W&B run.
"""
import argparse
import os

import gymnasium as gym
import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributions import Categorical
import rankdeck  # +


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-timesteps", type=int, default=100_000, help="over all ranks")
    parser.add_argument("--local-num-envs", type=int, default=4)
    parser.add_argument("--num-steps", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=2.5e-3)
    parser.add_argument("--update-epochs", type=int, default=4)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--clip-coef", type=float, default=0.2)
    parser.add_argument("--ent-coef", type=float, default=0.01)
    parser.add_argument("--vf-coef", type=float, default=0.5)
    parser.add_argument("--max-grad-norm", type=float, default=0.5)
    parser.add_argument("--eval-every", type=int, default=10, help="iterations")
    parser.add_argument("--wandb", metavar="PROJECT", help="log to W&B")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def layer_init(layer, std=np.sqrt(2)):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(), layer_init(nn.Linear(64, 1), 1.0))
        self.actor = nn.Sequential(layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(), layer_init(nn.Linear(64, 2), 0.01))

    def forward(self, obs, action=None):
        probs = Categorical(logits=self.actor(obs))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(obs).flatten()


def evaluate(agent, episodes=5):
    env, returns = gym.make("CartPole-v1"), []
    for seed in range(episodes):
        (obs, _), done, total = env.reset(seed=10_000 + seed), False, 0.0
        while not done:
            with torch.no_grad():
                action = agent.actor(torch.tensor(obs)).argmax().item()
            obs, reward, terminated, truncated, _ = env.step(action)
            done, total = terminated or truncated, total + reward
        returns.append(total)
    return returns


def main():
    args = parse_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    agent = Agent()
    ddp = nn.parallel.DistributedDataParallel(agent)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    done, global_step = 0, 0
    resume = os.environ.get("RANKDECK_RESUME")  # +
    if resume:
        saved = torch.load(resume)
        agent.load_state_dict(saved["agent"])
        optimizer.load_state_dict(saved["optimizer"])
        done, global_step = saved["iteration"], saved["global_step"]
        print(f"resumed global_step={global_step}")
    if args.wandb and rank == 0:
        import wandb

        name = os.environ.get("RANKDECK_RUN")
        wandb.init(project=args.wandb, id=name, name=name, resume="allow", config=vars(args))
        wandb.define_metric("*", step_metric="global_step")
    # Not the same random numbers again after a restart.
    torch.manual_seed(args.seed + rank + 1000 * done)
    np.random.seed(args.seed + rank + 1000 * done)

    envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * args.local_num_envs)
    batch_size = args.local_num_envs * args.num_steps
    next_obs = torch.tensor(envs.reset(seed=args.seed + 1000 * rank + done)[0])
    next_done = torch.zeros(args.local_num_envs)
    running = np.zeros(args.local_num_envs)
    for iteration in range(done + 1, args.total_timesteps // (batch_size * world_size) + 1):
        obs, actions, logprobs, rewards, dones, values, returns = [], [], [], [], [], [], []
        for _ in range(args.num_steps):
            obs.append(next_obs)
            dones.append(next_done)
            with torch.no_grad():
                action, logprob, _, value = agent(next_obs)
            actions.append(action)
            logprobs.append(logprob)
            values.append(value)
            next_obs, reward, terminated, truncated, _ = envs.step(action.numpy())
            next_obs, next_done = torch.tensor(next_obs), torch.tensor(terminated | truncated, dtype=torch.float32)
            rewards.append(torch.tensor(reward, dtype=torch.float32))
            running += reward
            returns.extend(running[terminated | truncated])
            running[terminated | truncated] = 0.0
        global_step += batch_size * world_size

        with torch.no_grad():
            next_value = agent.critic(next_obs).flatten()
        advantages, last = torch.zeros(args.num_steps, args.local_num_envs), 0.0
        for t in reversed(range(args.num_steps)):
            nonterminal = 1.0 - (next_done if t == args.num_steps - 1 else dones[t + 1])
            following = next_value if t == args.num_steps - 1 else values[t + 1]
            delta = rewards[t] + args.gamma * following * nonterminal - values[t]
            advantages[t] = last = delta + args.gamma * args.gae_lambda * nonterminal * last
        b_obs, b_actions, b_logprobs, b_values = (torch.cat(part) for part in (obs, actions, logprobs, values))
        b_advantages = advantages.flatten()
        b_returns = b_advantages + b_values

        for _ in range(args.update_epochs):
            for mb in torch.randperm(batch_size).chunk(args.num_minibatches):
                _, logprob, entropy, value = ddp(b_obs[mb], b_actions[mb])
                ratio = (logprob - b_logprobs[mb]).exp()
                adv = (b_advantages[mb] - b_advantages[mb].mean()) / (b_advantages[mb].std() + 1e-8)
                pg_loss = -torch.min(ratio * adv, ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef) * adv).mean()
                v_loss = 0.5 * (value - b_returns[mb]).square().mean()
                loss = pg_loss - args.ent_coef * entropy.mean() + args.vf_coef * v_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()

        rankdeck.report(global_step // world_size, {"losses/policy": pg_loss, "losses/value": v_loss}, returns=returns)  # +
        stop = torch.tensor(float(rankdeck.should_stop()))  # +
        dist.all_reduce(stop)  # +
        if iteration % args.eval_every == 0 and rank == 0:
            played = evaluate(agent)
            print(f"global_step={global_step}, evaluation={np.mean(played):.1f}")
            rankdeck.eval(played)  # +
            if args.wandb:
                wandb.log({"global_step": global_step, "evaluation": np.mean(played)})
        if (iteration % args.eval_every == 0 or stop > 0) and rank == 0:
            saved = {"agent": agent.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**saved, "iteration": iteration, "global_step": global_step}, "agent.tmp")
            # An interrupted save leaves the checkpoint before it.
            os.replace("agent.tmp", "agent.pt")
            rankdeck.checkpoint("agent.pt")  # +
        if stop > 0:  # +
            break  # +
    envs.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
