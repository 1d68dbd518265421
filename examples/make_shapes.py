"""Make a small image folder to try dspack on: drawn shapes over photo-like backgrounds.

    python examples/make_shapes.py OUT [--per-class 150] [--seed 0]

It writes OUT/train/CLASS/*.jpg|png and OUT/val/CLASS/*.jpg|png, the layout that `dspack convert`
and torchvision's ImageFolder read. The same seed gives the same images. Files of the same name are
replaced, others are left alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

Array = npt.NDArray[Any]

CLASSES = ("circle", "cross", "ring", "square", "star", "triangle")
VAL_SHARE = 5  # one validation image for so many training images

# The EXIF orientations that cameras write, and the turn that stores an upright image so.
STORED_TURNED = {
    3: Image.Transpose.ROTATE_180,
    6: Image.Transpose.ROTATE_90,
    8: Image.Transpose.ROTATE_270,
}
EXIF_ORIENTATION = 0x0112


def outline(shape: str) -> Array:
    """The corners of a shape within the unit circle, (n, 2)."""
    if shape in ("circle", "ring"):
        return on_circle(np.ones(64))
    if shape == "star":
        return on_circle(np.tile([1.0, 0.45], 5))
    if shape == "cross":
        arm, half = 0.95, 0.3
        quarter = np.array([[half, half], [half, arm], [-half, arm]])
        turn = np.array([[0, -1], [1, 0]])
        return np.concatenate([quarter @ np.linalg.matrix_power(turn, -k) for k in range(4)])
    return on_circle(np.ones({"triangle": 3, "square": 4}[shape]))


def on_circle(radii: Array) -> Array:
    """Points at equal angles and the given distances from the centre, (n, 2)."""
    angles = np.linspace(0, 2 * np.pi, len(radii), endpoint=False)
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)


def background(rng: np.random.Generator, width: int, height: int) -> Array:
    """Something like a photograph out of focus: smooth noise in octaves, lit from above."""
    image = np.full((height, width, 3), rng.uniform(70, 185, 3))
    for cells, strength in ((3, 40), (7, 20), (20, 10)):
        light, tint = rng.normal(size=(cells, cells, 1)), rng.normal(size=(cells, cells, 3))
        noise = strength * (light + 0.4 * tint)
        image += cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
    return image + np.linspace(rng.uniform(0, 40), -20, height)[:, None, None]


def mask(rng: np.random.Generator, shape: str, width: int, height: int) -> Array:
    """Where the shape is, 0 to 1, antialiased, at a random place, size and angle."""
    radius = rng.uniform(0.2, 0.38) * min(width, height)
    centre = rng.uniform(radius + 2, np.array([width, height]) - radius - 2)
    angle = rng.uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    points = radius * outline(shape) @ turn
    contours = [points + centre] + ([0.55 * points + centre] if shape == "ring" else [])
    shift = 4  # OpenCV's fixed point: the corners need not fall on whole pixels
    fixed = [np.rint(contour * (1 << shift)).astype(np.int32) for contour in contours]
    drawn = np.zeros((height, width), np.uint8)
    cv2.fillPoly(drawn, fixed, 255, cv2.LINE_AA, shift)  # the inner of two contours is a hole
    covered: Array = drawn[:, :, None] / 255
    return covered


def draw(rng: np.random.Generator, shape: str) -> Array:
    """One image of the shape: uint8 RGB, 96 to 160 pixels a side."""
    width, height = rng.integers(96, 161, 2).tolist()
    image = background(rng, width, height)
    where = mask(rng, shape, width, height)
    behind = (image * where).sum((0, 1)) / where.sum()
    # Far from what is behind it in every channel: past black or white it goes on at the other end.
    colour = (behind + rng.choice([-1, 1], 3) * rng.uniform(60, 130, 3)) % 256
    shading = np.linspace(rng.uniform(0.8, 1.2), 1, width)[None, :, None]
    image = image * (1 - where) + colour * shading * where
    image += rng.normal(0, 4, image.shape)  # the sensor's noise
    return np.asarray(np.clip(image, 0, 255), np.uint8)


def save(rng: np.random.Generator, pixels: Array, stem: Path, number: int) -> None:
    """Save as PNG or JPEG, by the number alone, so that no class can be told by its format."""
    image = Image.fromarray(pixels)
    if number % 3 == 2:
        image.save(stem.with_suffix(".png"))
        return
    exif = Image.Exif()
    if number % 10 == 1:
        orientation = int(rng.choice(list(STORED_TURNED)))
        exif[EXIF_ORIENTATION] = orientation
        image = image.transpose(STORED_TURNED[orientation])
    image.save(stem.with_suffix(".jpg"), quality=int(rng.integers(60, 96)), exif=exif)


def make_split(folder: Path, per_class: int, seed: tuple[int, int]) -> None:
    for label, shape in enumerate(CLASSES):
        (folder / shape).mkdir(parents=True, exist_ok=True)
        for number in range(per_class):
            # A generator for each image: a larger set starts with the images of a smaller one.
            rng = np.random.default_rng([*seed, label, number])
            save(rng, draw(rng, shape), folder / shape / f"{shape}_{number:04}", number)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a small image folder of drawn shapes.")
    parser.add_argument("out", metavar="OUT", type=Path, help="the folder to make")
    parser.add_argument("--per-class", type=int, default=150, help="training images a class")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.per_class < 1 or args.seed < 0:
        parser.error("--per-class must be at least 1, --seed at least 0")
    sizes = {"train": args.per_class, "val": max(1, args.per_class // VAL_SHARE)}
    for i, (split, per_class) in enumerate(sizes.items()):
        make_split(args.out / split, per_class, (args.seed, i))
    counts = ", ".join(f"{n * len(CLASSES)} {split}" for split, n in sizes.items())
    print(f"{args.out}: {counts} images of {len(CLASSES)} classes ({', '.join(CLASSES)})")


if __name__ == "__main__":
    main()
