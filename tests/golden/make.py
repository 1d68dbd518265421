"""Make the golden packs: what this version of the format looks like, kept for all later ones.

From the repository, in an environment with dspack installed:

    PYTHONPATH=tests python tests/golden/make.py

It writes tests/golden/VERSION/ anew, VERSION being the format's, and nothing else: the packs of an
older version stay as they are, since every dspack must go on reading them. Packs of a version that
was released are never made again; test_golden.py tells when they are read otherwise than before.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from images import jpeg, photo, png, write
from PIL import Image

import readers
from packer.convert import convert
from packer.images.pixels import PixelOptions
from packer.options import Options
from readers.checksum import checksum
from readers.manifest import FORMAT_VERSION

FORMATS = ("hdf5", "lmdb", "memmap")
KINDS = {
    "plain": PixelOptions(),
    "kept": PixelOptions(keep_bytes=True, seekable=True),  # columns odd, segments
    "raw": PixelOptions(encode="raw", resize=6, resize_mode="exact"),
}


def make_source(root: Path) -> None:
    """JPEGs upright, turned and grey, PNGs of one page and of several, two splits, an empty class,
    an odd image, a name that is not UTF-8, and a reject."""
    write(root / "train" / "a" / "1.jpg", jpeg(photo(1, 16, 12)))
    write(root / "train" / "a" / "turned.jpg", jpeg(photo(2, 20, 8), 6))
    write(root / "train" / "a-b" / os.fsdecode(b"caf\xe9.png"), png(photo(3, 9, 7)))
    write(root / "train" / "a-b" / "large.png", png(photo(4, 60, 40)))
    write(root / "train" / "é" / "grey.jpg", jpeg(photo(5, 16, 16)[:, :, 0]))
    write(root / "val" / "a" / "deep" / "1.jpg", jpeg(photo(6, 33, 17), progressive=True))
    write(root / "val" / "é" / "broken.jpg", b"not an image")
    see_through = Image.fromarray(np.dstack([photo(7, 10, 6), photo(8, 10, 6)[:, :, 0]]))
    see_through.save(root / "val" / "a" / "odd.png")
    (root / "val" / "a-b").mkdir()


def describe(path: Path) -> dict[str, Any]:
    """What a reader must find in the pack at `path`."""
    pack = readers.open(path)
    return {
        "classes": pack.classes,
        "splits": pack.splits,
        "content_digest": pack.content_digest,
        "keys": list(pack.keys),
        "labels": pack.labels.tolist(),
        "split": pack.index["split"].tolist(),
        "stored": [checksum(pack.read(i)).hex() for i in range(len(pack))],
        "shapes": [list(sample.image.shape) for sample in pack],
        "pixel_sums": [sample.image.sum((0, 1), dtype=int).tolist() for sample in pack],
    }


def main() -> None:
    out = Path(__file__).parent / str(FORMAT_VERSION)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    expected = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "imgs"
        make_source(source)
        for kind, pixels in KINDS.items():
            for name in FORMATS:
                options = Options(name, shard_bytes=6000, pixels=pixels)
                convert(source, out / f"{kind}.{name}", options, threads=2)
                found = describe(out / f"{kind}.{name}")
                assert expected.setdefault(kind, found) == found
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
