"""Sentence encoders in the format of sentence-transformers, which need not be installed.

Names: `st:ORG/NAME[@REVISION]`, `st:FOLDER`. Views: `#pooled` (default), what the library's
`encode` gives; `#cls`, `#mean`, `#last` and inner layers of the transformer inside, see `views`.

Read are Transformer, then Pooling, then any of Dense and Normalize, as old versions and version 6
write them. Anything else is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Unpack

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from probekit.arrays import Json
from probekit.backbones import checkpoint, text
from probekit.backbones.hub import fetch_snapshot, hub_errors
from probekit.backbones.module import Options, TorchBackbone
from probekit.backbones.views import Vectors
from probekit.errors import InputError, NotFoundError
from probekit.files import read_json
from probekit.registry import Name

MODULES_FILE = "modules.json"
TRANSFORMER_FILES = "sentence_*_config.json"
"""sentence_bert_config.json, sentence_roberta_config.json, ..."""
PROMPTS_FILE = "config_sentence_transformers.json"
TRANSFORMER_SETTINGS: Mapping[str, Json] = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "processing_kwargs": {},
}
"""What version 6 writes where a model is used as here."""
IRRELEVANT = {"max_seq_length", "do_lower_case", "modality_config", "unpad_inputs"}
FORWARD: Json = {"method": "forward", "method_output_name": "last_hidden_state"}
NORMALIZE_SETTINGS: Mapping[str, Json] = {
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
}
DENSE_SETTINGS: Mapping[str, Json] = {**NORMALIZE_SETTINGS, "use_residual": False}
OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""In the order in which several are joined."""
Settings = Mapping[str, Any]


def load(name: Name, **options: Unpack[Options]) -> TorchBackbone:
    local = checkpoint.find_folder(name, MODULES_FILE)
    with checkpoint.quiet(), hub_errors(name):
        folder = local or fetch_snapshot(name.name, name.revision, subfolders=True)
        return load_folder(name, folder, commit="" if local else folder.name, **options)


def load_folder(
    name: Name, folder: Path, *, commit: str = "", **options: Unpack[Options]
) -> TorchBackbone:
    prompts = _read_settings(folder / PROMPTS_FILE)
    prompt = options["prompt"]
    if prompt is None and prompts.get("default_prompt_name"):
        prompt = prompts["prompts"][prompts["default_prompt_name"]]
    encoder = _load_encoder(name, folder, prompt or "", options["max_length"])
    backbone = text.text_backbone(name, encoder, commit=commit, **options)
    backbone.description = {**backbone.description, "prompts": prompts.get("prompts", {})}
    return backbone


def _load_encoder(name: Name, folder: Path, prompt: str, max_length: int | None) -> SentenceEncoder:
    if not (folder / MODULES_FILE).is_file():
        raise NotFoundError(
            f"{name} has no {MODULES_FILE}, as sentence-transformers writes it. Write "
            f"hf:{name.name} for the transformer alone."
        )
    modules = sorted(read_json(folder / MODULES_FILE), key=lambda module: int(module["idx"]))
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    paths = [folder / module["path"] for module in modules]
    wrong = [kind for kind in kinds[2:] if kind not in STEPS]
    if kinds[:2] != ["Transformer", "Pooling"] or wrong:
        raise InputError(
            "st: reads Transformer, Pooling and then Dense or Normalize; found "
            f"{', '.join(kinds)} in {name}. {checkpoint.WRAP_IT}"
        )
    settings = _transformer_settings(name, paths[0])
    length = max_length or settings.get("max_seq_length")
    base = text.load_encoder(name, paths[0], prompt, length)
    if settings.get("do_lower_case"):
        base.tokenize = replace(base.tokenize, clean="lower")
    modes, include_prompt = _read_pooling(name, paths[1])
    steps = [STEPS[kind](name, path) for kind, path in zip(kinds[2:], paths[2:], strict=True)]
    model = nn.ModuleDict({"tower": base.model["tower"], "sentence": nn.Sequential(*steps)})
    identity: dict[str, Json] = {
        **base.identity,
        "pooling": {"modes": modes, "include_prompt": include_prompt},
        "behind_pooling": [" ".join(repr(step).split()) for step in steps],
    }
    inherited = {field.name: getattr(base, field.name) for field in fields(base)}
    inherited |= {"model": model, "identity": identity, "default_views": ("pooled",)}
    inherited["layout"] = replace(base.layout, pooled=False)
    skipped = 0 if include_prompt else _prompt_length(base.tokenize)
    return SentenceEncoder(**inherited, modes=modes, skipped=skipped)


def _transformer_settings(name: Name, folder: Path) -> Settings:
    files = sorted(folder.glob(TRANSFORMER_FILES))
    settings = _read_settings(files[0]) if files else {}
    _check_settings(name, settings, TRANSFORMER_SETTINGS, IRRELEVANT)
    modality = settings.get("modality_config")
    if modality is not None and modality.get("text") != FORWARD:
        raise InputError(
            f"st: reads a transformer's last_hidden_state of texts; {name} has {modality} in "
            f"{files[0].name}. {checkpoint.WRAP_IT}"
        )
    return settings


def _read_settings(file: Path) -> Settings:
    settings: Settings = read_json(file) if file.is_file() else {}
    return settings


def _check_settings(name: Name, settings: Settings, usual: Settings, irrelevant: set[str]) -> None:
    """Refuse what would change the numbers and is not read here."""
    for key, value in settings.items():
        if key not in irrelevant and value not in (None, usual.get(key)):
            raise InputError(
                f"st: cannot read {name} with the setting {key} = {value!r}. {checkpoint.WRAP_IT}"
            )


def _prompt_length(tokenize: text.Tokenization) -> int:
    """The tokens of the prompt alone, without the special one at its end."""
    if not tokenize.prompt:
        return 0
    [ids] = tokenize([""])[0]["input_ids"].tolist()
    return len(ids) - (ids[-1] in tokenize.tokenizer.all_special_ids)


def _read_pooling(name: Name, folder: Path) -> tuple[list[str], bool]:
    """The modes, which are joined in this order, and whether the prompt's tokens count."""
    settings = read_json(folder / "config.json")
    old = [mode for key, mode in OLD_MODES.items() if settings.get(key)]
    stated = settings.get("pooling_mode", old or ["mean"])
    modes = [stated] if isinstance(stated, str) else list(stated)
    wrong = [mode for mode in modes if mode not in MODES]
    if wrong:
        raise InputError(
            f"st: knows the poolings {', '.join(MODES)}; {name} has {wrong[0]!r}. "
            f"{checkpoint.WRAP_IT}"
        )
    return modes, bool(settings.get("include_prompt", True))


def _max(state: Tensor, mask: Tensor) -> Tensor:
    return state.masked_fill(mask[..., None] == 0, -torch.inf).amax(1)


def _weighted_mean(state: Tensor, mask: Tensor) -> Tensor:
    """Each token counts by its position, from 1."""
    return text.masked_mean(state, mask * torch.arange(1, mask.shape[1] + 1, device=mask.device))


def _first_token(state: Tensor, mask: Tensor) -> Tensor:
    return state[torch.arange(len(state), device=mask.device), mask.argmax(1)]


MODES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": _first_token,
    "max": _max,
    "mean": text.masked_mean,
    "mean_sqrt_len_tokens": lambda state, mask: (
        text.masked_mean(state, mask) * mask.sum(1, keepdim=True).sqrt()
    ),
    "weightedmean": _weighted_mean,
    "lasttoken": text.last_token,
}


class Normalize(nn.Module):
    def forward(self, vectors: Tensor) -> Tensor:
        return functional.normalize(vectors, dim=-1)


def _normalize(name: Name, folder: Path) -> nn.Module:
    settings = _read_settings(folder / "config.json")
    _check_settings(name, settings, NORMALIZE_SETTINGS, set())
    return Normalize()


def _dense(name: Name, folder: Path) -> nn.Module:
    settings = read_json(folder / "config.json")
    read = {"in_features", "out_features", "bias", "activation_function"}
    _check_settings(name, settings, DENSE_SETTINGS, read)
    path = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = vars(nn).get(path.rpartition(".")[2]) if path.startswith("torch.nn.") else None
    if not isinstance(activation, type) or not issubclass(activation, nn.Module):
        raise InputError(
            f"st: knows the activations of torch.nn; {name} has {path!r}. {checkpoint.WRAP_IT}"
        )
    sizes = (settings["in_features"], settings["out_features"])
    linear = nn.Linear(*sizes, bias=settings.get("bias", True))
    file = folder / "model.safetensors"
    if file.is_file():
        state = load_file(file)
    else:
        state = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    linear.load_state_dict({key.removeprefix("linear."): value for key, value in state.items()})
    return nn.Sequential(linear, activation())


STEPS: Mapping[str, Callable[[Name, Path], nn.Module]] = {"Dense": _dense, "Normalize": _normalize}


@dataclass(kw_only=True)
class SentenceEncoder(text.TextEncoder):
    """model: a ModuleDict of the tower and `sentence`, what follows the pooling.

    skipped: tokens at the beginning, those of the prompt, that are not pooled.
    """

    modes: Sequence[str]
    skipped: int

    def keep(self, names: set[str]) -> Mapping[str, Tensor]:
        sentence = self.model["sentence"]
        tensors = super().keep(names)
        if "pooled" not in names:
            return tensors
        self.model["sentence"] = sentence
        behind = sentence.state_dict()
        return {**tensors, **{f"sentence.{name}": tensor for name, tensor in behind.items()}}

    def vectors(self, batch: Sequence[str]) -> Vectors:
        inputs, mask = self.inputs(batch)
        state = self.model["tower"](**inputs).last_hidden_state
        vectors = self._tokens(state, mask)
        if "sentence" in self.model:
            pooled = mask.clone()
            pooled[:, : self.skipped] = 0
            parts = [MODES[mode](state, pooled) for mode in self.modes]
            vectors["pooled"] = self.model["sentence"](torch.cat(parts, dim=1))
        return vectors
