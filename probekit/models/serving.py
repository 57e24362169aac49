"""A head in a folder (config.json, model.safetensors, README.md), on the Hub, and at work; NumPy will do."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from probekit import __version__
from probekit.errors import CorruptError, InputError, MismatchError, NotFoundError, StorageError
from probekit.files import new_folder, read_json, write_bytes
from probekit.models.heads import Head
from probekit.models.problem import backend_named, problem_of
from probekit.values import REAL, Array, EmbeddingSet, Json, Rows

FORMAT = 1
HALF = 0.5
"""The score from which on a label of 0 or 1 is predicted to be 1."""
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


def scores(head: Head, embeddings: EmbeddingSet | Rows) -> Array:
    """The score of each class for each embedding, (n, k). Embeddings of another encoding are refused."""
    if isinstance(embeddings, EmbeddingSet):
        _refuse_other_spec(head, embeddings)
    rows: Rows = embeddings.embeddings if isinstance(embeddings, EmbeddingSet) else embeddings
    if len(rows.shape) != 2 or rows.shape[1] != head.dimension:
        raise InputError(f"This head takes rows of {head.dimension} numbers, one per sample; found shape {rows.shape}.")
    found: Array = problem_of(head).scores(head, rows)
    bad = ~np.isfinite(found).all(axis=1)
    if bad.any():
        why = "not finite or has no direction" if head.view == "l2" else "not finite"
        raise InputError(
            f"The embedding of row {int(np.argmax(bad))} is {why}, so it has no scores. "
            "Leave rows out that could not be encoded."
        )
    return found


def predict(head: Head, embeddings: EmbeddingSet | Rows) -> NDArray[Any]:
    """The number of the class with the highest score, for each embedding; `head.classes` has its name.

    Of a head of several labels 0 or 1 for each, of a head of real targets the numbers themselves: (n, k).
    """
    found, targets = scores(head, embeddings), getattr(head, "targets", "")
    if targets:
        return found if targets == REAL else np.asarray(found > HALF, dtype=np.int64)
    return np.asarray(np.argmax(found, axis=1), dtype=np.int64)


def save_head(head: Head, folder: str | Path) -> Path:
    """Write a head to a folder, whole or not at all. It replaces a head that stands there, nothing else."""
    folder = Path(folder)
    refuse_other(folder)
    try:
        with new_folder(folder) as aside:
            for name, content in _files(head).items():
                write_bytes(aside / name, content)
    except OSError as error:
        raise StorageError(f"The head cannot be written to {folder}: {error}.") from error
    return folder


def refuse_other(folder: Path) -> None:
    """Refuse a place where something stands that is no head."""
    if folder.exists() and not (folder / CONFIG).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise StorageError(f"{folder} exists and holds no head. Choose another folder or empty this one.")


def load_head(folder: str | Path) -> Head:
    """The head that a folder holds, checked against the digest it was written with.

    folder: its path, or `hf:OWNER/NAME[@REVISION]`: a repository of the Hub.
    """
    if isinstance(folder, str) and folder.startswith("hf:"):
        from probekit.backbones.snapshots import snapshot

        folder = snapshot(folder, files=(CONFIG, WEIGHTS))
    folder = Path(folder)
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise NotFoundError(f"{folder} holds no head: {name} is missing. Give a folder that save_head wrote.")
    try:
        config = read_json(folder / CONFIG, remedy="Train or fetch it again.")
        written, stated = config["format"], config["digest"]
        if written != FORMAT:
            raise MismatchError(
                f"The head in {folder} has format {written}; this probekit reads {FORMAT}. Use probekit "
                f"{config.get('probekit', 'of its time')} or train again."
            )
        backend = config.get("backend") or ("jvp" if "network" in config else "embeddings")
        head = backend_named(backend).load(config, load_tensors((folder / WEIGHTS).read_bytes()))
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CorruptError(f"The head in {folder} cannot be read: {error}. Train or fetch it again.") from error
    if head.digest != stated:
        raise CorruptError(
            f"The head in {folder} is not the one that was written: its digest is {head.digest[:12]}, its "
            f"config says {str(stated)[:12]}. Train or fetch it again."
        )
    return head


def push_to_hub(head: Head, repo: str, *, private: bool = False, message: str = "Upload head", api: Any = None) -> str:
    """Upload a head to a model repository of the Hub, made if it is not there; gives its address."""
    if api is None:
        from huggingface_hub import HfApi

        api = HfApi()
    with tempfile.TemporaryDirectory() as place:
        folder = save_head(head, Path(place) / "head")
        api.create_repo(repo_id=repo, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=repo, folder_path=str(folder), commit_message=message)
    return str(getattr(commit, "repo_url", commit))


def _refuse_other_spec(head: Head, embeddings: EmbeddingSet) -> None:
    spec = embeddings.spec.untriggered()
    if not head.spec_digest or spec.digest == head.spec_digest:
        return
    known: Any = head.recipe.get("spec") or spec.identity
    other = [name for name, value in spec.identity.items() if known.get(name) != value]
    differing = f" They differ in {', '.join(other)}." if other else ""
    raise MismatchError(
        f"This head was trained on embeddings of spec {head.spec_digest[:12]}; these are of spec "
        f"{spec.digest[:12]}.{differing} Encode with the head's backbone, or train a head on these."
    )


def _files(head: Head) -> dict[str, bytes]:
    """What the folder holds."""
    config: dict[str, Json] = {"library_name": "probekit", "probekit": __version__, "format": FORMAT}
    config |= {name: getattr(head, name) for name in ("digest", "dimension", "classes", "ridge", "view", "spec_digest")}
    more, own = backend_named(head.backend).save(head)
    config |= {"recipe": dict(head.recipe), "backend": head.backend, **more}
    arrays = {"params": np.ascontiguousarray(head.params, "<f8"), **own}
    text = json.dumps(config, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    tensors = save_tensors(arrays, metadata={"format": "np"})
    return {WEIGHTS: tensors, CARD: _card(head).encode(), CONFIG: text.encode()}


def _card(head: Head) -> str:
    """A model card with the front matter that the Hub reads."""
    backbone = str(head.recipe.get("backbone") or "")
    base = _hub_name(backbone)
    shown = ", ".join(head.classes[:20]) + (", ..." if len(head.classes) > 20 else "")
    what = str(head.recipe.get("head") or "linear")
    targets = getattr(head, "targets", "")
    what, many = (f"ridge regression of {targets}", "targets") if targets else (what, "classes")
    exact = "yes" if head.recipe.get("exact_unlearning") else "no"
    lines = [
        *("---", "library_name: probekit", "tags:", "- probekit", "- linear-probe"),
        *([] if targets else ["- image-classification"]),
        *([f"base_model: {base}"] if base else []),
        *("---", "", f"# A {what} head", ""),
        f"- {head.dimension} numbers ({head.view} embedding) to {len(head.classes)} {many}: {shown}.",
        f"- Backbone: {backbone or 'not recorded'}.",
        f"- Ridge: {head.ridge:g}.",
        f"- Can be unlearned exactly from statistics: {exact}.",
        f"- Digest: `{head.digest}`; encoding: `{head.spec_digest or 'not recorded'}`.",
        *("", "```python", "from probekit.models.serving import load_head, predict", ""),
        f'classes = predict(load_head("."), embeddings)  # needs {backend_named(head.backend).serving}',
        *("```", ""),
    ]
    return "\n".join(lines)


def _hub_name(backbone: str) -> str:
    """The Hub's name of a backbone, where it has one."""
    name = backbone.partition("#")[0].partition("@")[0]
    for prefix in ("open_clip:hf-hub:", "hf:"):
        if name.startswith(prefix) and name.removeprefix(prefix).count("/") == 1 and not name.endswith("/"):
            return name.removeprefix(prefix)
    return f"timm/{name.removeprefix('timm:')}" if name.startswith("timm:") and "/" not in name else ""
