"""k-NN on embeddings: the class of an image by those of its nearest neighbours, weighted as DINO does."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

NEIGHBOURS, TEMPERATURE = 20, 0.07
ROWS = 1024  # queries at a time


def knn_accuracy(bank: Tensor, bank_classes: Tensor, queries: Tensor, query_classes: Tensor) -> float:
    """bank (N, D) with classes (N,), queries (M, D) with classes (M,) -> the share of queries that are told right.

    Each of the k nearest by cosine votes for its class with exp(cosine / T).
    """
    bank, queries = F.normalize(bank.float(), dim=1), F.normalize(queries.float(), dim=1)
    classes = int(torch.cat([bank_classes, query_classes]).max()) + 1
    right = 0
    for rows, truth in zip(queries.split(ROWS), query_classes.split(ROWS), strict=True):
        cosines, nearest = (rows @ bank.T).topk(min(NEIGHBOURS, len(bank)), dim=1)
        votes = torch.zeros(len(rows), classes).scatter_add_(1, bank_classes[nearest], (cosines / TEMPERATURE).exp())
        right += int((votes.argmax(1) == truth).sum())
    return right / len(queries)
