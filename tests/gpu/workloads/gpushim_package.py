"""The Python package as it lies in the source tree, which no build has given a version."""

import pathlib
import sys
import types

PLACE = pathlib.Path(__file__).resolve().parents[3] / "examples/packages/wheel"


def torch():
    """gpushim.torch."""
    sys.path.append(str(PLACE))
    sys.modules.setdefault("gpushim._built", types.SimpleNamespace(VERSION="0"))
    import gpushim.torch

    return gpushim.torch
