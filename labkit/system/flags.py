"""Programs whose flags are the fields of a configuration, with Typer."""

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import typer

from labkit.system.errors import LabError

T = TypeVar("T")
METAVARS = {bool: "", int: "N", float: "X", str: "TEXT", Path: "PATH"}


def takes(config: type[T]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that turns a function of a configuration, and more, into one of its fields, for Typer.

    Parameters
    ----------
    config : type
        A dataclass whose fields are annotated with a `labkit.system.arguments.Flag`; switches are off by default.
    """
    hints = get_type_hints(config, include_extras=True)
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(config, name),
            annotation=_option(name, hint),
        )
        for name, hint in hints.items()
    ]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(**values: Any) -> Any:
            return function(config(**{name: values.pop(name) for name in hints}), **values)

        signature = inspect.Signature([*inspect.signature(function).parameters.values()][1:] + options)
        command.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
        command.__signature__ = signature  # type: ignore[attr-defined]
        return command

    return decorate


def _option(name: str, annotation: Any) -> Any:
    kind, flag = get_args(annotation)
    if flag.choices:
        kind = Literal[flag.choices]
    kinds = [kind, *get_args(kind)]
    switch = kind is bool
    choices = [choice for literal in kinds if get_origin(literal) is Literal for choice in get_args(literal)]
    option = typer.Option(
        f"--{name}",
        help=f"{flag.help} One of: {', '.join(choices)}." if choices else flag.help,
        min=flag.min,
        metavar=next((METAVARS[known] for known in kinds if known in METAVARS), "NAME"),
        show_default=not switch,
    )
    return Annotated[kind, option]


def parse(config: type[T], args: Sequence[str], program: str) -> T:
    """Return the configuration that a program's arguments describe; `--help` exits.

    Raises
    ------
    LabError
        When a flag is unknown, or has an impossible value.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
    app.command()(takes(config)(lambda parsed: parsed))
    try:
        parsed = app(list(args), prog_name=program, standalone_mode=False)
    except typer.TyperException as error:
        raise LabError(usage(error)) from error
    if not isinstance(parsed, config):
        raise SystemExit(parsed)
    return parsed


def run(function: Callable[[T], int | None], config: type[T], module: str) -> NoReturn:
    """Run `python -m MODULE` with its flags; errors that users can fix are one line, with exit code 2."""
    try:
        status = function(parse(config, sys.argv[1:], f"python -m {module}"))
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    raise SystemExit(status)


def usage(error: typer.TyperException) -> str:
    """Return the problem with a command line, in one line."""
    context = getattr(error, "ctx", None)
    message = " ".join((error.format_message() or "missing command").split()).replace("Value error, ", "")
    message = message[:1].lower() + message[1:]
    message += "" if message.endswith(("?", ".")) else "."
    if context is None:
        return message
    path = context.command_path
    return f"{message} See {'./' if path.startswith('lab ') or path == 'lab' else ''}{path} --help."
