"""How commands end: an error is one line on stderr with exit code 2, an interruption has 130.

`antiphase --debug COMMAND`, or ANTIPHASE_DEBUG=1, shows the traceback before the line.
"""

import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup


class Interrupted(Exception):  # noqa: N818 (the user's decision, not an error)
    """The user or the system stopped a command; the message says how to continue."""


class CommandGroup(TyperGroup):
    """The group of all commands: turns exceptions into lines and exit codes, in one place."""

    debug = False

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run a command; typer would end silently on Ctrl-C."""
        self.debug = bool(ctx.params.get("debug"))
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise Interrupted("interrupted") from interrupt

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line; every way to end passes here."""
        self.debug = False
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except Interrupted as stop:
            code = self._report(stop, str(stop), 130)
        except (ValueError, OSError) as error:
            code = self._report(error, str(error), 2)
        except Exception as error:
            if not hasattr(error, "format_message"):  # a bug: its traceback is needed
                raise
            code = self._report(error, _usage_message(error), 2)
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code

    def _report(self, error: BaseException, message: str, code: int) -> int:
        if self.debug:
            traceback.print_exception(type(error), error, error.__traceback__)
        if message:  # empty where the help was shown instead
            typer.echo(f"antiphase: {one_line(message)}", err=True)
        return code


def one_line(message: str) -> str:
    """Return a message of several lines as one."""
    return " ".join(line.strip() for line in message.splitlines() if line.strip())


def _usage_message(error: Any) -> str:
    """Return what typer found wrong with the arguments, and where to find what is allowed."""
    message = str(error.format_message()).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message}; see {context.command_path} --help" if message and context else message
