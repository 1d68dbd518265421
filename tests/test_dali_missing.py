"""What readers.dali says where DALI is missing or too old; runs with and without DALI."""

from __future__ import annotations

import importlib
import sys
from unittest.mock import MagicMock

import pytest

import readers


@pytest.fixture(autouse=True)
def forget_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "readers.dali", raising=False)


def test_missing_dali_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(readers.MissingDependency, match=r"pip install nvidia-dali-cuda120"):
        importlib.import_module("readers.dali")


def test_old_dali_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia = MagicMock()
    nvidia.dali.__version__ = "2.2.1"
    for name in ("dali", "dali.backend", "dali.pipeline", "dali.types"):
        monkeypatch.setitem(sys.modules, f"nvidia.{name}", nvidia.dali)
    monkeypatch.setitem(sys.modules, "nvidia", nvidia)
    with pytest.raises(
        readers.MissingDependency,
        match=r"2\.3 or newer, this is 2\.2\.1; pip install --upgrade nvidia-dali",
    ):
        importlib.import_module("readers.dali")
