"""`probekit evaluate`: how good a run's head is, on what, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, facts, given, section

if TYPE_CHECKING:
    from probekit.evaluation.metrics import Confusion, Estimate, Share
    from probekit.evaluation.target_metrics import TargetScores
    from probekit.runs.evaluation import BackdoorComparison, EvaluationResult
    from probekit.runs.set_evaluation import SetEvaluation

MATRIX_CLASSES, SHOWN_CLASSES, SHOWN_CLIENTS, SHOWN_CONFUSIONS = 12, 20, 20, 10


@o.common
def evaluate(
    output: Output,
    run: o.RunFolder,
    embeddings: Annotated[
        list[str] | None,
        typer.Argument(help="Test sets in the cache (default: the server's rows, else the training rows)."),
    ] = None,
    state: o.State = None,
    knn: Annotated[int | None, typer.Option(min=1, help="Also judge a vote of so many nearest rows.")] = None,
    shots: Annotated[str, typer.Option(help="Also a few-shot curve: 1,2,4,8,16 training rows of every class.")] = "",
    draws: Annotated[int, typer.Option(min=1, help="How often the few are drawn.")] = 5,
    triggered: o.Triggered = None,
    target: Annotated[int, typer.Option(min=0, help="Backdoor target class.")] = 0,
    confidence: Annotated[float, typer.Option(help="Confidence level.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Of whatever is drawn.")] = 0,
) -> None:
    """Judge the head of a run: accuracy with an interval, per class and client, calibration, confusion."""
    how: dict[str, Any] = {
        "shots": o.whole_numbers(shots, "--shots"),
        "draws": draws,
        "confidence": confidence,
        "seed": seed,
    }
    backdoor: dict[str, Any] = {"triggered": triggered, "target": target}
    opened = output.open(run)
    with output.watch() as watch:
        result = opened.evaluate(*(embeddings or ()), state=state, knn=knn, watch=watch, **backdoor, **how)
    output.result(result, _show)


def _backdoor_lines(found: BackdoorComparison) -> dict[str, str]:
    here, there = found.head, found.retrained
    return {
        "backdoor": f"{found.trigger} gives class {found.target} to {here.excluding_target.value:.1%} of the pictures "
        f"of other classes ({here.all.value:.1%} of all, {found.base_rate:.1%} of which are of that class)",
        "retrained": f"{there.excluding_target.value:.1%} ({there.all.value:.1%} of all); the difference to retraining "
        f"is {found.difference_to_retraining:.2%}",
    }


def _show(console: Console, result: EvaluationResult) -> None:
    for one in result.results:
        _show_set(console, result, one)
    if result.backdoor is not None:
        facts(console, _backdoor_lines(result.backdoor))


def _show_set(console: Console, whole: EvaluationResult, result: SetEvaluation) -> None:
    noun = {"test": "accuracy", "server": "accuracy", "training": "training accuracy"}[result.kind]
    seen = {
        "head": f"state {whole.state} of {whole.run}, {whole.method}, digest {whole.head[:12]}",
        "judged on": f"{result.rows} rows of {result.set}: {result.meaning}",
    }
    scores: TargetScores | None = getattr(result, "scores", None)
    if scores is None:
        seen[noun] = _share(result.accuracy)
    if result.left_out:
        seen["left out"] = f"{result.left_out} rows without a label or an embedding"
    if result.kind != "training" and result.also_trained_on:
        seen["beware"] = f"{result.also_trained_on} of these rows are samples that the head was trained on"
    if scores is not None:
        facts(console, seen)
        _show_targets(console, scores)
        return
    if result.calibration is not None:
        found, losses = result.calibration, f"log loss {result.calibration.log_loss:.4f}"
        seen["calibration"] = f"error {found.error:.4f}, {losses}, Brier {found.brier:.4f} ({found.how})"
    if result.pretrained is not None:
        seen["pretrained"] = f"{_share(result.pretrained)}, the network before any client trained it"
    if result.knn is not None:
        seen[f"{result.knn.neighbours}-NN"] = f"{_share(result.knn.accuracy)}, by {result.knn.metric}"
    facts(console, seen)
    _show_parts(console, "class", result.by_class, SHOWN_CLASSES)
    _show_parts(console, "client", result.by_client, SHOWN_CLIENTS)
    _show_confusion(console, result.confusion)
    if result.few_shot:
        rows = [(one.shots, f"{one.mean:.1%}", given(one.deviation, ".1%")) for one in result.few_shot]
        section(console, "few-shot", ("rows per class", "accuracy", "standard deviation"), rows)


def _show_targets(console: Console, found: TargetScores) -> None:
    """The metrics of every target, and their means."""

    def cells(*metrics: Estimate | None) -> list[str]:
        return [
            "" if one is None else f"{one.value:.3f} [{given(one.low, '.3f')}, {given(one.high, '.3f')}]"
            for one in metrics
        ]

    rows = [(one.name, one.count, *cells(one.average_precision, one.auc, one.r2)) for one in found.by_target]
    rows.append(("mean", "", *cells(found.mean_average_precision, found.mean_auc, found.mean_r2)))
    section(console, "per target", ("target", "rows", "average precision", "AUC", "R2"), rows)


def _share(share: Share) -> str:
    if share.value is None:
        return "no rows"
    interval = f"{share.confidence:.0%} interval {share.low:.2%} to {share.high:.2%}"
    return f"{share.value:.2%}  ({interval}, {share.how}; {share.hits} of {share.count})"


def _show_parts(console: Console, noun: str, parts: Sequence[Share], most: int) -> None:
    """Accuracies of parts; of many, the worst."""
    if len(parts) > most:
        parts = sorted(parts, key=lambda one: 2.0 if one.value is None else one.value)
    rows = [
        (one.name, one.count, given(one.value, ".1%"), "" if one.value is None else f"{one.low:.1%} to {one.high:.1%}")
        for one in parts
    ]
    if rows:
        section(console, f"per {noun}", (noun, "rows", "accuracy", "interval"), rows, most, "worst")


def _show_confusion(console: Console, found: Confusion) -> None:
    """The matrix or, of many classes, what is confused most."""
    names, counts = found.classes, found.counts
    if len(names) <= MATRIX_CLASSES:
        rows = [(name, *row) for name, row in zip(names, counts, strict=True)]
        section(console, "confusion: true class down, given class across", ("", *names), rows)
        return
    cells = ((count, true, at) for true, row in enumerate(counts) for at, count in enumerate(row) if true != at)
    worst = sorted((cell for cell in cells if cell[0]), key=lambda cell: -cell[0])[:SHOWN_CONFUSIONS]
    rows = [(count, names[true], names[at]) for count, true, at in worst]
    section(console, "confused most", ("rows", "true class", "given class"), rows)
