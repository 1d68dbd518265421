"""manifest.json: the commit record of a pack. A folder without it is not a pack."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from .checksum import canonical_json, checksum
from .errors import DamagedPack, NoPermission, NotAPack

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
REJECTED_NAME = "rejected.jsonl"  # what was left out of a pack, and why
IMAGE = "image"  # the field that every pack has
_OURS = ("dspack_format_version", "content_digest")
MANIFEST_BYTES_MAX = 1 << 28  # a manifest of a million classes has 30 MB; more is not a manifest


@dataclass(frozen=True)
class PackFile:
    """One file of a pack: its name below the pack's folder, size in bytes, xxh3-128 in hex."""

    name: str
    num_bytes: int
    checksum: str


@dataclass(frozen=True)
class Shard:
    """One shard: its name (shared by its files), how many samples it holds, and its files."""

    name: str
    num_samples: int
    files: tuple[PackFile, ...]


@dataclass(frozen=True)
class Field:
    """How a field is stored: "encoded" (an image file), "mask" (an image file whose pixels are
    numbers and no colours, see readers.masks), "text" (UTF-8), "boxes" (see readers.boxes),
    "bytes" (anything), or "array": every value is the C-ordered bytes of an array of one `dtype`
    and `shape`. The `dtype` of encoded images is that of their pixels, "<u2" where more than 8 bits
    are kept, and None for uint8. `odd` is the rule by which images are decoded that the column
    FIELD.odd marks: the members of readers.odd.Rule. `classes` are the names of what boxes are
    around."""

    kind: str = "encoded"
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    odd: dict[str, Any] | None = None
    classes: tuple[str, ...] | None = None

    KINDS: ClassVar[tuple[str, ...]] = ("encoded", "mask", "text", "boxes", "bytes", "array")


@dataclass(frozen=True)
class Manifest:
    """What a pack is. `files` are all but the shards' and the manifest itself; `made` says how it
    was made, and nothing reads it but people."""

    format: str
    num_samples: int
    fields: dict[str, Field]
    classes: tuple[str, ...]
    splits: tuple[str, ...]
    shards: tuple[Shard, ...]
    files: tuple[PackFile, ...]
    content_digest: str
    num_rejected: int = 0
    made: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The text of manifest.json, with a checksum of itself."""
        body = {"dspack_format_version": FORMAT_VERSION, **asdict(self)}
        for about in body["fields"].values():
            if about["classes"] is None:
                del about["classes"]
        return json.dumps({**body, "checksum": _self_checksum(body)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, path: Path) -> Manifest:
        """Parse and check manifest.json; `path` is for messages.

        Raises NotAPack for another kind of file or a newer format, DamagedPack for a manifest
        that does not match its own checksum.
        """
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            raise DamagedPack("the manifest is not JSON", path=path) from None
        # Somebody else's has neither; damage to ours would have to hit both.
        if not isinstance(body, dict) or body.keys().isdisjoint(_OURS):
            raise NotAPack("is not dspack's manifest", path=path, advice=_advice(path.parent))
        try:
            version, expected = body.pop("dspack_format_version"), body.pop("checksum")
        except KeyError as error:
            raise DamagedPack(f"the manifest lacks {error}", path=path) from None
        if _self_checksum({"dspack_format_version": version, **body}) != expected:
            raise DamagedPack("the manifest does not match its own checksum", path=path)
        if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
            raise NotAPack(
                f"the pack has format version {version}, this dspack reads 1 to {FORMAT_VERSION}",
                path=path,
                advice="install a newer dspack" if type(version) is int and version > 0 else None,
            )
        try:
            return cls(
                format=body["format"],
                num_samples=body["num_samples"],
                fields={name: _field(f, path) for name, f in body["fields"].items()},
                classes=tuple(body["classes"]),
                splits=tuple(body["splits"]),
                shards=tuple(
                    Shard(s["name"], s["num_samples"], _files(s["files"])) for s in body["shards"]
                ),
                files=_files(body["files"]),
                content_digest=body["content_digest"],
                num_rejected=body["num_rejected"],
                made=body["made"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise DamagedPack(f"the manifest lacks {error}", path=path) from None

    @classmethod
    def load(cls, pack: Path) -> Manifest:
        """Read the manifest of the pack in folder `pack`; raises NotAPack, DamagedPack,
        NoPermission."""
        path = pack / MANIFEST_NAME
        try:
            if path.stat().st_size > MANIFEST_BYTES_MAX:
                raise DamagedPack("the manifest is far too large", path=path)
            text = path.read_text("utf-8", "surrogateescape")  # ours is ASCII, others need not be
        except (FileNotFoundError, NotADirectoryError):
            raise NotAPack(*_not_a_pack(pack), path=pack, advice=_advice(pack)) from None
        except PermissionError:
            raise NoPermission(path) from None
        except OSError as error:
            raise NotAPack(f"cannot be read: {error.strerror}", path=path) from None
        return cls.from_json(text, path)


def _self_checksum(body: dict[str, Any]) -> str:
    return checksum(canonical_json(body)).hex()


def _field(about: dict[str, Any], path: Path) -> Field:
    if about["kind"] not in Field.KINDS:
        raise NotAPack(
            f"a field is stored as {about['kind']!r}, which this dspack does not know",
            path=path,
            advice="install a newer dspack",
        )
    shape = about["shape"]
    shape = None if shape is None else tuple(shape)
    classes = about.get("classes")
    classes = None if classes is None else tuple(classes)
    return Field(about["kind"], about["dtype"], shape, about.get("odd"), classes)


def _files(rows: list[dict[str, Any]]) -> tuple[PackFile, ...]:
    return tuple(PackFile(row["name"], row["num_bytes"], row["checksum"]) for row in rows)


def _not_a_pack(pack: Path) -> tuple[str]:
    return ("not a pack: it has no manifest.json" if pack.exists() else "no such file or folder",)


def _advice(pack: Path) -> str:
    if pack.name.endswith(".partial"):
        return "it is an unfinished run: type the same `dspack convert` again to finish it"
    return "make a pack with `dspack convert`"
