"""Heads: an affine map that predicts from embeddings, in memory, in a folder, on the Hub.

A folder holds config.json, model.safetensors and README.md (a model card). A head needs NumPy and
safetensors alone.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from probekit import __version__
from probekit.arrays import Array, Json, canonical_json, unit_rows
from probekit.embeddings import BLOCK, SHOWN_ROWS, EmbeddingSet, Encoding, as_numpy, non_finite_rows
from probekit.errors import (
    CorruptError,
    InputError,
    MismatchError,
    NotFoundError,
    OfflineError,
    StorageError,
    WireError,
)
from probekit.files import new_folder, read_json, read_limited, write_bytes, write_json
from probekit.records import parse
from probekit.rows import Rows

Task = Literal["classes", "labels", "numbers"]
TASKS: tuple[Task, ...] = get_args(Task)
FORMAT = 1
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
CARD = "README.md"
MAX_BYTES = 1 << 36
LISTED_NAMES = 20
PLAIN_FIELDS = ("task", "normalize", "temperature", "fit", "dataset", "metrics")
"""As they stand in the configuration."""
IGNORED_IDENTITY = ("trigger",)
"""Parts of an encoding's identity that may differ between training rows and predicted rows."""


def task_of(embeddings: EmbeddingSet) -> Task:
    """One class a row, several labels of 0 and 1, or numbers."""
    if embeddings.targets is None:
        return "classes"
    return "labels" if np.isin(embeddings.targets, (0.0, 1.0)).all() else "numbers"


@dataclass(frozen=True, eq=False, kw_only=True)
class BaseHead(ABC):
    """Scores of rows, and what they mean.

    names: of the classes, or of the targets.
    task: one class a row ("classes"), several labels of 0 and 1 ("labels"), or "numbers".
    normalize: whether rows are divided by their norm ("l2") before they are used, or not ("none").
    temperature: of the softmax over scores (labels: over 1 - s and s); None: no probabilities.
    encoding: what made the training rows; rows of another encoding are refused.
    fit: how it was fitted, such as ridge and ridge_choice.
    dataset, metrics: for the model card.
    """

    names: tuple[str, ...]
    task: Task = "classes"
    normalize: str = "none"
    temperature: float | None = None
    encoding: Encoding | None = None
    fit: Mapping[str, Json] = field(default_factory=dict)
    dataset: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError(f"task must be one of {', '.join(TASKS)}; found {self.task!r}.")
        if self.normalize not in ("none", "l2"):
            raise InputError(f"normalize must be 'none' or 'l2'; found {self.normalize!r}.")
        if not np.isfinite(self.params).all():
            raise InputError("A head needs finite weights; found NaN or infinity. Raise the ridge.")
        if self.temperature is not None and not 0 < self.temperature < np.inf:
            raise InputError(f"temperature must be above 0; found {self.temperature}.")

    @property
    @abstractmethod
    def width(self) -> int:
        """d, the length of an embedding."""

    @property
    @abstractmethod
    def params(self) -> Array:
        """All that was fitted, in one array."""

    @abstractmethod
    def scores(self, block: Array) -> Array:
        """Of rows that are normalized already."""

    def decision(self, rows: EmbeddingSet | ArrayLike) -> Array:
        """The score of each class or target for each row, (n, k)."""
        matrix: Rows
        if isinstance(rows, EmbeddingSet):
            self._check_encoding(rows.encoding)
            matrix = rows.rows
        else:
            matrix = as_numpy(rows)
        if len(matrix.shape) != 2 or matrix.shape[1] != self.width:
            raise InputError(
                f"This head takes rows of shape (n, {self.width}); found {tuple(matrix.shape)}."
            )
        bad = non_finite_rows(matrix)
        if len(bad):
            raise InputError(
                f"Rows must be finite; {len(bad)} hold NaN or infinity (first: "
                f"{bad[:SHOWN_ROWS].tolist()}). Leave them out (--on-error skip)."
            )
        scores = np.empty((len(matrix), len(self.names)))
        for start in range(0, len(matrix), BLOCK):
            block = np.asarray(matrix[start : start + BLOCK], np.float64)
            block = unit_rows(block) if self.normalize == "l2" else block
            scores[start : start + BLOCK] = self.scores(block)
        return scores

    def predict(self, rows: EmbeddingSet | ArrayLike) -> NDArray[Any]:
        """The number of the best class (n,), which `names` names; labels 0 or 1, or numbers (n, k).

        Of equally good classes the lowest number is predicted.
        """
        scores = self.decision(rows)
        if self.task == "numbers":
            return scores
        if self.task == "labels":
            return np.asarray(scores > 0.5, np.int64)
        return np.asarray(scores.argmax(axis=1), np.int64)

    def predict_proba(self, rows: EmbeddingSet | ArrayLike) -> Array:
        """The probability of each class, or of each label being 1, (n, k)."""
        return self.probabilities(self.decision(rows))

    def probabilities(self, scores: Array) -> Array:
        if self.task == "numbers" or self.temperature is None:
            raise InputError(
                "Probabilities need a head of classes or labels with a temperature; found task "
                f"{self.task!r}, temperature {self.temperature}. Use decision()."
            )
        if self.task == "labels":
            scores = np.stack([1 - scores, scores], axis=-1)
        powers = np.exp((scores - scores.max(axis=-1, keepdims=True)) / self.temperature)
        shares: Array = powers / powers.sum(axis=-1, keepdims=True)
        return shares[..., 1] if self.task == "labels" else shares

    @cached_property
    def digest(self) -> str:
        """The sha256 of what predictions depend on: tensors, names, encoding, temperature."""
        hasher = hashlib.sha256(canonical_json(self._description()).encode())
        for name, tensor in self._tensors().items():
            hasher.update(f"{name} {tensor.dtype.str} {tensor.shape}".encode())
            hasher.update(tensor.tobytes())
        return hasher.hexdigest()

    def save(self, folder: str | Path) -> Path:
        """Write the head to a folder, whole or not at all. It replaces a head and nothing else."""
        path = Path(folder)
        _check_replaceable(path)
        config = {
            "library_name": "probekit",
            "probekit": __version__,
            "format": FORMAT,
            "digest": self.digest,
            **self._description(),
            "fit": dict(self.fit),
            "dataset": self.dataset,
            "metrics": dict(self.metrics),
        }
        with new_folder(path) as aside:
            write_bytes(aside / WEIGHTS, self._content())
            write_bytes(aside / CARD, _card(self).encode())
            write_json(aside / CONFIG, config)
        return path

    def push_to_hub(
        self, repo: str, *, private: bool = False, message: str = "Upload head", api: Any = None
    ) -> str:
        """Upload the head to a model repository, which is made if it is missing; its address."""
        if api is None:
            from huggingface_hub import HfApi

            api = HfApi()
        with tempfile.TemporaryDirectory() as parent:
            folder = str(self.save(Path(parent) / "head"))
            api.create_repo(repo_id=repo, private=private, exist_ok=True)
            commit = api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message)
        return str(commit)

    def _check_encoding(self, encoding: Encoding) -> None:
        if self.encoding is None:
            return
        ours = self.encoding.identity
        theirs = encoding.identity
        differing = [
            name
            for name in {**ours, **theirs}
            if name not in IGNORED_IDENTITY
            and canonical_json(ours.get(name)) != canonical_json(theirs.get(name))
        ]
        if differing:
            raise MismatchError(
                f"This head takes embeddings of {self.encoding.backbone}; found those of "
                f"{encoding.backbone}, which differ in {', '.join(differing)}. Extract with "
                "the head's backbone (--backbone), or fit a head on these."
            )

    @property
    def kind(self) -> str:
        """What a card calls it."""
        return "linear probe"

    def _description(self) -> dict[str, Json]:
        return {
            "names": list(self.names),
            "task": self.task,
            "normalize": self.normalize,
            "temperature": self.temperature,
            "encoding": None if self.encoding is None else self.encoding.to_dict(),
        }

    @abstractmethod
    def _tensors(self) -> dict[str, NDArray[Any]]: ...

    @abstractmethod
    def _content(self) -> bytes:
        """The file of weights."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Head(BaseHead):
    """The scores rows @ weights + intercept, (d, k) and (k,)."""

    weights: Array
    intercept: Array

    def __post_init__(self) -> None:
        outputs = len(self.names)
        shapes = (self.weights.shape[1:], self.intercept.shape)
        if not outputs or shapes != ((outputs,), (outputs,)):
            raise InputError(
                f"{outputs} names need weights (d, {outputs}) and an intercept ({outputs},); found "
                f"{self.weights.shape} and {self.intercept.shape}."
            )
        super().__post_init__()

    @classmethod
    def from_params(cls, params: Array, embeddings: EmbeddingSet, **options: Any) -> Self:
        """The head of fitted params (d + 1, k), the intercept last, on these training rows.

        options: normalize, temperature, fit, metrics.
        """
        return cls(
            weights=np.ascontiguousarray(params[:-1]),
            intercept=np.ascontiguousarray(params[-1]),
            names=embeddings.class_names if embeddings.targets is None else embeddings.target_names,
            task=task_of(embeddings),
            encoding=embeddings.encoding,
            dataset=embeddings.source,
            **options,
        )

    @property
    def width(self) -> int:
        return int(self.weights.shape[0])

    @property
    def params(self) -> Array:
        return np.concatenate([self.weights, self.intercept[None]])

    def scores(self, block: Array) -> Array:
        return np.asarray(block @ self.weights + self.intercept)

    def _tensors(self) -> dict[str, NDArray[Any]]:
        arrays = {"intercept": self.intercept, "weights": self.weights}
        return {name: np.ascontiguousarray(array) for name, array in arrays.items()}

    def _content(self) -> bytes:
        return save_tensors(self._tensors(), metadata={"format": "np"})


def load_head(folder: str | Path) -> BaseHead:
    """The head of a folder, or of `hf:OWNER/NAME[@REVISION]`, checked against its digest."""
    if isinstance(folder, str) and folder.startswith("hf:"):
        folder = _download(folder)
    folder = Path(folder)
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise NotFoundError(
                f"{folder} holds no head: {name} is missing. Pass a folder that head.save() wrote."
            )
    config = read_json(folder / CONFIG)
    if isinstance(config, dict) and config.get("format", FORMAT) != FORMAT:
        raise MismatchError(
            f"The head in {folder} has format {config['format']}, written by probekit "
            f"{config.get('probekit', 'unknown')}; probekit {__version__} reads format {FORMAT}. "
            "Use that version, or fit the head again."
        )
    try:
        encoding = config["encoding"]
        content = read_limited(folder / WEIGHTS, MAX_BYTES)
        fields = {
            "names": tuple(config["names"]),
            "encoding": None if encoding is None else Encoding.from_dict(encoding),
            **{name: config[name] for name in PLAIN_FIELDS},
        }
        if "network" in config:
            head = _of_network(content, fields)
        else:
            tensors: dict[str, Any] = load_tensors(content)
            head = Head(**fields, **tensors)
        if head.digest != config["digest"]:
            raise ValueError(f"digest {head.digest[:12]} instead of {config['digest']!s:.12}")
    except (ValueError, KeyError, TypeError, AttributeError, SafetensorError, WireError) as error:
        raise CorruptError(
            f"The head in {folder} cannot be read ({type(error).__name__}: {error}). "
            "Restore it from a copy, or fit it again."
        ) from error
    return head


def _of_network(content: bytes, fields: dict[str, Any]) -> BaseHead:
    from probekit.networks.head import NetworkHead, TrainedNetwork

    trained = parse(content, TrainedNetwork, max_bytes=MAX_BYTES)
    return NetworkHead(**fields, trained=trained)


def _download(name: str) -> Path:
    """The local copy of a head on the Hub."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    repo, _, revision = name.removeprefix("hf:").partition("@")
    files = [CONFIG, WEIGHTS]
    try:
        return Path(snapshot_download(repo, revision=revision or None, allow_patterns=files))
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise NotFoundError(f"The Hub has no head {name}. Check the spelling.") from error
    except (OSError, ValueError) as error:
        raise OfflineError(
            f"{name} cannot be downloaded ({type(error).__name__}). Connect, or pass a folder."
        ) from error


def _check_replaceable(folder: Path) -> None:
    """Refuse a folder that holds something, but no head of ours."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        if read_json(folder / CONFIG)["library_name"] == "probekit":
            return
    except (OSError, CorruptError, KeyError, TypeError):
        pass
    raise StorageError(f"{folder} exists and holds no head. Choose another folder, or empty it.")


def _card(head: BaseHead) -> str:
    """A model card; its front matter is JSON, which is YAML too."""
    backbone = "" if head.encoding is None else head.encoding.backbone
    kind = head.kind
    tags = ["probekit", kind.replace(" ", "-")]
    front: dict[str, Any] = {"library_name": "probekit", "tags": tags}
    if base := _hub_name(backbone):
        front["base_model"] = base
    if head.metrics:
        dataset = head.dataset or "unknown"
        kind = "regression" if head.task == "numbers" else "classification"
        result = {
            "task": {"type": f"tabular-{kind}"},
            "dataset": {"name": dataset, "type": dataset.removeprefix("hf:")},
            "metrics": [{"type": name, "value": value} for name, value in head.metrics.items()],
        }
        front["model-index"] = [{"name": kind, "results": [result]}]
    listed = ", ".join(head.names[:LISTED_NAMES])
    more = ", ..." if len(head.names) > LISTED_NAMES else ""
    fit = ", ".join(f"{name} {value}" for name, value in head.fit.items())
    return f"""---
{json.dumps(front, indent=2, ensure_ascii=False)}
---

# A {kind}

- Input: embeddings of {head.width} numbers, normalization {head.normalize}.
- Output ({head.task}): {listed}{more}.
- Backbone: {backbone or "not recorded"}.
- Dataset: {head.dataset or "not recorded"}.
- Fit: {fit or "not recorded"}.
- Digest: `{head.digest}`.

```python
from probekit.heads import load_head

head = load_head(".")
head.predict(embeddings)  # numbers of head.names
```
"""


def _hub_name(backbone: str) -> str:
    """The Hub's name of a backbone, where it has one."""
    name = backbone.partition("#")[0].partition("@")[0]
    for prefix in ("open_clip:hf-hub:", "hf:"):
        repo = name.removeprefix(prefix)
        if repo != name and repo.count("/") == 1 and not repo.startswith(("/", ".")):
            return repo
    is_timm = name.startswith("timm:") and "/" not in name
    return name.replace("timm:", "timm/") if is_timm else ""
