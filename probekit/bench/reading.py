"""Experiment files: TOML to values; unknown keys, wrong types and impossible values are refused in one sentence."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from probekit.bench.experiment import BenchSetting, Experiment, TunePart
from probekit.errors import InputError, NotFoundError
from probekit.registry import methods as known_methods
from probekit.registry import nearest

SCALES = ("quick", "full")
TOP = ("sweep", "settings", "include", *SCALES)
WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
Value = TypeVar("Value")
Table = dict[str, Any]
_FOLDER = resources.files("probekit.bench") / "experiments"


def names() -> list[str]:
    """The experiments that come with the package."""
    found = _FOLDER.iterdir()
    return sorted(one.name.removesuffix(".toml") for one in found if one.name.endswith(".toml"))


def read(name: str, *, scale: str = "usual") -> Experiment:
    """An experiment of the package by name, or of a file by path (which ends in .toml)."""
    return experiment_of(_content(name), scale=scale)


def _content(name: str) -> Table:
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise NotFoundError(f"There is no experiment file {name}. Known by name: {', '.join(names())}.")
        text, title = path.read_text(encoding="utf-8", errors="replace"), path.stem
    else:
        if name not in names():
            raise NotFoundError(f"There is no experiment {name!r}. {nearest(name, names())}")
        text, title = (_FOLDER / f"{name}.toml").read_text(), name
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name} is not TOML: {error}.") from error
    return {"name": title, **content}


def experiment_of(content: Mapping[str, Any], *, scale: str = "usual") -> Experiment:
    """The experiment that a file's values say, at a scale: usual, quick or full."""
    whole = deepcopy(dict(content))
    changes = {name: whole.pop(name, {}) for name in SCALES}
    whole = merged(whole, changes.get(scale, {}))
    own = {one.name for one in fields(BenchSetting)} - {"name", "methods", "without", "x"}
    included = list(_included(whole.pop("include", {}), scale))
    usual: list[Any] = [] if included else [{"name": whole.get("name", "")}]
    given, sweep = whole.pop("settings", usual), whole.pop("sweep", {})
    if not isinstance(given, list) or not isinstance(sweep, dict):
        raise InputError("settings is a list of tables ([[settings]]) and sweep a table ([sweep]).")
    shared = {name: whole.pop(name) for name in sorted(own & whole.keys())}
    settings = []
    for one in given:
        if not isinstance(one, dict):
            raise InputError(f"Each of settings is a table; found {one!r}.")
        apart = {name: one.get(name, {}) for name in SCALES}
        plain = {name: value for name, value in one.items() if name not in SCALES}
        plain = merged(merged(shared, plain), apart.get(scale, {}))
        settings += [made(BenchSetting, two, f"setting {two.get('name', '')!r}") for two in swept(plain, sweep)]
    known = [one.name for one in fields(Experiment) if one.name != "scale"]
    for key in whole:
        if key not in known:
            raise InputError(f"An experiment has no key {key!r}. {nearest(key, [*known, *own, *TOP])}")
    whole |= {"settings": (*included, *settings), "scale": scale}
    if sweep:
        whole["sweep"] = str(sweep["key"])
    whole.setdefault("title", whole.get("name", ""))
    return made(Experiment, whole, "the experiment")


def _included(wanted: Any, scale: str) -> Iterator[BenchSetting]:
    """Settings of other experiments, as these have them: `include` names an experiment and some of its settings."""
    if not isinstance(wanted, dict) or not all(isinstance(some, list) for some in wanted.values()):
        raise InputError(f"include is a table of experiments, each with a list of its settings; found {wanted!r}.")
    for name, some in wanted.items():
        if "include" in (content := _content(name)):
            raise InputError(f"{name} includes others itself. Include those.")
        known = {one.name: one for one in experiment_of(content, scale=scale).settings}
        for setting in some:
            if setting not in known:
                raise InputError(f"{name} has no setting {setting!r} to include. {nearest(str(setting), list(known))}")
            yield known[setting]


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """Tables of tables, the second's values in place of the first's."""
    if not isinstance(changes, Mapping):
        raise InputError(f"Wanted a table of changes; found {changes!r}.")
    found = dict(base)
    for key, value in changes.items():
        old = found.get(key)
        found[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return found


def swept(setting: Table, sweep: Table) -> Iterator[Table]:
    """A setting for every value of the swept key; the setting itself where nothing is swept."""
    if not sweep:
        yield setting
        return
    unknown = [key for key in sweep if key not in ("key", "values")]
    if unknown or not isinstance(sweep.get("values", []), list) or not isinstance(sweep.get("key"), str):
        raise InputError(f"sweep has a key and a list of values; found {', '.join(sweep)}.")
    if "values" not in sweep:  # every setting says itself where it stands: x
        yield setting
    for value in sweep.get("values", ()):
        table: Any = value
        for part in reversed(sweep["key"].split(".")):
            table = {part: table}
        number = str(value).rpartition(":")[2]
        shown = {"name": f"{setting.get('name', '')} {sweep['key'].rpartition('.')[2]}={value}".strip()}
        yield merged(merged(setting, table), {**shown, "x": float(number) if _number(number) else None})


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def made(kind: type[Value], table: Mapping[str, Any], where: str) -> Value:
    """A frozen value of a table, every key and type checked."""
    hints, known = get_type_hints(kind), [one.name for one in fields(kind)]  # type: ignore[arg-type]
    for key in table:
        if key not in known:
            raise InputError(f"{where[0].upper()}{where[1:]} has no key {key!r}. {nearest(key, known)}")
    found = {
        key: _typed(value, hints[key], f"{key}" if where[:3] == "the" else f"{where}: {key}")
        for key, value in table.items()
    }
    try:
        return kind(**found)
    except TypeError as error:
        raise InputError(f"{where[0].upper()}{where[1:]} is not complete: {error}.") from error


def _typed(value: Any, hint: Any, where: str) -> Any:
    """The value in a type that a field has."""
    choices = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for one in choices:
        origin = get_origin(one) or one
        if is_dataclass(one) and isinstance(value, Mapping):
            return made(one, value, where)  # type: ignore[arg-type]
        if is_dataclass(one) and isinstance(value, one):  # type: ignore[arg-type]
            return value
        if origin is tuple and isinstance(value, list | tuple):
            return tuple(_typed(item, get_args(one)[0], where) for item in value)
        if origin is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if isinstance(origin, type) and isinstance(value, origin) and (origin is bool) == isinstance(value, bool):
            return value
    wanted = " or ".join(_word(one) for one in choices if one is not type(None))
    raise InputError(f"{where} is {wanted}; found {value!r}.")


def _word(kind: Any) -> str:
    origin = get_origin(kind) or kind
    if is_dataclass(kind) or origin is Mapping or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return "a table"
    return "a list" if origin is tuple else WORDS.get(kind, str(kind))


def narrowed(experiment: Experiment, only: Sequence[str]) -> Experiment:
    """The experiment with these settings or methods alone; its baselines stay."""
    if not only:
        return experiment
    names, every = [one.name for one in experiment.settings], known_methods.names()
    for word in only:
        if word not in names and word.partition(":")[0] not in (*every, "py"):
            raise NotFoundError(
                f"{experiment.name} has no setting or method {word!r}. {nearest(word, [*names, *every])}"
            )
    methods = tuple(word for word in only if word not in names)
    settings = [one for one in experiment.settings if one.name in only] or list(experiment.settings)
    if methods:
        settings = [replace(one, methods=methods) for one in settings]
    return replace(experiment, settings=tuple(settings), methods=methods or experiment.methods)


def tuned_as(experiment: Experiment, plain: Mapping[str, Any], source: str) -> Experiment:
    """The experiment with the settings that tuning chose in another outcome, for the lines that both have."""
    lines: dict[str, dict[str, str]] = {}
    for line in plain["lines"]:
        if line["tried"] and any("numbers" in cell for cell in line["cells"]):
            lines.setdefault(line["setting"], {})[line["method"]] = line["spec"]
    shared = {one.name: lines[one.name] for one in experiment.settings if one.name in lines}
    if not shared:
        raise InputError(f"{source} tuned none of {', '.join(one.name for one in experiment.settings)}.")
    tune = plain["experiment"]["tune"]
    return replace(experiment, tune=TunePart(tune["budget"], tune["aim"], shared, source))
