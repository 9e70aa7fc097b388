"""Digits to learn from: drawn from a font of seven by five dots, then moved, faded and covered with noise."""

from __future__ import annotations

import torch
from torch import Tensor

SIDE = 12
"""Width and height of an image in pixels."""

_FONT = (
    (14, 17, 19, 21, 25, 17, 14),  # each row's five dots as the bits of a number
    (4, 12, 4, 4, 4, 4, 14),
    (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2),
    (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14),
    (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)


def draw(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw ``count`` images, each SIDE x SIDE floats, and say which digit each shows. Same seed, same images."""
    dice = torch.Generator().manual_seed(seed)
    dots = torch.tensor([[[row >> bit & 1 for bit in (4, 3, 2, 1, 0)] for row in glyph] for glyph in _FONT])
    _, height, width = dots.shape
    labels = torch.randint(len(_FONT), (count,), generator=dice)
    tops = torch.randint(1, SIDE - height, (count,), generator=dice)
    lefts = torch.randint(1, SIDE - width, (count,), generator=dice)
    images = torch.zeros(count, SIDE, SIDE)
    for image, label, top, left in zip(images, labels, tops, lefts, strict=True):
        image[top : top + height, left : left + width] = dots[label]
    ink = 0.6 + 0.4 * torch.rand(count, 1, 1, generator=dice)
    noise = 0.2 * torch.randn(images.shape, generator=dice)
    return images * ink + noise, labels
