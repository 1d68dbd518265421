"""NVIDIA DALI's face of a pack: an external source, whole pipelines, and a loader with tensors.

What DALI leaves to chance or to its own readers is settled here as everywhere in dspack. The order
is a pure function of (seed, epoch, rank), crops and flips of (seed, epoch, sample): the source
hands them to decoders.image_slice, where image_random_crop would draw from a state of its own. So
they are those of readers.torch.Loader, and a resumed run goes on exactly. The orientation is the
index's: the decoder is told to ignore EXIF, for DALI obeys broken blocks that packing takes as
upright.
"""

from __future__ import annotations

from ..errors import MissingDependency

try:
    import nvidia.dali
except ImportError as _error:
    raise MissingDependency(
        f"readers.dali needs NVIDIA DALI ({_error})", advice="pip install nvidia-dali-cuda120"
    ) from _error

# Older ones gave the buffers of a parallel source to the next batch while they were still read.
if tuple(int(part) for part in nvidia.dali.__version__.split(".")[:2]) < (2, 3):
    raise MissingDependency(
        f"readers.dali needs DALI 2.3 or newer, this is {nvidia.dali.__version__}",
        advice="pip install --upgrade nvidia-dali-cuda120",
    )

from .graph import pipeline
from .loader import DALILoader
from .source import Source, external_source

__all__ = ["DALILoader", "Source", "external_source", "pipeline"]
