"""Train a small network on made-up images with DistributedDataParallel, as PyTorch's tutorials do.

torchrun --nproc-per-node 2 ddp_tutorial.py --epochs 2
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_dataset(samples: int) -> Dataset:
    """Images of noise, each brighter in the quarter that its label names."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (samples,), generator=generator)
    images = torch.randn(samples, 1, 16, 16, generator=generator)
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 2)
        image[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] += 1.0
    return TensorDataset(images, labels)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(32 * 4 * 4, 1024), nn.ReLU(), nn.Linear(1024, 4))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))


def train(model: nn.Module, loader: DataLoader, epochs: int, lr: float) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {total / len(loader):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=0.02)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = make_dataset(options.samples)
    sampler = DistributedSampler(dataset, drop_last=True)
    loader = DataLoader(dataset, batch_size=options.batch_size, sampler=sampler, drop_last=True)
    train(DistributedDataParallel(Net()), loader, options.epochs, options.lr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
