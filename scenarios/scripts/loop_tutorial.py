"""Train a small network with a loop that is kept apart from the model, in the manner of Lightning.

torchrun --nproc-per-node 2 loop_tutorial.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Autoencoder(nn.Module):
    """What is trained: the network, one step's loss, and the optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 32))
        self.decoder = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 256))

    def forward(self, batch: tuple[torch.Tensor]) -> torch.Tensor:
        return self.training_step(batch)

    def training_step(self, batch: tuple[torch.Tensor]) -> torch.Tensor:
        (images,) = batch
        return nn.functional.mse_loss(self.decoder(self.encoder(images)), images)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Trainer:
    """How it is trained: processes, batches, accumulation."""

    def __init__(self, max_epochs: int = 1, accumulate_grad_batches: int = 1) -> None:
        self.max_epochs = max_epochs
        self.accumulate = accumulate_grad_batches
        dist.init_process_group("gloo")

    def fit(self, model: Autoencoder, dataset: TensorDataset) -> None:
        sampler = DistributedSampler(dataset, drop_last=True)
        loader = DataLoader(dataset, batch_size=32, sampler=sampler, drop_last=True)
        optimizer = model.configure_optimizers()
        wrapped = DistributedDataParallel(model)
        for epoch in range(self.max_epochs):
            sampler.set_epoch(epoch)
            for number, batch in enumerate(loader, start=1):
                loss = self.backward(wrapped, batch, last=number % self.accumulate == 0)
                if number % self.accumulate == 0:
                    optimizer.step()
                    optimizer.zero_grad()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.3f}")
        dist.destroy_process_group()

    def backward(self, model: DistributedDataParallel, batch: tuple[torch.Tensor], last: bool) -> torch.Tensor:
        if not last:
            with model.no_sync():
                loss = model(batch)
                loss.backward()
            return loss
        loss = model(batch)
        loss.backward()
        return loss


if __name__ == "__main__":
    torch.manual_seed(0)
    images = torch.rand(4096, 256)
    Trainer(accumulate_grad_batches=4).fit(Autoencoder(), TensorDataset(images))
