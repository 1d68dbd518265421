"""WebDataset shards: tar archives in which the files of a sample share all before the first dot.

A member `folder/0001.seg.png` is the field `seg.png` of the sample `folder/0001`. The field that is
an image's extension is the image, `cls` its label; a second image is a mask. Members of a sample
need not be neighbours.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

from readers.errors import SourceError
from readers.manifest import Field
from readers.open_files import allow_open_files

from ..archive import ArchiveFile, join
from ..fields import is_field_name, kind_of
from ..plan.labels import Stated, give
from . import (
    IMAGE_EXTENSIONS,
    File,
    Listing,
    Scanning,
    extension_reason,
    folders_above,
    is_tar,
    junk_reason,
    unseen,
)
from .tar import REGULAR, Member, members, open_archive

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")
_JPEG = ("jpg", "jpeg")
_LABEL_BYTES_MAX = 1024
_SHARDS_MAX = 100_000  # of a pattern: a slip of the finger must not fill the memory
_FIRST_MEMBERS = 100  # to tell shards from other archives


class _Place(NamedTuple):
    shard: int
    start: int
    num_bytes: int


class Source:
    def __init__(
        self, root: Path, scratch: Path | None = None, scanning: Scanning = unseen
    ) -> None:
        """`root` is a folder of shards, one shard, or many: `imgs-{000..099}.tar`.

        `scratch` is a folder with room for the content of compressed shards.
        """
        self.root = root
        self._scratch = scratch
        self._scanning = scanning

    @cached_property
    def _shards(self) -> list[ArchiveFile]:
        paths = shard_paths(self.root)
        if missing := [path for path in paths if not path.exists()]:
            raise SourceError(
                f"{len(missing)} of {len(paths)} shards are missing, the first is {missing[0]}",
                path=self.root,
            )
        if not paths:
            raise SourceError("no shard is in it", path=self.root)
        allow_open_files(2 * len(paths))
        return [open_archive(path, self._scratch, self._scanning) for path in paths]

    @cached_property
    def _samples(self) -> _Samples:
        samples = _Samples(self.root, self._shards)
        what, num_total = f"listing {self.root.name}", sum(s.num_bytes for s in self._shards)
        num_before = 0
        for number, shard in enumerate(self._shards):
            for member in members(shard):
                samples.add(number, member)
                self._scanning(what, num_before + member.start, num_total)
            num_before += shard.num_bytes
        self._scanning(what, num_total, num_total)
        samples.choose_images()
        return samples

    def scan(self) -> Listing:
        samples = self._samples
        listing = Listing(
            folders=sorted(folders_above(samples.images)),
            left_out=samples.left_out.copy(),
            rejected=list(samples.rejected),
            fields=[
                _MemberField(name, Field(kind_of(name)), self) for name in sorted(samples.fields)
            ],
        )
        if not samples.labels:  # as anywhere: by the folders
            listing.files = list(samples.images)
            listing.warnings.append("no sample has a .cls file; labels are read from folders")
            return listing
        names = {path: samples.labels.get(_key(path)[0], "") for path in samples.images}
        stated = (Stated(path, label, "") for path, label in names.items())
        listing.files, listing.given = give(stated, self.root)
        if num_unlabelled := sum(not label for label in names.values()):
            listing.warnings.append(f"{num_unlabelled} samples have no .cls file")
        return listing

    def read(self, path: str) -> File:
        return self.read_place(self._samples.images[path])

    def stamp(self, path: str) -> tuple[int, int]:
        return self.stamp_place(self._samples.images[path])

    def read_place(self, place: _Place) -> File:
        shard = self._shards[place.shard]
        data = shard.read(place.start, place.num_bytes)
        shard.check_unchanged()
        return File(data, *self.stamp_place(place))

    def stamp_place(self, place: _Place) -> tuple[int, int]:
        return (place.num_bytes, self._shards[place.shard].modified_ns)

    def place_of(self, image: str, field: str) -> _Place | None:
        """Where the value of a further field of an image's sample lies."""
        return self._samples.fields[field].get(image)


@dataclass(frozen=True)
class _MemberField:
    name: str
    about: Field
    source: Source

    def read(self, image: str) -> File | None:
        place = self.source.place_of(image, self.name)
        return None if place is None else self.source.read_place(place)

    def stamp(self, image: str) -> tuple[int, int]:
        place = self.source.place_of(image, self.name)
        return (-1, -1) if place is None else self.source.stamp_place(place)

    def where(self, image: str) -> str:
        return f"the {self.name} of {image}"


class _Samples:
    """The samples of all shards: where the image of each is, its label, and what it lacks."""

    def __init__(self, root: Path, shards: list[ArchiveFile]) -> None:
        self._root = root
        self._shards = shards
        self._fields: dict[str, dict[str, _Place]] = {}  # of every sample
        self.fields: dict[str, dict[str, _Place]] = {}  # further ones, by name and image
        self.images: dict[str, _Place] = {}
        self.labels: dict[str, str] = {}
        self.left_out: Counter[str] = Counter()
        self.rejected: list[tuple[str, str]] = []

    def add(self, shard: int, member: Member) -> None:
        path = join("", member.name)
        if path is None:
            reason = "absolute name" if member.name.startswith("/") else "name with .."
            self.rejected.append((member.name, reason))
        elif member.problem or (member.kind not in REGULAR and not member.is_folder):
            self.rejected.append((path, member.problem or "not a regular file"))
        elif reasons := list(filter(None, map(junk_reason, path.split("/")))):
            self.left_out[f"{reasons[0]} file"] += 1
        elif member.kind in REGULAR:
            self._add_field(path, _Place(shard, member.start, member.num_bytes))

    def _add_field(self, path: str, place: _Place) -> None:
        key, field = _key(path)
        if not field:
            self.left_out["no extension"] += 1
            return
        fields = self._fields.setdefault(key, {})
        for other in fields.values():
            if other.shard != place.shard:
                raise SourceError(
                    f"the sample is in two shards, {self._shards[other.shard].path.name} and "
                    f"{self._shards[place.shard].path.name}",
                    path=self._root,
                    key=key,
                    advice="give the samples of each shard keys of their own",
                )
        if field in fields:
            raise SourceError(
                f"the field {field!r} is there twice, at byte {fields[field].start} and at byte "
                f"{place.start}",
                path=self._shards[place.shard].path,
                key=key,
            )
        fields[field] = place
        if field == "cls":
            self.labels[key] = self._label(key, place)

    def _label(self, key: str, place: _Place) -> str:
        shard = self._shards[place.shard]
        data = shard.read(place.start, min(place.num_bytes, _LABEL_BYTES_MAX + 1))
        label = data.decode("utf-8", "surrogateescape").strip()
        if len(data) > _LABEL_BYTES_MAX or not label.isprintable():
            raise SourceError("its .cls is neither a number nor a name", path=shard.path, key=key)
        return label

    def choose_images(self) -> None:
        """Find the image among the fields of every sample; reject samples without one."""
        beside_jpeg = {
            field
            for fields in self._fields.values()
            if any(name in fields for name in _JPEG)
            for field in fields.keys() & IMAGE_EXTENSIONS
        }.difference(_JPEG)
        for key, fields in self._fields.items():
            candidates = [name for name in fields if name.lower() in IMAGE_EXTENSIONS]
            jpegs = [name for name in candidates if name.lower() in _JPEG]
            path = f"{key}.{next(iter(candidates), next(iter(fields)))}"
            if problem := _image_problem(fields, candidates, jpegs, beside_jpeg):
                self.rejected.append((path, problem))
                continue
            image = (jpegs or candidates)[0]
            self.images[f"{key}.{image}"] = fields[image]
            for member in [name for name in fields if name not in (image, "cls")]:
                name = member.lower().replace(".", "_").replace("-", "_")
                places = self.fields.setdefault(name, {}) if is_field_name(name) else None
                if places is None or f"{key}.{image}" in places:
                    self.left_out[f"field {member}"] += 1
                else:
                    places[f"{key}.{image}"] = fields[member]
        self._fields = {}


def _image_problem(
    fields: dict[str, _Place], candidates: list[str], jpegs: list[str], beside_jpeg: set[str]
) -> str | None:
    """Why a sample has no image for certain; None if it has.

    A PNG beside a JPEG is a further field, such as a mask. It is one, then, in other samples, too.
    """
    if not candidates and any(name.rpartition(".")[2] in IMAGE_EXTENSIONS for name in fields):
        return "no image field: a key ends at the first dot of the file's name"
    if not candidates:
        return "no image field"
    if len(jpegs) > 1 or (not jpegs and len(candidates) > 1):
        return "several image fields"
    if not jpegs and candidates[0] in beside_jpeg:
        return "no image field: elsewhere this one is beside a JPEG"
    return None


def _key(path: str) -> tuple[str, str]:
    """The key of a member's sample, and the field that the member is: cut at the first dot."""
    folder, slash, name = path.rpartition("/")
    stem, _, field = name.partition(".")
    return folder + slash + stem, field


# Shards


def is_shards(path: Path) -> bool:
    """Whether a path is a pattern of shards, a folder of them, or one that has labels.

    A folder's archives are shards if samples in the first have several files: archives of
    nothing but images may be one a class.
    """
    if not os.path.lexists(path):
        return _BRACES.search(os.fspath(path)) is not None
    if not os.path.isdir(path):
        return any(field == "cls" for _, field in _first_keys(path))
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                image = extension_reason(entry.name) is None
                if junk_reason(entry.name) is None and (image or entry.is_dir()):
                    return False
        shards = shard_paths(path)
    except OSError:
        return False  # the folder tells why when it is listed
    counts = Counter(key for key, _ in _first_keys(shards[0])) if shards else Counter()
    return max(counts.values(), default=0) > 1


def _first_keys(shard: Path) -> list[tuple[str, str]]:
    """The keys and fields of a shard's first members; none if it is not a plain tar."""
    try:
        first = list(islice(members(ArchiveFile(shard)), _FIRST_MEMBERS))
    except SourceError:
        return []
    return [_key(member.name) for member in first if member.kind in REGULAR]


def shard_paths(root: Path) -> list[Path]:
    """The shards that a pattern names, the one that a file is, or those of a folder, in order."""
    if os.path.isdir(root):
        names = [n for n in os.listdir(root) if is_tar(n) and junk_reason(n) is None]
        return [root / name for name in sorted(names)]
    if os.path.lexists(root):
        return [root]
    paths = [Path(text) for text in islice(_expand(os.fspath(root)), _SHARDS_MAX + 1)]
    if len(paths) > _SHARDS_MAX:
        raise SourceError(f"the pattern names more than {_SHARDS_MAX} shards", path=root)
    return paths


def _expand(pattern: str) -> Iterator[str]:
    """What a shell makes of braces: {000..012} and {a,b}."""
    parts = _BRACES.split(pattern)
    for chosen in product(*map(_choices, parts[1::2])):
        pairs = zip(parts[0::2], [*chosen, ""], strict=True)
        yield "".join(text for pair in pairs for text in pair)


def _choices(inside: str) -> list[str]:
    match = _RANGE.fullmatch(inside)
    if match is None:
        return inside.split(",")
    first, last = match[1], match[2]
    width = max(len(first), len(last)) if first[0] == "0" or last[0] == "0" else 0
    numbers = islice(range(int(first), int(last) + 1), _SHARDS_MAX + 1)
    return [f"{number:0{width}}" for number in numbers]
