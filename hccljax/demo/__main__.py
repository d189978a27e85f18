"""The command line of the demo: ``python -m hccljax.demo --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hccljax.errors import HcclError

ALGORITHMS = ("ring", "tree", "double_tree", "H-D_R", "mesh", "level0:ring;level1:tree", "native")
NEEDED = {"sklearn": "scikit-learn", "rich": "rich"}
"""Modules that hccljax does without and the demo does not, and the packages that have them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; the exit status is 1 if a program does not communicate as it should, 2 if it cannot run."""
    options = _options(arguments)
    try:
        from hccljax.demo.run import run
    except ModuleNotFoundError as error:
        package = NEEDED.get((error.name or "").split(".")[0])
        if package is None:
            raise
        print(f"The demo needs {package}, which is not installed: pip install 'hccljax[demo]'", file=sys.stderr)
        return 2
    try:
        return run(options.algorithms, options.epochs, options.devices, options.seed)
    except HcclError as error:
        print(error, file=sys.stderr)
        return 2


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m hccljax.demo",
        description="Trains a small network on handwritten digits, data-parallel on forced CPU devices, once with "
        "every algorithm and once with jax.lax.psum, and compares the results.",
    )
    parser.add_argument(
        "--algorithms",
        nargs="+",
        default=ALGORITHMS,
        metavar="NAME",
        help=f"names of hccljax.algorithms() or HCCL_ALGO texts (default: {' '.join(ALGORITHMS)})",
    )
    parser.add_argument("--epochs", type=_positive, default=12, help="passes over the data (default: 12)")
    parser.add_argument("--devices", type=_positive, help="CPU devices, 2 to 64 (default: 8)")
    parser.add_argument(
        "--seed", type=_natural, default=0, help="of the initial parameters and of the order of the data"
    )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    return _whole(text, 1)


def _natural(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, {least} or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
