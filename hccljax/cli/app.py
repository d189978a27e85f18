"""The commands together, and what an error looks like: one line on stderr, or JSON where JSON was asked for."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import hccljax.cli.asking as asking
import hccljax.cli.looking as looking
from hccljax.cli.output import say_json
from hccljax.errors import HcclError

_RAISED: tuple[Any, ...] = typer.BadParameter.__mro__
UsageError, ClickException = _RAISED[1:3]
"""What Typer raises for a command line that it cannot read; it has Click inside, or beside it in older versions."""

app = typer.Typer(
    name="hccljax",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="HCCL's collectives for JAX: which algorithm runs, how long it takes on a cluster, and whether it is right.",
)
for command in (
    asking.explain, asking.simulate, asking.predict, asking.verify, looking.topo, looking.check, looking.info
):  # fmt: skip
    app.command()(command)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})(
    looking.demo
)


@app.callback()
def options(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    """What all commands share."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; see ``hccljax.cli.main``."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    warnings.showwarning = lambda message, *_, **__: print(f"note: {message}", file=sys.stderr)
    try:
        status = app(given, prog_name="hccljax", standalone_mode=False)
    except typer.Abort:
        return 130
    except SystemExit as exit:  # the demo has a parser of its own
        return exit.code if isinstance(exit.code, int) else 2
    except (HcclError, ClickException, OSError) as error:
        if "--debug" in given and not isinstance(error, ClickException):
            raise
        return _failed(error, as_json="--json" in given)
    return status if isinstance(status, int) else 0


def _failed(error: Exception, as_json: bool) -> int:
    text = error.format_message() if isinstance(error, ClickException) else str(error)
    if as_json:
        say_json({"error": {"kind": type(error).__name__, "code": getattr(error, "code", ""), "message": text}})
    elif text:
        print(f"error: {text}", file=sys.stderr)
        if isinstance(error, UsageError) and error.ctx is not None:
            print(f"See: {error.ctx.command_path} --help", file=sys.stderr)
    return 2
