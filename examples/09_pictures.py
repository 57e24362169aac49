"""README's two pictures and its table: real weights, real pictures, nothing made up.

    python examples/09_pictures.py [docs/pictures] [--clothes 2000,1000]

Three packaged backbones on scikit-learn's digits and on the first rows of Fashion-MNIST (`probekit dataset get
fashion-mnist`), and digits with one poisoned client, before and after it is forgotten. What is encoded stays in the
cache, so a second run takes seconds.
"""

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
from matplotlib import rc_context

import probekit
from probekit.cache import DiskStore
from probekit.datasets.triggers import trigger
from probekit.evaluation.backdoor import backdoor_success
from probekit.evaluation.metrics import accuracy
from probekit.evaluation.probe_table import ProbeTable, probe_table
from probekit.pages.pictures import SETTINGS, comparison
from probekit.report.probe_pictures import draw_table

BACKBONES = ("packaged:mobilenet-v2", "packaged:efficientnet-lite0", "packaged:efficientnet-lite2")
POISONED, TARGET, TRIGGER = "4", 0, "square:size=2,margin=1"


def clothes(folder: Path, train: int, test: int) -> str:
    """The first pictures of both splits of Fashion-MNIST in one file, as a user would bring it."""
    parts = {"train": train, "test": test}
    rows = {split: probekit.dataset("packaged:fashion-mnist", split=split, limit=most) for split, most in parts.items()}
    arrays = {f"{split}_images": np.stack([np.asarray(one.content()) for one in some]) for split, some in rows.items()}
    arrays |= {f"{split}_labels": np.array([one.label for one in some]) for split, some in rows.items()}
    np.savez(folder / "clothes.npz", classes=np.array(rows["train"].class_names), **arrays)
    return f"npz:{folder / 'clothes.npz'}"


def backdoor(store: DiskStore, backbone: str) -> list[dict]:
    """Accuracy and backdoor success with a poisoned client, with that client forgotten, and retrained without it."""
    sets = {}
    for split in ("train", "test"):
        for name, pasted in ((split, None), (f"{split}-triggered", trigger(TRIGGER))):
            rows = probekit.dataset("packaged:digits", split=split)
            sets[name] = probekit.extract(backbone, rows, store=store, trigger=pasted)
            store.sets.give_name(f"picture-{name}", sets[name].digest)
    how = {"clients": 5, "view": "l2", "poison": POISONED, "target": TARGET, "triggered": "picture-train-triggered"}
    with tempfile.TemporaryDirectory() as folder:
        run = probekit.Run.train(Path(folder) / "run", "picture-train", store=store, **how)
        heads = {"before": run.head()}
        run.unlearn(POISONED)
        heads["after"] = run.head()
        how = {**how, "keep": "nothing"}  # nothing but the rows to start from
        clean = probekit.Run.train(Path(folder) / "clean", "picture-train", store=store, **how)
        clean.unlearn(POISONED, method="retrain")
        heads["retrained"] = clean.head()
    test, triggered = sets["test"], sets["test-triggered"]
    right = {name: accuracy(probekit.predict(head, test), test.labels) for name, head in heads.items()}
    worked = {name: backdoor_success(head, triggered, target=TARGET).excluding_target for name, head in heads.items()}
    return [
        {
            "measure": name,
            "heads": {one: asdict(share) for one, share in every.items()},
            "difference_to_retraining": None,
        }
        for name, every in (("accuracy on test pictures", right), ("the trigger makes them a 0", worked))
    ]


def shown(table: ProbeTable, names: dict[str, str]) -> str:
    """The accuracies as README has them: Markdown, a column for each data set."""
    lines = [["backbone", *names.values()], ["---"] * (1 + len(names))]
    cells = {name: [table.cell(name, one) for one in names] for name in table.backbones}
    lines += [[name, *("" if cell is None else cell.text for cell in every)] for name, every in cells.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/pictures"))
    parser.add_argument(
        "--clothes", default="2000,1000", help="How many training and test pictures of Fashion-MNIST; 0,0: none."
    )
    parser.add_argument("--backbones", default=",".join(BACKBONES))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    store, backbones = DiskStore(), options.backbones.split(",")
    with tempfile.TemporaryDirectory() as folder:
        names = {"packaged:digits": "digits"}
        if all(some := [*map(int, options.clothes.split(","))]):
            names[clothes(Path(folder), *some)] = "Fashion-MNIST"
        table = probe_table([*names], backbones, store=store, shots=(1, 2, 4, 8, 16))
    print(shown(table, names), *(f"- {one}" for one in table.remarks), sep="\n")
    draw_table(table, options.folder / "few-shot.svg", names=names)
    measures = backdoor(store, "packaged:efficientnet-lite0" if len(backbones) > 1 else backbones[0])
    with rc_context(SETTINGS):
        picture = comparison(measures)
        picture.savefig(options.folder / "backdoor.svg", format="svg", metadata={"Date": None, "Creator": None})
    for one in measures:
        print(f"{one['measure']}: " + ", ".join(f"{name} {share['value']:.1%}" for name, share in one["heads"].items()))


if __name__ == "__main__":
    main()
