"""Write the layer tables of models that need a library: `python -m scripts.make_library_tables`, from the root.

Made with transformers 5.24, diffusers 0.42 and peft 0.21, which are no dependencies of the rig. In a venv of their own,
over the rig's, so that torch stays the rig's:

    python -m venv DIR && echo $PWD/.venv/lib/python3.11/site-packages > DIR/lib/python3.11/site-packages/rig.pth
    DIR/bin/pip install transformers==5.24.* diffusers==0.42.* peft==0.21.* -c scripts/pins.txt
    HF_HUB_OFFLINE=1 PYTHONPATH=$PWD DIR/bin/python -m scripts.make_library_tables

Every model lives on the meta device: nothing is downloaded, nothing computed. FLOPs are those that torch counts
(rig.workloads.layers says to which tensor each belongs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from rig import models
from rig.workloads.layers import entries, flop_shares
from scripts.make_tables import FOLDER, SGD, TIMM, sgd_seconds

VIT, BERT, GPT2, UNET, LORA = 86_567_656, 109_482_240, 124_439_808, 859_520_964, 797_184  # trained parameters
FROZEN = 0.5  # of forward and backward: a frozen weight has no gradient of its own to be computed
ADAM = "optimizer: Adam moves 7 x 4 bytes a parameter through"
PADDLE = "https://github.com/PaddlePaddle/Perf (Bert/README.md: NGC PyTorch, one V100-SXM2-32GB)"
MINDONE = "https://github.com/mindspore-lab/mindone (examples/stable_diffusion_v2/benchmark.md)"
LATENTS = [((4, 64, 64), 0), ((), 1000), ((77, 768), 0)]  # of 512 × 512 pixels; the step; CLIP's words


@dataclass(frozen=True)
class Model:
    """How a model is made, what one sample of it is, and what is known of it."""

    make: Callable[[], Any]
    inputs: list[tuple[tuple[int, ...], int]]  # shape, and how many whole numbers there are (0: floats)
    source: str
    profiles: dict[str, dict[str, Any]]


def adam_seconds(parameters: int, bandwidth: float) -> float:
    """Adam reads p, g, m, v and writes p, m, v: 7 × 4 bytes a parameter through the card's memory (B/s)."""
    return round(7 * 4 * parameters / bandwidth, 6)


def hugging_face(name: str, config: str, **choices: Any) -> Callable[[], Any]:
    """A class of transformers' with its configuration's defaults but for these choices."""

    def make() -> Any:
        library = import_module("transformers")
        return getattr(library, name)(getattr(library, config)(**choices))

    return make


def unet() -> Any:
    """Stable Diffusion 1.x's own configuration, as in its unet/config.json."""
    return import_module("diffusers").UNet2DConditionModel(
        sample_size=64, block_out_channels=(320, 640, 1280, 1280), cross_attention_dim=768, attention_head_dim=8
    )


def lora() -> Any:
    """The same with everything frozen but adapters of rank 4 on the attentions' four projections."""
    net = unet()
    net.requires_grad_(False)
    projections = ["to_q", "to_k", "to_v", "to_out.0"]
    net.add_adapter(import_module("peft").LoraConfig(r=4, target_modules=projections))
    return net


MODELS = {
    "vit-b16": Model(
        hugging_face("ViTForImageClassification", "ViTConfig", num_labels=1000), [((3, 224, 224), 0)],
        "Dosovitskiy et al., arXiv 2010.11929; transformers' ViTForImageClassification (1000); FLOPs at 224 x 224",
        {
            "vit-b16-rtx3090-amp": {
                "throughput": 393.0,
                "optimizer": sgd_seconds(VIT, 936e9),
                "source": f"{TIMM}, vit_base_patch16_224",
                "note": f"published: mixed precision, channels last, batch 192; {SGD} 936 GB/s (RTX 3090)",
            }
        },
    ),
    "bert-base": Model(
        hugging_face("BertModel", "BertConfig"), [((128,), 2)],
        "Devlin et al., arXiv 1810.04805; transformers' BertModel with its pooler, no head; FLOPs at 128 tokens",
        {
            "bert-base-v100": {
                "throughput": 158.6,
                "optimizer": adam_seconds(BERT, 900e9),
                "source": f"{PADDLE}, fp32",
                "note": f"published: pre-training at 128 tokens, batch 96; {ADAM} 900 GB/s (V100)",
            },
            "bert-base-v100-amp": {
                "throughput": 641.5,
                "optimizer": adam_seconds(BERT, 900e9),
                "source": f"{PADDLE}, AMP",
                "note": f"published: pre-training at 128 tokens, mixed precision, batch 96; {ADAM} 900 GB/s (V100)",
            },
        },
    ),
    "gpt2": Model(
        hugging_face("GPT2LMHeadModel", "GPT2Config"), [((1024,), 1024)],
        "Radford et al. 2019, the smallest; transformers' GPT2LMHeadModel, its head tied to wte; FLOPs at 1024 tokens",
        {
            "gpt2-a100": {
                "throughput": 66.0,
                "optimizer": adam_seconds(GPT2, 1935e9),
                "source": "https://github.com/oumi-ai/oumi/pull/103 (one A100-80GB)",
                "note": f"published: about 1.5 steps/s at batch 44; {ADAM} 1935 GB/s (A100-80GB)",
            }
        },
    ),
    "sd-unet": Model(
        unet, LATENTS,
        "Rombach et al., arXiv 2112.10752, Stable Diffusion 1.x; diffusers' UNet2DConditionModel; FLOPs at 512 x 512",
        {
            "sd-unet-ascend910": {
                "throughput": 5.98,
                "optimizer": adam_seconds(UNET, 1200e9),
                "source": f"{MINDONE}, one Ascend 910, SD 1.5, vanilla",
                "note": f"published: fp16, batch 3; {ADAM} 1200 GB/s (Ascend 910)",
            },
            "sd-unet-a100-amp": {
                "throughput": 5.22,
                "optimizer": adam_seconds(UNET, 1555e9),
                "source": "https://github.com/huggingface/diffusers/issues/1734 (train_dreambooth.py, one A100)",
                "note": "published: 2.61 steps/s at batch 1 with prior preservation, which makes it two images a step; "
                f"mixed precision; {ADAM} 1555 GB/s (A100-40GB)",
            },
        },
    ),
    "sd-unet-lora": Model(
        lora, LATENTS,
        "sd-unet, frozen, with peft's LoRA of rank 4 on to_q, to_k, to_v and to_out; FLOPs at 512 x 512 of the whole "
        "model, each with the adapter tensor that began before it",
        {
            "sd-unet-lora-ascend910": {
                "throughput": 8.25,
                "optimizer": adam_seconds(LORA, 1200e9),
                "forward_part": FROZEN,
                "source": f"{MINDONE}, one Ascend 910, SD 1.5, LoRA",
                "note": f"published: fp16, batch 4; {ADAM} 1200 GB/s (Ascend 910)",
            },
            "sd-unet-lora-dreambooth": {
                "throughput": 1.709,
                "optimizer": 0.0,
                "forward_part": FROZEN,
                "source": "https://github.com/huggingface/diffusers/issues/3363 (DreamBooth with LoRA, one GPU)",
                "note": "published: 0.585 s a step, taken as one sample a step; the optimizer is in it",
            },
        },
    ),
}  # fmt: skip


def document(name: str, model: Model) -> dict[str, Any]:
    """The table as it is written."""
    with torch.device("meta"):
        net = model.make().train()
        inputs = [
            torch.randint(0, words, (1, *shape)) if words else torch.randn(1, *shape) for shape, words in model.inputs
        ]
        tensors = entries(net, flop_shares(net, inputs))
    return {"schema": 1, "name": name, "source": model.source, "profiles": model.profiles, **tensors}


def main() -> None:
    """Write every table."""
    for name, model in MODELS.items():
        (FOLDER / f"{name}.json").write_text(models.text(document(name, model)), encoding="utf-8")


if __name__ == "__main__":
    main()
