"""`probekit evaluate`: how good a run's head is, on what, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Output, facts, section

MATRIX_CLASSES, SHOWN_CLASSES, SHOWN_CLIENTS, SHOWN_CONFUSIONS = 12, 20, 20, 10


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    embeddings: Annotated[
        list[str] | None,
        typer.Argument(help="Test sets in the cache (default: the server's rows, else the training rows)."),
    ] = None,
    state: Annotated[int | None, typer.Option(min=1, help="A state of the run (default: the current one).")] = None,
    knn: Annotated[
        int | None, typer.Option(min=1, help="Also judge a vote of this many nearest training rows.")
    ] = None,
    shots: Annotated[str, typer.Option(help="Also a few-shot curve: 1,2,4,8,16 training rows of every class.")] = "",
    draws: Annotated[int, typer.Option(min=1, help="How often the few are drawn.")] = 5,
    triggered: Annotated[
        str | None, typer.Option(help="Test pictures with a trigger: how often does it work, here and retrained?")
    ] = None,
    target: Annotated[int, typer.Option(min=0, help="The class that the trigger asks for.")] = 0,
    confidence: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap and the draws.")] = 0,
    config: o.Config = None,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Judge the head of a run: accuracy with an interval, per class and client, calibration, confusion."""
    from probekit.cache import DiskStore
    from probekit.evaluation.metrics import Interval
    from probekit.runs.evaluation import EvaluationOptions, Judge
    from probekit.runs.folder import RunFolder

    out = Output(json, quiet)
    opened = RunFolder.open(run)
    trained = opened.trained(state)
    judge = Judge(opened, DiskStore(cache), trained, state)
    wishes = EvaluationOptions(Interval(confidence, seed=seed), knn, _shots(shots), draws)
    subjects = [judge.named(name) for name in embeddings] if embeddings else [judge.own()]
    value: dict[str, Any] = {
        "run": str(run),
        "state": opened.state if state is None else state,
        "method": trained.method,
        "head": trained.head.digest,
        "results": [judge.verdict(subject, wishes) for subject in subjects],
    }
    if triggered is not None:
        from probekit.runs.backdoor import backdoor, retrained_head

        retrained = retrained_head(opened, judge.store, trained, state=state)
        pictures = judge.store.open(triggered)
        value["backdoor"] = backdoor(trained.head, retrained, pictures, target=target, interval=wishes.interval)

    def show(console: Any) -> None:
        for result in value["results"]:
            _show(console, value, result)
        if "backdoor" in value:
            facts(console, _backdoor_lines(value["backdoor"]))

    out.result(value, show)


def _backdoor_lines(found: dict[str, Any]) -> dict[str, str]:
    here, there = found["head"], found["retrained"]
    return {
        "backdoor": f"{found['trigger']} gives class {found['target']} to {here['excluding target']:.1%} of the "
        f"pictures of other classes ({here['all']:.1%} of all, {found['base rate']:.1%} of which are of that class)",
        "retrained": f"{there['excluding target']:.1%} ({there['all']:.1%} of all); the difference to retraining is "
        f"{found['difference to retraining']:.2%}",
    }


def _shots(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise typer.BadParameter(f"--shots wants whole numbers with commas between; found {text!r}.") from None


def _show(console: Any, value: dict[str, Any], result: dict[str, Any]) -> None:
    head = f"state {value['state']} of {value['run']}, {value['method']}, digest {value['head'][:12]}"
    noun = {"test": "accuracy", "server": "accuracy", "training": "training accuracy"}[result["kind"]]
    seen = {
        "head": head,
        "judged on": f"{result['rows']} rows of {result['set']}: {result['meaning']}",
        noun: _share(result["accuracy"]),
    }
    if result["left out"]:
        seen["left out"] = f"{result['left out']} rows without a label or an embedding"
    if result["kind"] != "training" and result["also trained on"]:
        seen["beware"] = f"{result['also trained on']} of these rows are samples that the head was trained on"
    if result["calibration"]:
        found = result["calibration"]
        seen["calibration"] = (
            f"error {found['error']:.4f}, log loss {found['log_loss']:.4f}, Brier {found['brier']:.4f} ({found['how']})"
        )
    if "pretrained" in result:
        seen["pretrained"] = f"{_share(result['pretrained'])}, the network before any client trained it"
    if "knn" in result:
        seen[f"{result['knn']['neighbours']}-NN"] = f"{_share(result['knn'])}, by {result['knn']['metric']}"
    facts(console, seen)
    _show_parts(console, "class", result["by class"], SHOWN_CLASSES)
    _show_parts(console, "client", result["by client"], SHOWN_CLIENTS)
    _show_confusion(console, result["confusion"])
    if "few-shot" in result:
        rows = [(one["shots"], f"{one['mean']:.1%}", _deviation(one)) for one in result["few-shot"]]
        section(console, "few-shot", ("rows per class", "accuracy", "standard deviation"), rows)


def _share(share: dict[str, Any]) -> str:
    if share["value"] is None:
        return "no rows"
    return (
        f"{share['value']:.2%}  ({share['confidence']:.0%} interval {share['low']:.2%} to {share['high']:.2%}, "
        f"{share['how']}; {share['hits']} of {share['count']})"
    )


def _deviation(point: dict[str, Any]) -> str:
    return "" if point["deviation"] is None else f"{point['deviation']:.1%}"


def _show_parts(console: Any, noun: str, parts: list[dict[str, Any]], most: int) -> None:
    """Accuracies of parts; of many, the worst."""
    if not parts:
        return
    shown, title = parts, f"per {noun}"
    if len(parts) > most:
        shown = sorted(parts, key=lambda one: 2.0 if one["value"] is None else one["value"])[:most]
        title += f", the worst {most} of {len(parts)}"
    rows = [
        (one["name"], one["count"])
        + (("", "") if one["value"] is None else (f"{one['value']:.1%}", f"{one['low']:.1%} to {one['high']:.1%}"))
        for one in shown
    ]
    section(console, title, (noun, "rows", "accuracy", "interval"), rows)


def _show_confusion(console: Any, found: dict[str, Any]) -> None:
    """The matrix or, of many classes, what is confused most."""
    names, counts = found["classes"], found["counts"]
    if len(names) <= MATRIX_CLASSES:
        rows = [(name, *row) for name, row in zip(names, counts, strict=True)]
        section(console, "confusion: true class down, given class across", ("", *names), rows)
        return
    wrong = [
        (count, names[true], names[given])
        for true, row in enumerate(counts)
        for given, count in enumerate(row)
        if count and true != given
    ]
    worst = sorted(wrong, key=lambda item: -item[0])[:SHOWN_CONFUSIONS]
    section(console, "confused most", ("rows", "true class", "given class"), worst)
