"""Train a small transformer on made-up sequences with Hugging Face Accelerate, as its tutorials do.

accelerate launch --cpu --num_processes 2 accelerate_tutorial.py
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    """Which of four tokens a sequence has most of."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(width, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(dim=1))


def make_dataset(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 64, (samples, 32), generator=generator)
    labels = torch.randint(0, 4, (samples,), generator=generator)
    tokens[:, ::4] = labels[:, None]
    return TensorDataset(tokens, labels)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--accumulate", type=int, default=2)
    options = parser.parse_args()

    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=options.accumulate)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(make_dataset(options.samples), batch_size=options.batch_size, shuffle=True, drop_last=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=len(loader))
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(options.epochs):
        for tokens, labels in loader:
            with accelerator.accumulate(model):
                loss = loss_fn(model(tokens), labels)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
