"""The paper's foundation models on look-alikes: tiny random encoders, small pictures."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from huggingface_hub import constants
from PIL import Image

from probekit.backbones import load_backbone
from probekit.bench.cells import Cell, Folders
from probekit.bench.experiment import TUNING_SEED, Experiment, Setting, read_experiment
from probekit.bench.run import read_rows
from probekit.bench.tables import setting_table
from probekit.bench.training import draw_rows
from probekit.data.triggers import parse_trigger
from probekit.errors import InputError, NotFoundError
from tests.backbones.conftest import make_model, make_processor

RECIPES = read_experiment("foundation-models")
LOOK_ALIKES = {
    "openai/clip-vit-base-patch32": "clip",
    "Salesforce/blip2-itm-vit-g": "blip2-retrieval",
}
SIDE = 40
PICTURES = 15
COMMIT = format(7, "040x")


def write_pictures(folder: Path, classes: tuple[str, ...], generator: np.random.Generator) -> None:
    """Noise around a colored pattern for each class."""
    for name in classes:
        pattern = generator.integers(40, 216, (5, 5, 3)).repeat(8, axis=0).repeat(8, axis=1)
        (folder / name).mkdir(parents=True)
        for number in range(PICTURES):
            noise = generator.normal(0, 20, (SIDE, SIDE, 3))
            pixels = np.clip(pattern + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def look_alike(setting: Setting, folder: Path) -> Setting:
    """The same setting on pictures made here; the dataset has a class that is not asked for."""
    generator = np.random.default_rng(0)
    classes = (*setting.classes, "another")
    if setting.test_share:
        write_pictures(folder, classes, generator)
    else:
        write_pictures(folder / "train", classes, generator)
        write_pictures(folder / "test", classes, np.random.default_rng(0))
    return msgspec.structs.replace(setting, data=str(folder))


@pytest.fixture(scope="module", params=RECIPES.settings, ids=lambda setting: setting.name)
def recipe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    setting: Setting = request.param
    return look_alike(setting, tmp_path_factory.mktemp("pictures") / "look-alike")


def publish(repository: str, hub: Path) -> None:
    """Put a tiny model into the hub's cache as if it had been downloaded."""
    home = hub / f"models--{repository.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    name = LOOK_ALIKES[repository]
    make_model(name).save_pretrained(home / "snapshots" / COMMIT)
    make_processor(name).save_pretrained(home / "snapshots" / COMMIT)


def test_every_method_of_a_recipe_runs(
    recipe: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the recipe's own hub id and view, from a hub's cache that nobody reaches."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = recipe.backbone.removeprefix("hf:").partition("#")[0]
    publish(repository, tmp_path / "hub")
    folders = Folders(tmp_path / "work", tmp_path / "cache")
    experiment = Experiment(title="Look-alike", seeds=(0,), settings=(recipe,))
    folders.training(recipe, 0).write()
    for method in recipe.rows_to_compute:
        Cell(recipe, 0, method).compute(folders)
    rows = read_rows(experiment, folders)
    errors = {row.method: row.cells[0]["error"] for row in rows if "error" in row.cells[0]}
    assert not errors
    run = folders.training(recipe, 0).run
    assert run.newest.description.encoding["backbone"] == recipe.backbone
    assert run.newest.all_rows.classes == recipe.classes
    table = setting_table(rows)
    paper = {line[0]: line[-2:] for line in table.rows if any(line[-2:])}
    assert paper.keys() == {
        *("retrain", "fedremoval", "cf", "flipping", "sga", "ew-sga", "pga", "federaser", "fused"),
        "ferrari:directions=trigger",
    }
    directions = np.load(folders.training(recipe, 0).folder / "directions.npy")
    backbone = load_backbone(recipe.backbone, device="cpu")
    picture = draw_rows(recipe, 0)["train"][3].content()
    pictures = [parse_trigger(recipe.trigger)(picture), picture]
    triggered, clean = backbone.encode([backbone.prepare(item) for item in pictures])
    assert np.allclose(directions[3], triggered - clean, atol=1e-5)
    assert np.abs(directions[3]).max() > 1e-2


def test_the_rows_are_of_the_named_classes_and_no_test_row_is_trained_on(recipe: Setting) -> None:
    """Not by another seed either, nor to tune."""
    tested = set()
    trained = set()
    for seed in (0, 1, TUNING_SEED):
        rows = draw_rows(recipe, seed)
        for part in rows.values():
            assert part.class_names == recipe.classes
            samples = [part[index] for index in range(len(part))]
            for sample in samples:
                assert recipe.classes[sample.label] == Path(sample.key).parent.name
        trained |= {rows["train"][index].path for index in range(len(rows["train"]))}
        if seed != TUNING_SEED:
            tested |= {rows["test"][index].path for index in range(len(rows["test"]))}
    assert not tested & trained
    total = len(recipe.classes) * PICTURES
    expected = round(recipe.test_share * total) if recipe.test_share else total
    assert len(tested) == expected


def test_a_class_that_is_not_there_is_named(recipe: Setting) -> None:
    wrong = msgspec.structs.replace(recipe, classes=("anothr",))
    with pytest.raises(NotFoundError, match="another"):
        draw_rows(wrong, 0)


@pytest.mark.parametrize("change", ['classes = ["a", "a"]', "test_share = 1.0"])
def test_impossible_choices_are_refused(change: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    lines = ['title = "Wrong"', "[[settings]]", 'name = "a"', 'data = "b"', "methods = []", change]
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match="once each"):
        read_experiment(str(path))
