"""transformers' Trainer on its ViTForImageClassification, in float32 or, as its users ask for it, with bf16=True."""

from __future__ import annotations

import tempfile
from typing import Any

from peers.pictures import Pictures
from peers.process import let_torchvision_import
from peers.stopwatch import Stopwatch, arguments

let_torchvision_import()

from transformers import (  # noqa: E402
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)


class Clock(TrainerCallback):
    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.watch.step_ended()


def main() -> None:
    given = arguments()
    pictures = Pictures(given.data / "train", given.image)
    config = ViTConfig(
        image_size=given.image,
        patch_size=given.patch,
        hidden_size=given.width,
        num_hidden_layers=given.depth,
        num_attention_heads=given.heads,
        intermediate_size=4 * given.width,
        num_labels=len(pictures.classes),
    )
    watch = Stopwatch(given.batch, given.warm, given.steps)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(  # the optimizer is its default, fused AdamW
            output_dir=folder,
            use_cpu=True,
            bf16=given.precision == "bfloat16",
            per_device_train_batch_size=given.batch,
            max_steps=given.warm + given.steps,
            learning_rate=given.lr,
            dataloader_num_workers=given.workers,
            dataloader_drop_last=True,
            dataloader_pin_memory=False,
            remove_unused_columns=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        model = ViTForImageClassification(config)
        Trainer(model=model, args=settings, train_dataset=pictures, callbacks=[Clock(watch)]).train()
    watch.report()


if __name__ == "__main__":
    main()
