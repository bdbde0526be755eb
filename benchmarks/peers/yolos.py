"""transformers' YOLOS-tiny from scratch, with its own loss and a sound recipe that ends exactly when the time does.

`--data` is a Pascal VOC folder: JPEGImages, Annotations, ImageSets/Main/{train,test}.txt.
"""

from __future__ import annotations

import argparse
import math
import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from peers.process import keep_large_blocks, let_torchvision_import, report
from peers.timed_training import shuffled_batches, speed, train_for

DECAY, CLIP = 1e-4, 0.1  # DETR's
SMALLEST = 0.5  # part of a picture's area that a crop keeps at least

Example = tuple[Tensor, Tensor, Tensor]  # picture (3, H, W) bytes, boxes (n, 4) in its pixels, classes (n,)


def load(root: Path, part: str, labels: list[str]) -> list[Example]:
    examples = []
    for name in (root / "ImageSets" / "Main" / f"{part}.txt").read_text().split():
        with Image.open(next((root / "JPEGImages").glob(f"{name}.*"))) as file:
            picture = torch.from_numpy(np.array(file.convert("RGB"))).permute(2, 0, 1).contiguous()
        boxes, classes = [], []
        for one in ElementTree.parse(root / "Annotations" / f"{name}.xml").iter("object"):
            sides = [float(one.findtext(f"bndbox/{side}", "0")) for side in ("xmin", "ymin", "xmax", "ymax")]
            label = one.findtext("name", "")
            if sides[2] > sides[0] and sides[3] > sides[1]:
                if label not in labels:
                    labels.append(label)
                boxes.append(sides)
                classes.append(labels.index(label))
        examples.append((picture, torch.tensor(boxes).reshape(-1, 4), torch.tensor(classes, dtype=torch.int64)))
    return examples


def augmented(example: Example, size: tuple[int, int]) -> tuple[Tensor, dict[str, Tensor]]:
    """A random crop, flipped at random, with the boxes that are still half inside, as DETR wants them."""
    picture, boxes, classes = example
    side = math.sqrt(random.uniform(SMALLEST, 1))
    height, width = (max(1, round(side * own)) for own in picture.shape[1:])
    top, left = random.randint(0, picture.shape[1] - height), random.randint(0, picture.shape[2] - width)
    shifted = boxes - torch.tensor([left, top, left, top])
    inside = shifted.clamp(min=0).minimum(torch.tensor([width, height, width, height]))
    area = (inside[:, 2:] - inside[:, :2]).prod(1)
    kept = area >= 0.5 * (boxes[:, 2:] - boxes[:, :2]).prod(1)
    inside, classes = inside[kept], classes[kept]
    seen = F.interpolate(
        picture[None, :, top : top + height, left : left + width].float(), size, mode="bilinear", antialias=True
    )[0]
    if random.random() < 0.5:
        seen = seen.flip(2)
        inside = torch.stack([width - inside[:, 2], inside[:, 1], width - inside[:, 0], inside[:, 3]], dim=1)
    centred = torch.cat([(inside[:, :2] + inside[:, 2:]) / 2, inside[:, 2:] - inside[:, :2]], dim=1)
    return seen, {"class_labels": classes, "boxes": centred / torch.tensor([width, height, width, height])}


def normalised(pictures: Tensor) -> Tensor:
    return (pictures / 255 - 0.5) / 0.25


def train(model: torch.nn.Module, examples: list[Example], given: argparse.Namespace) -> dict[str, float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.lr, weight_decay=DECAY, fused=True)
    order, size = shuffled_batches(len(examples), given.batch_size), (given.height, given.across)
    model.train()

    def batch_loss() -> Tensor:
        batch = [augmented(examples[i], size) for i in next(order)]
        labels = [label for _, label in batch]
        return model(normalised(torch.stack([picture for picture, _ in batch])), labels=labels).loss

    timing = train_for(given.minutes, optimizer, batch_loss, clip=CLIP)
    return speed(*timing, given.batch_size, len(examples))


@torch.inference_mode()
def measured(model: torch.nn.Module, examples: list[Example], classes: int, size: tuple[int, int]) -> dict[str, float]:
    """COCO's AP by faster-coco-eval, in the pictures' own pixels."""
    from faster_coco_eval import COCO, COCOeval_faster

    model.eval()
    images, annotations, results = [], [], []
    for number, (picture, boxes, labels) in enumerate(examples, start=1):
        height, width = picture.shape[1:]
        images.append({"id": number, "width": width, "height": height})
        for box, label in zip(boxes.tolist(), labels.tolist(), strict=True):
            sides = [box[0], box[1], box[2] - box[0], box[3] - box[1]]
            annotations.append(
                {"id": len(annotations) + 1, "image_id": number, "category_id": label + 1, "bbox": sides}
            )
            annotations[-1] |= {"area": sides[2] * sides[3], "iscrowd": 0}
        seen = F.interpolate(picture[None].float(), size, mode="bilinear", antialias=True)
        output = model(normalised(seen))
        scores = output.logits[0].softmax(-1)[:, :-1]
        for score, place in zip(*scores.flatten().topk(min(100, scores.numel())), strict=True):
            query, label = divmod(int(place), classes)
            x, y, w, h = (output.pred_boxes[0, query] * torch.tensor([width, height, width, height])).tolist()
            results.append({"image_id": number, "category_id": label + 1, "bbox": [x - w / 2, y - h / 2, w, h]})
            results[-1]["score"] = float(score)
    categories = [{"id": k + 1, "name": str(k)} for k in range(classes)]
    truth = COCO({"images": images, "categories": categories, "annotations": annotations})
    measure = COCOeval_faster(truth, truth.loadRes(results), "bbox")
    measure.evaluate()
    measure.accumulate()
    measure.summarize()
    return {"AP": float(measure.stats[0]), "AP50": float(measure.stats[1])}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--lr", type=float, default=2.5e-4)
    for name, default in (("height", 384), ("across", 512), ("batch-size", 8), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    let_torchvision_import()
    from transformers import YolosConfig, YolosForObjectDetection

    keep_large_blocks()
    random.seed(given.seed)
    torch.manual_seed(given.seed)
    labels: list[str] = []
    examples = load(given.data, "train", labels)
    size = (given.height, given.across)
    config = YolosConfig(
        hidden_size=192,
        num_hidden_layers=12,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=list(size),
        num_detection_tokens=100,
        use_mid_position_embeddings=False,
        num_labels=len(labels),
    )
    model = YolosForObjectDetection(config)
    training = train(model, examples, given)
    test = load(given.data, "test", labels)
    parameters = sum(p.numel() for p in model.parameters())
    report(**training, **measured(model, test, len(labels), size), parameters=parameters, test_images=len(test))


if __name__ == "__main__":
    main()
