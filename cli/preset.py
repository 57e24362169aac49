"""`probekit preset`: published settings, as values."""

from __future__ import annotations

import typer

from probekit.cli.options import argument
from probekit.cli.output import Output

app = typer.Typer(help="Show published settings.", no_args_is_help=True)


@app.command()
def show(
    names: list[str] | None = argument("Presets; all without a name.", None), *, output: Output
) -> None:
    """Print what each preset sets, side by side."""
    from probekit.federated.presets import PRESETS, preset

    presets = [preset(name) for name in names or PRESETS]
    topics = list(dict.fromkeys(topic for item in presets for topic in item.facts))
    for topic in topics:
        output.print(topic)
        for item in presets:
            output.print(f"  {item.name}: {item.facts.get(topic, '')}")
    output.print("unlearn --method")
    for item in presets:
        output.print(f"  {item.name}: {item.unlearner}")
    output.result({item.name: item for item in presets})
