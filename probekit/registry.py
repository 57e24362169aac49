"""Names people type: built-in ones, those of plugins (entry points), and `py:module:factory`."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from probekit.errors import InputError, NotFoundError

Factory = Callable[..., Any]
LISTED = 10


def nearest(name: str, choices: list[str]) -> str:
    """The choices that are close to a name, or the first of them, for an error message."""
    close = difflib.get_close_matches(name, choices, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    if not choices:
        return "None is known."
    listed = ", ".join(sorted(choices)[:LISTED])
    return f"Known: {listed}, ..." if len(choices) > LISTED else f"Known: {listed}."


class Registry:
    """Factories by name: ours as `module:attribute`, and those of an entry-point group."""

    def __init__(self, group: str, noun: str, built_in: Mapping[str, str]) -> None:
        self.group = group
        self.noun = noun
        self.built_in = dict(built_in)

    def names(self) -> list[str]:
        return sorted({*self.built_in, *_entry_points(self.group, tuple(sys.path))})

    def get(self, name: str) -> Factory:
        """The factory of a name; a plugin cannot take a built-in name."""
        if name in self.built_in:
            module, _, attribute = self.built_in[name].partition(":")
            factory: Factory = getattr(importlib.import_module(module), attribute)
            return factory
        entry_point = _entry_points(self.group, tuple(sys.path)).get(name)
        if entry_point is None:
            raise NotFoundError(f"Unknown {self.noun} {name!r}. {nearest(name, self.names())}")
        try:
            plugin: Factory = entry_point.load()
        except Exception as error:  # whatever a plugin does when it is imported
            origin = entry_point.dist.name if entry_point.dist else "an unknown distribution"
            raise NotFoundError(
                f"The {self.noun} {name!r} of {origin} cannot be imported "
                f"({type(error).__name__}: {error}). Install what it needs, or remove it."
            ) from error
        return plugin


@lru_cache
def _entry_points(group: str, path: tuple[str, ...]) -> dict[str, Any]:
    from importlib import metadata

    return {entry_point.name: entry_point for entry_point in metadata.entry_points(group=group)}


BACKBONES = Registry(
    "probekit.backbones",
    "backbone",
    {
        "open_clip": "probekit.backbones.open_clip:load",
        "hf": "probekit.backbones.huggingface:load",
        "st": "probekit.backbones.sentence_transformers:load",
        "timm": "probekit.backbones.timm:load",
        "packaged": "probekit.backbones.packaged:load",
        "pixels": "probekit.backbones.pixels:load",
        "py": "probekit.backbones.custom:load",
    },
)
DATASETS = Registry(
    "probekit.datasets",
    "dataset",
    {
        "hf": "probekit.data.tables:load",
        "packaged": "probekit.data.packaged:load",
        "py": "probekit.data.arrays:load",
    },
)

TRAINERS = Registry(
    "probekit.trainers",
    "trainer",
    {
        "cg": "probekit.federated.training.cg:ConjugateGradients",
        "closed-form": "probekit.federated.training.closed_form:ClosedForm",
        "fedavg": "probekit.federated.training.fedavg:FedAvg",
        "knot": "probekit.federated.training.knot:KnotTraining",
        "lbfgs": "probekit.federated.training.lbfgs:LbfgsRounds",
    },
)
METHODS = Registry(
    "probekit.methods",
    "method",
    {
        "exact": "probekit.unlearning.methods.exact:Exact",
        "retrain": "probekit.unlearning.methods.retrain:Retrain",
        "rounds": "probekit.unlearning.methods.rounds:Rounds",
        "fedremoval": "probekit.unlearning.methods.fedremoval:FedRemoval",
        "fedremoval-line": "probekit.unlearning.methods.fedremoval:FedRemovalLine",
        "fedremoval-pcg": "probekit.unlearning.methods.fedremoval:FedRemovalPcg",
        "cf": "probekit.unlearning.methods.cf:ContinuedTraining",
        "flipping": "probekit.unlearning.methods.flipping:Flipping",
        "sga": "probekit.unlearning.methods.ascent:GradientAscent",
        "ew-sga": "probekit.unlearning.methods.ascent:ElasticAscent",
        "pga": "probekit.unlearning.methods.ascent:ProjectedAscent",
        "knot": "probekit.unlearning.methods.knot:Knot",
        "federaser": "probekit.unlearning.methods.federaser:FedEraser",
        "fedrecovery": "probekit.unlearning.methods.fedrecovery:FedRecovery",
        "starfish": "probekit.unlearning.methods.starfish:Starfish",
        "fused": "probekit.unlearning.methods.fused:Fused",
        "ferrari": "probekit.unlearning.methods.ferrari:Ferrari",
    },
)
SOLVERS = Registry(
    "probekit.solvers",
    "solver",
    {
        "cholesky": "probekit.unlearning.methods.fedremoval:Cholesky",
        "cg": "probekit.unlearning.methods.fedremoval:ConjugateGradient",
        "sgd": "probekit.unlearning.methods.fedremoval:SgdSteps",
        "adam": "probekit.unlearning.methods.fedremoval:AdamSteps",
    },
)


TRIGGERS = Registry(
    "probekit.triggers",
    "trigger",
    {
        "square": "probekit.data.triggers:Square",
        "picture": "probekit.data.triggers:Sticker",
        "blended": "probekit.data.triggers:Blended",
        "f2l2": "probekit.data.triggers:Published",
    },
)


METHOD_MEMBERS = ("promise", "needs", "questions", "unlearn")


def configured(text: str, registry: Registry = METHODS) -> Any:
    """The record that `name`, `name:VALUE` or `name:key=value,...` stands for.

    A method may also be an own class, `py:module:Class` with the same options behind it.
    A bare value is that of the first option. A solver is named by `solver=` (or bare), and options
    that the method does not have are the solver's: `fedremoval:sgd,steps=1000`.
    """
    name, _, options = text.partition(":")
    if name == "py" and registry is METHODS:  # the others are read from runs of other people
        module, _, options = options.partition(":")
        attribute, _, options = options.partition(":")
        name = f"py:{module}:{attribute}"
        factory = import_object(name)
        lacking = [member for member in METHOD_MEMBERS if not hasattr(factory, member)]
        if lacking:
            raise InputError(
                f"A method has {', '.join(METHOD_MEMBERS)}; {name} has no {lacking[0]}. Name a "
                "class with all of them."
            )
    else:
        factory = registry.get(name)
    is_record = isinstance(factory, type) and dataclasses.is_dataclass(factory)
    kinds = field_types(factory) if is_record else {}
    values: dict[str, str] = {}
    for position, part in enumerate(filter(None, options.split(","))):
        key, equals, value = part.strip().partition("=")
        if not equals and position == 0 and kinds:
            key, value = next(iter(kinds)), key
        values[key.replace("-", "_")] = value
    arguments = {
        key: _converted(key, value, kinds[key]) for key, value in values.items() if key in kinds
    }
    surplus = [f"{key}={value}" for key, value in values.items() if key not in kinds]
    if "solver" in arguments:
        arguments["solver"] = configured(f"{values['solver']}:{','.join(surplus)}", SOLVERS)
    elif surplus:
        listed = ", ".join(kinds) or "none"
        raise InputError(f"{name} has these options: {listed}; found {surplus[0]!r}. Leave it out.")
    return factory(**arguments)


@cache
def field_types(cls: type) -> dict[str, Any]:
    """The fields of a dataclass and their types."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _converted(key: str, value: str, kind: Any) -> Any:
    """An option's text as its type says: a number, one of several texts, or none."""
    kinds = [kind, *get_args(kind)]
    if value == "none" and type(None) in kinds:
        return None
    if get_origin(kind) is Literal and value not in kinds:
        raise InputError(f"{key} must be one of {', '.join(get_args(kind))}; found {value!r}.")
    for number in (int, float):
        if number in kinds:
            try:
                return number(value)
            except ValueError as error:
                raise InputError(
                    f"{key} must be a number; found {value!r}. Write {key}=NUMBER."
                ) from error
    return value


@dataclass(frozen=True)
class Name:
    """`scheme:name[@revision][#view]`, taken apart."""

    scheme: str
    name: str = ""
    revision: str | None = None
    view: str | None = None

    @classmethod
    def parse(cls, text: str) -> Name:
        body, _, view = text.strip().partition("#")
        scheme, _, name = body.partition(":")
        if not scheme:
            raise InputError(
                f"Expected a name such as packaged:efficientnet-lite0; found {text!r}."
            )
        revision = ""
        if scheme in ("hf", "st") and "@" in name:
            name, _, revision = name.rpartition("@")
        return cls(scheme, name, revision or None, view or None)

    def __str__(self) -> str:
        text = f"{self.scheme}:{self.name}" if self.name else self.scheme
        text += f"@{self.revision}" if self.revision else ""
        return text + (f"#{self.view}" if self.view else "")


def import_object(text: str) -> Any:
    """What `py:module:attribute` names; the working directory is searched last."""
    module_name, _, attribute = text.removeprefix("py:").partition(":")
    if not module_name or not attribute:
        raise InputError(f"Expected py:package.module:factory; found {text!r}.")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise NotFoundError(
            f"{text} cannot be imported: {error}. Check the spelling and the working directory."
        ) from error
    except (Exception, SystemExit) as error:  # whatever a user's module does
        raise InputError(
            f"{module_name} must be a module that can be imported; it raised "
            f"{type(error).__name__}: {error}. Mend it."
        ) from error
    if not hasattr(module, attribute):
        public = [name for name in vars(module) if not name.startswith("_")]
        raise NotFoundError(
            f"{module_name} has no attribute {attribute!r}. {nearest(attribute, public)}"
        )
    return getattr(module, attribute)
