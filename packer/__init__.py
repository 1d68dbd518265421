"""Write and check packs: what the command `dspack` does, as functions.

from packer.convert import convert
from packer.verify import verify
"""

from readers.version import __version__

__all__ = ["__version__"]
