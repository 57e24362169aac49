"""Flags that several commands share, as dataclasses, and the TOML file that may set them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, Literal

import typer


def expand_flags(function: Callable[..., None]) -> Callable[..., None]:
    """A command in which a parameter whose type is a dataclass stands for its fields, a flag each.

    `load_command` expands every command: typer sees the flags; the function receives the dataclass
    with their values.
    """
    groups: dict[str, tuple[type, list[str]]] = {}
    flags: list[inspect.Parameter] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind = parameter.annotation
        members = [parameter]
        if isinstance(kind, type) and is_dataclass(kind):
            members = list(inspect.signature(kind, eval_str=True).parameters.values())
            groups[parameter.name] = (kind, [member.name for member in members])
        flags += [member.replace(kind=inspect.Parameter.KEYWORD_ONLY) for member in members]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        for parameter, (kind, names) in groups.items():
            values[parameter] = kind(**{name: values.pop(name) for name in names})
        function(**values)

    command.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    command.__annotations__ = {flag.name: flag.annotation for flag in flags}
    return command


def keywords(*groups: object) -> dict[str, Any]:
    """The flags that are set, as keywords of the library."""
    values = {name: value for group in groups for name, value in vars(group).items()}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if value is not None and name != "amp"  # --amp sets the precision
    }


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take a command's defaults from a TOML file: from its own table, or from the top level."""
    if path is None or context.resilient_parsing:
        return path
    import tomllib

    from probekit.errors import ProbekitError
    from probekit.files import MAX_JSON_BYTES, read_limited
    from probekit.registry import nearest

    try:
        document = tomllib.loads(read_limited(path, MAX_JSON_BYTES).decode())
    except (OSError, ProbekitError, ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} cannot be read as TOML: {error}") from error
    top_level = {key: value for key, value in document.items() if not isinstance(value, dict)}
    settings: dict[str, Any] = document.get(context.info_name or "", top_level)
    names = {
        spelling.lstrip("-").replace("-", "_"): parameter.name or ""
        for parameter in context.command.params
        for spelling in parameter.opts
    }
    defaults = {}
    for key, value in settings.items():
        name = key.replace("-", "_")
        if name not in names:
            hint = nearest(key, sorted(names))
            raise typer.BadParameter(f"{path} sets {key!r}, which is no option here. {hint}")
        defaults[names[name]] = value
    context.default_map = defaults
    return path


def flag(text: str, *spellings: str, default: object = None, **settings: Any) -> Any:
    """An option of typer with its help text, as the default value of a parameter or field."""
    return typer.Option(default, *spellings, help=text, **settings)


def argument(text: str, default: object = ..., **settings: Any) -> Any:
    return typer.Argument(default, help=text, **settings)


data_flag = functools.partial(flag, rich_help_panel="Data options")
vector_flag = functools.partial(flag, rich_help_panel="Options of vectors")
encoding_flag = functools.partial(flag, rich_help_panel="Encoding options")
common_flag = functools.partial(flag, rich_help_panel="Common options")

DRY_RUN = flag("Print what would be done, and change nothing.", "--dry-run", default=False)
ON_ERROR = data_flag("Samples that cannot be used: skip (default for pictures) or raise.")


@dataclass
class ColumnFlags:
    """Which columns of a table are what."""

    label_column: str | None = data_flag("Column of the label.")
    target_columns: list[str] | None = data_flag(
        "Column of a real target, or of one of several 0/1 labels.", "--target-column"
    )
    client_column: str | None = data_flag("Column of the client.")
    group_column: str | None = data_flag("Column of what belongs together.", "--group")
    split_column: str | None = data_flag("Column of the split.")
    keep_columns: list[str] | None = data_flag("Further column to keep.", "--keep-column")


@dataclass
class DataFlags(ColumnFlags):
    """How a dataset is read."""

    image_column: str | None = data_flag("Column of the picture.")
    text_column: str | None = data_flag("Column of the text.")
    split: str | None = data_flag("Split to use: train, test, ...")
    limit: int | None = data_flag("Only the first samples.", min=1)
    window: Any = data_flag(
        "Gray values that become black and white (16-bit pictures).",
        metavar="LOW,HIGH",
        parser=lambda text: text.split(","),
    )


@dataclass
class VectorFlags:
    """How files of vectors are read."""

    labels: Path | None = vector_flag("File with the labels of vectors.")
    join: str | None = vector_flag("Column that vectors and --labels share.")
    vector_column: str | None = vector_flag("Column or array of the vectors; of h5 a/path.")
    vector_columns: str | None = vector_flag("Columns of numbers, such as 'f*'.")
    pool: Literal["mean", "max"] | None = vector_flag("Pool the rows of a bag (a slide).")
    by: str | None = vector_flag("Column of the bags (default: that of --join).")
    on_error: Literal["skip", "raise"] | None = ON_ERROR


@dataclass
class ModelFlags:
    """How a backbone is loaded."""

    device: str = encoding_flag("auto, cpu, cuda, cuda:1, mps.", default="auto")
    amp: bool = encoding_flag("Mixed precision; part of the identity.", "--amp", default=False)
    preprocessing: str = encoding_flag("native: the backbone's own.", default="native")
    prompt: str | None = encoding_flag("Put before every text, such as 'query: '.")
    max_length: int | None = encoding_flag("Tokens that a text is cut to.", min=1)

    def __post_init__(self) -> None:
        self.precision = "float32"
        if self.amp:
            self.precision = "amp-float16" if self.device.startswith("cuda") else "amp-bfloat16"


@dataclass
class EncodingFlags(ModelFlags):
    """How samples are encoded."""

    batch_size: int | None = encoding_flag(
        "Samples encoded at once (default: 32 on a CPU, else 128).", min=1
    )
    workers: int | None = encoding_flag("Processes that decode (default: by cores).", min=0)
    dtype: str = encoding_flag("Stored as float32, float16 or float64.", default="float32")
    on_error: Literal["skip", "raise"] | None = ON_ERROR


@dataclass
class RequestFlags:
    """Whose rows are to go."""

    client: list[str] | None = flag("Client whose rows are to go; may be repeated.")
    sample: list[str] | None = flag(
        "Id of a sample that is to go (or its first 8 digits), or @FILE, which lists ids."
    )
    where: str | None = flag("The rows that have this value are to go.", metavar="COLUMN=VALUE")
    dry_run: bool = DRY_RUN


@dataclass
class CodeFlags:
    """Code that a run or a head names, and that only whoever starts a command can let run."""

    network: str | None = flag(
        "Run the code of this network of one's own, as the run names it: py:module:factory."
    )

    def __post_init__(self) -> None:
        if self.network is not None:
            from probekit.networks.architectures import trust

            trust(self.network)


@dataclass
class RowFlags(DataFlags, EncodingFlags, VectorFlags):
    """How rows are read, whatever DATA is: a cached set, vectors, or samples to be encoded."""
