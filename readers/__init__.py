"""Read packs that `dspack convert` made.

    import readers
    pack = readers.open("imgs.lmdb", split="train")
    sample = pack[0]    # .image: RGB (height, width, 3), uint8 as a rule; .label: int; .key: str

`readers.torch` has PyTorch datasets; it is imported on its own, and so is nothing else here that
costs time: no torch, DALI, lmdb, h5py, cv2 or PIL until they are needed.
"""

from .errors import (
    DamagedPack,
    DamagedSample,
    DestinationError,
    DspackError,
    MissingDependency,
    NoPermission,
    NotAPack,
    OutOfMemory,
    RejectsError,
    SourceError,
    TooManyOpenFiles,
)
from .pack import Pack, Sample, open
from .version import __version__

__all__ = [
    "DamagedPack",
    "DamagedSample",
    "DestinationError",
    "DspackError",
    "MissingDependency",
    "NoPermission",
    "NotAPack",
    "OutOfMemory",
    "Pack",
    "RejectsError",
    "Sample",
    "SourceError",
    "TooManyOpenFiles",
    "__version__",
    "open",
]
