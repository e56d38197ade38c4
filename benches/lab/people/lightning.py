"""A LightningModule under the Trainer with its DDP strategy, in the environment that torchrun sets."""
import os, sys

import pytorch_lightning
import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import happenings  # noqa: E402


class Regression(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def training_step(self, batch, step):
        happenings.happens(step, self.global_rank)
        if step % 10 == 0 and self.global_rank == 0:
            print(f"iteration {step}", flush=True)
        return (self.net(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    torch.set_num_threads(1)
    happenings.beside()
    data = torch.utils.data.TensorDataset(torch.randn(80_000, 32), torch.randn(80_000, 1))
    nodes = int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = pytorch_lightning.Trainer(
        accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=nodes, max_epochs=1000, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Regression(), torch.utils.data.DataLoader(data, batch_size=8))


if __name__ == "__main__":
    main()
