"""Backbones, data sets, backends, trainers and methods by name: built in, registered in code, or of plugins."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args, get_type_hints

from probekit.errors import InputError, NotFoundError

if TYPE_CHECKING:
    from probekit.protocols import Reference

F = TypeVar("F", bound=Callable[..., Any])
WORDS = {int: "a whole number", float: "a number", bool: "true or false"}


def nearest(name: str, known: list[str]) -> str:
    """A clause for an error message that names the closest known names, or all of a few."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or sorted(known)[:12]
    return f"Known and close: {', '.join(close)}." if close else "None is installed."


class Point(NamedTuple):
    """Where a name leads, and which distribution says so."""

    name: str
    module: str
    attribute: str
    origin: str = "probekit"

    def load(self) -> Callable[..., Any]:
        """The factory."""
        found: Callable[..., Any] = getattr(importlib.import_module(self.module), self.attribute)
        return found


def plugins(group: str) -> tuple[Point, ...]:
    """The entry points of a group, looked up once for the same search path: every look reads all distributions."""
    from importlib import metadata

    return _plugins(group, metadata.entry_points, tuple(sys.path))


@lru_cache
def _plugins(group: str, look: Callable[..., Any], path: tuple[str, ...]) -> tuple[Point, ...]:
    origins = [(one, one.dist.name if one.dist else "an unknown distribution") for one in look(group=group)]
    return tuple(Point(one.name, one.module, one.attr, origin) for one, origin in origins)


class Registry:
    """Names of one kind: ours, which need no search, and those of plugins, from the entry points of a group."""

    def __init__(self, group: str, noun: str, built_in: Mapping[str, str]) -> None:
        self.group, self.noun = group, noun
        self.built_in = [Point(name, *f"probekit.{value}".split(":")) for name, value in built_in.items()]
        self._registered: dict[str, Callable[..., Any]] = {}

    def register(self, name: str) -> Callable[[F], F]:
        """A decorator that makes a factory known in this process under a name."""

        def remember(factory: F) -> F:
            self._registered[name] = factory
            return factory

        return remember

    @property
    def points(self) -> list[Point]:
        """Where each name leads; a plugin cannot take one of ours."""
        ours = {point.name for point in self.built_in}
        return [*self.built_in, *(point for point in plugins(self.group) if point.name not in ours)]

    def names(self) -> list[str]:
        """Every name that can be asked for."""
        return sorted({*self._registered, *(point.name for point in self.points)})

    def get(self, name: str) -> Callable[..., Any]:
        """The factory of this name."""
        if name in self._registered:
            return self._registered[name]
        ours = [point for point in self.built_in if point.name == name]
        point = next((point for point in ours or self.points if point.name == name), None)
        if point is None:
            raise NotFoundError(f"There is no {self.noun} {name!r}. {nearest(name, self.names())}")
        try:
            return point.load()
        except Exception as error:  # whatever somebody's code does when it is imported
            why = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
            raise NotFoundError(
                f"The {self.noun} {name!r} of {point.origin} cannot be imported: {why}. Install what it needs."
            ) from error


def below(folder: str, text: str) -> dict[str, str]:
    """Where names in a folder lead: each `module:Class`, named as its module, or `name=module:Class`."""
    places = (one.rpartition("=") for one in text.split())
    return {name or place.partition(":")[0].replace("_", "-"): f"{folder}.{place}" for name, _, place in places}


backbones = Registry(
    "probekit.backbones",
    "backbone",
    {
        "open_clip": "backbones.open_clip:load",
        "hf": "backbones.huggingface:load",
        "timm": "backbones.timm:load",
        "packaged": "backbones.packaged:load",
        "pixels": "backbones.pixels:load",
        "py": "backbones.python:load",
    },
)
datasets = Registry(
    "probekit.datasets",
    "dataset",
    {
        "hf": "datasets.huggingface:load",
        "folder": "datasets.folder:load",
        "idx": "datasets.arrays:load_idx",
        "npz": "datasets.arrays:load_npz",
        "packaged": "datasets.installed:load",
    },
)
methods = Registry(
    "probekit.methods",
    "unlearning method",
    below(
        "unlearning.methods",
        "cf:ContinuedTraining ew_sga:ElasticAscent exact:Exact fedaccum:FedAccum fedau:FedAuCombination "
        "federaser:FedEraser fedosd:OrthogonalDescent fedrecover:FedRecover fedrecovery:FedRecovery "
        "fedremoval:FedRemoval fedremoval-line=line:FedRemovalLine fedremoval-pcg=pcg:FedRemovalPcg "
        "ferrari:Ferrari flipping:Flipping fused:Fused guo:GuoRemoval knot:Knot mode:MomentumDegradation "
        "neggrad:NegGrad not=negation:Negation pga:ProjectedAscent puf:NegatedUpdate retrain:Retrain "
        "retrain-fedavg=retrain:RetrainFedAvg sga:GradientAscent sifu:Sifu",
    ),
)
trainers = Registry(
    "probekit.trainers",
    "training method",
    {
        "closed-form": "federated.methods.closed_form:ClosedForm",
        "fedavg": "federated.methods.fedavg:FedAvg",
        "cg": "federated.methods.cg:FederatedCg",
        "knot": "federated.methods.knot:KnotTraining",
        "logistic": "federated.methods.logistic:Logistic",
        "guo": "federated.methods.guo:Guo",
        "fedau": "federated.methods.fedau:FedAu",
        "sifu": "federated.methods.sifu:SifuTraining",
    },
)
problems = Registry(
    "probekit.problems",
    "backend",
    {
        "embeddings": "models.embeddings:EmbeddingsBackend",
        "jvp": "models.jvp:JvpBackend",
        "network": "models.conventional:ConventionalBackend",
    },
)


def parse(text: str, *, preset: str = "native") -> Reference:
    """Take `scheme:name[@revision][#view]` apart. A bare name is a plugin's own."""
    from probekit.protocols import Reference  # which takes NumPy along

    if not text.strip():
        raise InputError("An empty name names nothing. Write for example packaged:efficientnet-lite0.")
    rest, _, view = text.partition("#")
    scheme, colon, name = rest.partition(":")
    if not colon:
        scheme, name = rest, ""
    revision = None
    if scheme == "hf" and "@" in name:
        name, _, revision = name.rpartition("@")
    return Reference(scheme=scheme, name=name, revision=revision or None, view=view or None, preset=preset)


def configured(registry: Registry, text: str) -> Any:
    """What is registered by `name[:key=value,...]`, with these options; the first may stand without its key.

    `py:module:factory[:...]` names a factory anywhere. A factory that is a dataclass has its fields as options, and
    perhaps `presets` to begin with (`fedavg:f2l2,rounds=5`); any other is called with the text after its name.
    """
    name, _, argument = text.partition(":")
    if name == "py":
        module, attribute, argument = (*argument.split(":", 2), "", "")[:3]
        name = f"py:{module}:{attribute}"
        factory = imported(name)
    else:
        factory = registry.get(name)
    call: Callable[..., Any] = factory
    first, _, rest = argument.partition(",")
    if first in getattr(factory, "presets", ()):
        return replace(factory.preset(first), **options_in(factory, name, rest))
    return call(**options_in(factory, name, argument)) if is_dataclass(factory) else call(argument)


def options_in(factory: Any, name: str, argument: str) -> dict[str, Any]:
    """The options of a dataclass in `key=value,...`, each in the type of its field."""
    known = {field.name: field for field in fields(factory) if field.init and field.repr}
    hints, found = get_type_hints(factory), dict[str, Any]()
    for place, part in enumerate(argument.split(",") if argument else ()):
        key, equals, value = part.partition("=")
        if not equals and place == 0 and known:
            key, value = next(iter(known)), part
        key = key.replace("-", "_")
        if key not in known:
            hint = nearest(key, list(known)) if known else "It takes none."
            raise InputError(f"{name} has no option {part!r}. {hint}")
        found[key] = _converted(value, hints[key], f"{name}:{key}")
    return found


def spec_of(configured: Any) -> str:
    """The name of something configured, with the options that differ from their defaults."""
    own = getattr(configured, "spec", None)
    if own is not None:
        return str(own)
    given = [
        (field.name, getattr(configured, field.name))
        for field in fields(configured)
        if field.repr and field.init and getattr(configured, field.name) != field.default
    ]
    first = next((field.name for field in fields(configured)), "")
    parts = [str(value) if key == first else f"{key}={value}" for key, value in given]
    return f"{configured.name}:{','.join(parts)}" if parts else str(configured.name)


def _converted(value: str, hint: Any, what: str) -> Any:
    kinds = [one for one in (get_args(hint) or (hint,)) if one is not type(None)]
    if value.lower() == "none" and type(None) in get_args(hint):
        return None
    for kind in kinds:
        try:
            if kind is bool:
                return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[value.lower()]
            return kind(value)
        except (ValueError, KeyError, TypeError):
            continue
    names = " or ".join(WORDS.get(kind, getattr(kind, "__name__", str(kind))) for kind in kinds)
    raise InputError(f"{what} takes {names}; found {value!r}.")


def imported(text: str) -> Any:
    """What `py:module:attribute` names. The current folder is searched after everything installed."""
    module, _, attribute = text.removeprefix("py:").partition(":")
    if not module or not attribute:
        raise InputError(f"Wanted py:module:factory, found {text}. Name the factory after a second colon.")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        home = importlib.import_module(module)
    except ImportError as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent and not f"{module}.".startswith(f"{absent}."):
            raise NotFoundError(f"{text} needs {absent!r}, which is not installed. Install it.") from error
        raise NotFoundError(f"{text} cannot be found: {error}. Check the spelling and the current folder.") from error
    if not hasattr(home, attribute):
        public = [name for name, value in vars(home).items() if callable(value) and not name.startswith("_")]
        raise NotFoundError(f"{text} cannot be found: {module} has no {attribute!r}. {nearest(attribute, public)}")
    return getattr(home, attribute)
