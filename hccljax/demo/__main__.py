"""The command line of the demo: ``python -m hccljax.demo --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hccljax.errors import HcclError

ALGORITHMS = ("ring", "tree", "double_tree", "H-D_R", "mesh", "level0:ring;level1:tree", "native")
NEEDED = ("sklearn", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; the exit status is 1 if a program does not communicate as it should, 2 if it cannot run."""
    options = _options(arguments)
    try:
        from hccljax.demo.run import run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in NEEDED:
            raise
        print(f"the demo needs {error.name}, which is not installed: pip install 'hccljax[demo]'", file=sys.stderr)
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
    parser.add_argument("--epochs", type=_whole, default=12, help="passes over the data (default: 12)")
    parser.add_argument("--devices", type=_whole, help="CPU devices, 2 to 64 (default: 8)")
    parser.add_argument("--seed", type=int, default=0, help="of the initial parameters and of the order of the data")
    return parser.parse_args(arguments)


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number from 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
