"""A small diffusion model for `compute: real`, in full and with LoRA: what DreamBooth trains, at a laptop's size.

`model: rig.workloads.foundation:small_unet`, or `…:small_unet_lora`; needs `pip install "trainrig[models]"`. Weights
are random and nothing is downloaded: a fine-tune's bytes and times do not depend on what the weights are.
"""

from __future__ import annotations

import torch
from diffusers import UNet2DConditionModel
from peft import LoraConfig
from torch import Tensor, nn
from torch.nn import functional

from rig.workloads.nets import CHANNELS

NOISINESS = 1000  # timesteps, of Stable Diffusion as well
CONTEXT = (8, 64)  # words, and the width of each
RANK = 4
PROJECTIONS = ("to_q", "to_k", "to_v", "to_out.0")  # of every attention: those that DreamBooth's LoRA adapts


class Denoiser(nn.Module):
    """A conditional UNet and the loss it is trained by (Ho et al., arXiv 2006.11239, algorithm 1)."""

    def __init__(self, unet: nn.Module) -> None:
        super().__init__()
        self.unet = unet
        betas = torch.linspace(1e-4, 0.02, NOISINESS, dtype=torch.float64)
        kept = torch.cumprod(1 - betas, dim=0).float()
        # Frozen parameters and no buffers, which DDP would send anew in every step.
        self.kept = nn.Parameter(kept, requires_grad=False)  # the share of the image that a timestep leaves
        self.context = nn.Parameter(torch.randn(1, *CONTEXT), requires_grad=False)  # one prompt for all images

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 3, h, w), h and w multiples of 2 → the mean squared error of the noise that the UNet sees in them."""
        count = len(images)
        timesteps = torch.randint(0, NOISINESS, (count,), device=images.device)
        noise, kept = torch.randn_like(images), self.kept[timesteps].view(-1, 1, 1, 1)
        noisy = kept.sqrt() * images + (1 - kept).sqrt() * noise
        found = self.unet(noisy, timesteps, self.context.expand(count, -1, -1)).sample
        return functional.mse_loss(found, noise)


def small_unet() -> nn.Module:
    """All of a UNet is trained: 802 627 parameters in 208 tensors."""
    return Denoiser(_unet())


def small_unet_lora() -> nn.Module:
    """The same, frozen, with LoRA adapters (Hu et al., arXiv 2106.09685) of rank 4: 11 008 parameters in 64 tensors."""
    unet = _unet()
    unet.requires_grad_(False)
    unet.add_adapter(
        LoraConfig(r=RANK, lora_alpha=RANK, init_lora_weights="gaussian", target_modules=list(PROJECTIONS))
    )
    return Denoiser(unet)


def _unet() -> UNet2DConditionModel:
    """Stable Diffusion's kinds of blocks, one of each, on pixels."""
    return UNet2DConditionModel(
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        attention_head_dim=4,
        cross_attention_dim=CONTEXT[1],
    )
