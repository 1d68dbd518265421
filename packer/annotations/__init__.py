"""Annotations, one module each: where the boxes of objects are read from.

class Annotations:
    classes: tuple[str, ...]
        The names of the classes; none where they have numbers alone.
    notes: list[str]
        What a person should know of them as a whole.
    def file(self, key: str) -> str | None
        The path in the source of the file that has the boxes of the image `key`; None where all
        was read at the start.
    def find(self, key: str, data: bytes | None, size: Size) -> Found
        What is stated of an image, given the content of that file; None: there is no such file.
        Called from many threads. Raises Reject.

What they all find goes through packer.boxes.fit.
"""
