"""Three small networks that a laptop can train for real: two of images, and one of text.

The parameters of the first two do not depend on the image size. So one layer table, made from the digits (1 × 8 × 8),
also fits CIFAR-10 (3 × 32 × 32): grey images are repeated to three channels, and what differs in size is pooled away.
Both send 2.4 MB of gradients a step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 10
CHANNELS = 3
_WIDTH = 128  # of a token
_GRID = 4  # tokens along one edge of the image
VOCABULARY = 256  # of text: its bytes
LONGEST = 1024  # tokens of one window of text


class Block(nn.Module):
    """A residual block with two 3 × 3 convolutions (He et al., arXiv 1512.03385, figure 2)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) → (batch, outputs, h / stride, w / stride)."""
        inner = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(inner + self.shortcut(x))


class Cnn(nn.Module):
    """A CIFAR-style residual network with BatchNorm."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.stem = nn.Conv2d(CHANNELS, 32, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(32)
        self.blocks = nn.Sequential(Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2), Block(128, 128, 1))
        self.fc = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 3, h, w) → (batch, 10) logits."""
        features: Tensor = self.blocks(functional.relu(self.bn(self.stem(images))))
        logits: Tensor = self.fc(features.mean(dim=(2, 3)))
        return logits


class Layer(nn.Module):
    """One pre-norm transformer layer with four heads (Vaswani et al., arXiv 1706.03762)."""

    def __init__(self, heads: int = 4, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1 = nn.LayerNorm(_WIDTH)
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.out = nn.Linear(_WIDTH, _WIDTH)
        self.norm2 = nn.LayerNorm(_WIDTH)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))
        for last in (self.out, self.mlp[-1]):  # each layer starts as the identity: learns without a warm-up of the rate
            nn.init.zeros_(last.get_parameter("weight"))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) → the same."""
        x = x + self.attend(self.norm1(x))
        mixed: Tensor = x + self.mlp(self.norm2(x))
        return mixed

    def attend(self, x: Tensor) -> Tensor:
        """Self-attention over the tokens; a causal layer's see none that come later."""
        batch, tokens, _ = x.shape
        query, key, value = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        attended: Tensor = self.out(seen.transpose(1, 2).reshape(batch, tokens, _WIDTH))
        return attended


class Transformer(nn.Module):
    """A small vision transformer: a convolution makes a 4 × 4 grid of tokens, three layers mix them."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(_GRID * _GRID, _WIDTH))
        self.stem = nn.Conv2d(CHANNELS, _WIDTH, 3, 2, 1)
        self.layers = nn.Sequential(*(Layer() for _ in range(3)))
        self.norm = nn.LayerNorm(_WIDTH)
        self.fc = nn.Linear(_WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 3, h, w) → (batch, 10) logits; h and w at least 8."""
        grid = functional.adaptive_avg_pool2d(functional.gelu(self.stem(images)), _GRID)
        tokens = grid.flatten(2).transpose(1, 2) + self.place
        logits: Tensor = self.fc(self.norm(self.layers(tokens)).mean(dim=1))
        return logits


class Gpt(nn.Module):
    """A small language model over bytes: two causal layers (after Radford et al., GPT-2)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, _WIDTH)
        self.places = nn.Embedding(LONGEST, _WIDTH)
        self.layers = nn.Sequential(*(Layer(causal=True) for _ in range(2)))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length ≤ 1024) whole numbers below 256 → (batch, length, 256) logits of each next one."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        logits: Tensor = self.head(self.norm(self.layers(x)))
        return logits


def cnn100() -> nn.Module:
    """The cnn for CIFAR-100: `model: rig.workloads.nets:cnn100`."""
    return Cnn(100)


NETS: dict[str, Callable[[], nn.Module]] = {"cnn": Cnn, "transformer": Transformer}  # of images; each has a layer table
TEXT_NETS: dict[str, Callable[[], nn.Module]] = {"gpt": Gpt}
