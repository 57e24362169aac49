"""Methods that only work with what a trainer of their own kept: their scenario is trained by that trainer."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

from probekit.bench.experiment import BenchSetting
from probekit.federated.training import trainer_named
from probekit.registry import trainers
from probekit.unlearning.method import choices_of, method

LOCAL = "local_steps"
"""What trainers by rounds of local steps have, and others not: their options mean something else."""
USUAL = frozenset({"statistics", "gradients", "history", "server", "objective"})


def setting_for(spec: str, setting: BenchSetting) -> BenchSetting:
    """The setting as a method needs it trained: by the trainer that keeps what it declares, with the same options."""
    wanted = trainer_for(spec)
    if wanted is None or trainer_named(setting.model.trainer).name == wanted.name:
        return setting
    own = {one.name for one in fields(wanted)}
    _, _, options = setting.model.trainer.partition(":")
    text = f"{wanted.name}:{options}" if options and LOCAL in own else str(wanted.name)
    return replace(setting, model=replace(setting.model, trainer=text))


@cache
def trainer_for(spec: str) -> Any:
    """The trainer that keeps what a method needs and others do not keep; None: any will do."""
    needs = [choices_of(need) for need in method(spec).needs]
    lacking = {one[1] for need in needs for one in need if one[0] == "kept"} - USUAL
    if not lacking:
        return None
    for name in trainers.names():
        found = trainer_named(name)
        if lacking & set(getattr(found, "keeps", ())):
            return found
    return None
