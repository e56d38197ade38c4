"""REINFORCE on CartPole-v1 as a LightningModule; the Trainer's DDP strategy averages the gradients of all ranks.

The lines that end in `# +` are added for rankdeck. A restarted run resumes model, optimizer, epoch and step.
"""
import argparse
import os

import gymnasium as gym
import pytorch_lightning as pl
import torch
from torch.distributions import Categorical
import rankdeck  # +


class Reinforce(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
        self.env = gym.make("CartPole-v1")
        self.env_step = 0

    def play(self, greedy=False):
        """An episode: its return, and the logarithm of its actions' probabilities."""
        obs, _ = self.env.reset()
        logprobs, done = [], False
        while not done:
            probs = Categorical(logits=self.net(torch.tensor(obs)))
            action = probs.probs.argmax() if greedy else probs.sample()
            logprobs.append(probs.log_prob(action))
            obs, _, terminated, truncated, _ = self.env.step(action.item())
            done = terminated or truncated
        return float(len(logprobs)), torch.stack(logprobs)

    def training_step(self, batch, index):
        played, logprobs = self.play()
        self.env_step += len(logprobs)
        to_go = torch.arange(len(logprobs), 0, -1, dtype=torch.float32)
        loss = -(logprobs * (to_go - to_go.mean()) / (to_go.std(unbiased=False) + 1e-6)).mean()
        rankdeck.report(self.env_step, returns=played, loss=loss)  # +
        return loss

    def on_train_epoch_end(self):
        self.trainer.save_checkpoint("last.ckpt")
        if self.global_rank == 0:
            rankdeck.checkpoint("last.ckpt")  # +
            with torch.no_grad():
                rankdeck.eval([self.play(greedy=True)[0] for _ in range(3)])  # +

    def on_save_checkpoint(self, checkpoint):
        checkpoint["env_step"] = self.env_step

    def on_load_checkpoint(self, checkpoint):
        self.env_step = checkpoint["env_step"]
        print(f"resumed env_step={self.env_step}")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--episodes", type=int, default=20, help="of each rank and epoch")
    args = parser.parse_args()
    torch.set_num_threads(1)
    pl.seed_everything(1 + int(os.environ["RANK"]))
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = pl.Trainer(
        accelerator="cpu", strategy="ddp", devices=local, num_nodes=int(os.environ["WORLD_SIZE"]) // local,
        max_epochs=args.epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    episodes = torch.utils.data.DataLoader(torch.arange(args.episodes * int(os.environ["WORLD_SIZE"])), batch_size=1)
    trainer.fit(Reinforce(), episodes, ckpt_path=os.environ.get("RANKDECK_RESUME"))  # +


if __name__ == "__main__":
    main()
