"""DI-engine's DQN on CartPole by its task entry point; the lines that end in `# +` report to rankdeck.

Each rank trains its own policy, with its rank as the seed: `rankdeck run examples/python/ding_dqn.toml`. A restarted
run resumes model, optimizer and step, on all ranks from those of rank 0; the replay buffer is filled again.
"""

import argparse
import os
import tempfile

import gym
import rankdeck  # +
import torch
from ding.config import compile_config
from ding.data import DequeBuffer
from ding.envs import BaseEnvManagerV2, DingEnvWrapper
from ding.framework import ding_init, task
from ding.framework.context import OnlineRLContext
from ding.framework.middleware import OffPolicyLearner, StepCollector, data_pusher, eps_greedy_handler, interaction_evaluator
from ding.model import DQN
from ding.policy import DQNPolicy
from ding.utils import set_pkg_seed
from dizoo.classic_control.cartpole.config.cartpole_dqn_config import create_config, main_config


def report(ctx):
    rankdeck.report(ctx.env_step, train_iter=ctx.train_iter, episodes=ctx.env_episode)  # +
    if ctx.last_eval_iter != report.evaluated and ctx.eval_value > -float("inf"):  # +
        report.evaluated = ctx.last_eval_iter  # +
        rankdeck.eval([ctx.eval_value])  # +
        if report.rank == 0:
            saved = {"policy": report.policy.learn_mode.state_dict(), "env_step": ctx.env_step, "train_iter": ctx.train_iter}
            torch.save(saved, "dqn.tmp")
            # An interrupted save leaves the checkpoint before it.
            os.replace("dqn.tmp", "dqn.pt")
            rankdeck.checkpoint("dqn.pt")  # +
    task.finish = task.finish or rankdeck.should_stop()  # +


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20000)
    args = parser.parse_args()
    report.evaluated = None
    main_config.exp_name = tempfile.mkdtemp(prefix="ding-")
    cfg = compile_config(main_config, create_cfg=create_config, auto=True, save_cfg=False)
    ding_init(cfg)
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        envs = [BaseEnvManagerV2(env_fn=[lambda: DingEnvWrapper(gym.make("CartPole-v0"))] * 4, cfg=cfg.env.manager) for _ in range(2)]
        rank = report.rank = int(os.environ.get("RANK", 0))
        set_pkg_seed(rank, use_cuda=cfg.policy.cuda)
        policy = report.policy = DQNPolicy(cfg.policy, model=DQN(**cfg.policy.model))
        resume = os.environ.get("RANKDECK_RESUME")  # +
        if resume:
            saved = torch.load(resume)
            policy.learn_mode.load_state_dict(saved["policy"])
            task.ctx.env_step, task.ctx.train_iter = saved["env_step"], saved["train_iter"]
            # Not the same random numbers again.
            set_pkg_seed(rank + task.ctx.env_step, use_cuda=cfg.policy.cuda)
            print(f"resumed env_step={task.ctx.env_step}")
        buffer = DequeBuffer(size=cfg.policy.other.replay_buffer.replay_buffer_size)
        task.use(interaction_evaluator(cfg, policy.eval_mode, envs[1]))
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, envs[0]))
        task.use(data_pusher(cfg, buffer))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
        task.use(report)  # +
        task.use(lambda ctx: setattr(task, "finish", task.finish or ctx.env_step >= args.steps))
        task.run()


if __name__ == "__main__":
    main()
