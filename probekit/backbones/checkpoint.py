"""Checkpoints that transformers loads: their folder, their weights, and the tower in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from probekit.arrays import Json
from probekit.backbones.module import plain_json
from probekit.backbones.views import Encoder, Vectors, near
from probekit.errors import InputError, NotFoundError
from probekit.registry import Name

# isort: split
import transformers

POOLERS = ("pooler", "head")
NUMBER = re.compile(r"\.\d+\.")
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
WRAP_IT = "Wrap it in a function of your own and name it py:module:factory."
FROM_FOLDER = {"trust_remote_code": False, "local_files_only": True}
INCIDENTAL = re.compile(
    r"_.*|architectures|auto_map|(torch_)?dtype|id2label|label2id|num_labels|problem_type"
    r"|transformers_version|return_dict|output_(attentions|hidden_states)|initializer_.*"
    r"|.*dropout.*|drop_path_rate|layerdrop|projection_dim|use_cache|chunk_size_feed_forward"
    r"|is_encoder_decoder|out_features|out_indices|stage_names|image_processor_type"
    r"|feature_extractor_type|processor_class|device|data_format|input_data_format"
    r"|return_tensors|disable_grouping"
)
"""Fields of configurations that do not change what is computed in evaluation mode."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence loading reports; what matters in them is raised."""
    logging: Any = transformers.utils.logging
    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def find_folder(name: Name, file: str = "config.json") -> Path | None:
    """The local folder that a name is, whose own name may hold an @; None for a hub name."""
    text = f"{name.name}@{name.revision}" if name.revision else name.name
    folder = Path(text).expanduser()
    if (folder / file).is_file():
        return folder
    if folder.is_dir() or not HUB_NAME.fullmatch(name.name):
        raise NotFoundError(
            f"{text} is no folder with a {file}, as save_pretrained writes it. Correct the "
            f"path (a folder has no @REVISION), or write {name.scheme}:ORG/NAME[@REVISION]."
        )
    return None


def essential(fields: Mapping[str, Any]) -> dict[str, Json]:
    """A configuration without incidental fields."""
    values = plain_json(fields)
    return {name: value for name, value in values.items() if not INCIDENTAL.fullmatch(name)}


def load_config(folder: Path) -> Any:
    auto: Any = transformers.AutoConfig
    return auto.from_pretrained(folder, **FROM_FOLDER)


def load_model(name: Name, folder: Path, class_name: str, **options: bool) -> tuple[Any, set[str]]:
    """The model of a checkpoint, and the names of its weights that the checkpoint lacks."""
    model, info = getattr(transformers, class_name).from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, **options, **FROM_FOLDER
    )
    prefix = f"{model.base_model_prefix}."
    surplus = sorted(key.removeprefix(prefix) for key in info["unexpected_keys"])
    stacks = {NUMBER.split(key.removeprefix(prefix))[0] for key in model.state_dict()}
    layers = [key for key in surplus if NUMBER.search(key) and NUMBER.split(key)[0] in stacks]
    layers = [key for key in layers if key.endswith((".weight", ".bias", ".gamma"))]
    if layers:
        raise InputError(
            f"{name} has {len(layers)} weights that its config.json has no place for "
            f"({', '.join(layers[:3])}). Configuration and weights do not belong together: "
            "fetch both again."
        )
    return model.eval(), set(info["missing_keys"])


def pooler_is_loaded(name: Name, missing: set[str], prefix: str) -> bool:
    """Whether the pooler of a tower was loaded; other weights of it that lack are refused.

    missing: the names of weights that the checkpoint lacks, which are random.
    prefix: of the tower's weights.
    """
    absent = {key.removeprefix(prefix) for key in missing if key.startswith(prefix)}
    random = sorted(key for key in absent if not key.startswith(POOLERS))
    if random:
        raise InputError(
            f"{name} lacks {len(random)} weights of its encoder, which would be random "
            f"({', '.join(random[:3])}). Use a checkpoint that has them."
        )
    return not absent


def loaded_parts(model: nn.Module, missing: set[str]) -> set[str]:
    """The attributes of a model of which no weight is random."""
    return set(dir(model)) - {key.partition(".")[0] for key in missing}


def find_temperature(model: nn.Module, loaded: set[str]) -> float | None:
    """Of the softmax over cosines between pictures and texts, where a model has both."""
    if "logit_scale" not in loaded:
        return None
    return float(torch.exp(-model.get_parameter("logit_scale").detach()))


@dataclass(frozen=True)
class TowerLayout:
    """What the outputs of a tower are.

    has_class: whether the first token is a class token, or a special one that sees the others.
    pooled: whether there is a pooler_output whose weights were loaded.
    """

    has_class: bool = False
    pooled: bool = False


@dataclass
class TowerEncoder(Encoder):
    """model: a ModuleDict of the tower and what stands behind it, such as its projection.

    The projection is Identity where the library's own features are what it is given.
    """

    first_layer: int = 0
    layout: TowerLayout = TowerLayout()

    def keep(self, names: set[str]) -> Mapping[str, Tensor]:
        """Without what stands behind the tower where no vector needs it, and a random pooler."""
        if not any(name.startswith(("proj", "pre", "qformer")) for name in names):
            self.model = nn.ModuleDict({"tower": self.model["tower"]})
        unused = () if self.layout.pooled else ("tower.pooler.", "tower.head.")
        tensors = self.model.state_dict()
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(unused)}

    def project(self, vector: Tensor | None) -> Vectors:
        """What a vector is behind the projection, and before it."""
        if "projection" not in self.model or vector is None:
            return {}
        projection = self.model["projection"]
        before = {} if isinstance(projection, nn.Identity) else {"pre": vector}
        return {"proj": projection(vector), **before}

    @torch.inference_mode()
    def check_projection(self, batch: Any, features: Tensor) -> None:
        """Keep the projection where it gives the library's own features of the shared space.

        Where the pooled output is those features (SigLIP), the projection is Identity.
        """
        if "projection" not in self.model:
            self.model["projection"] = nn.Identity()
        projected = self.vectors(batch).get("proj")
        if projected is None or not near(projected, features):
            del self.model["projection"]
