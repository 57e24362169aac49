"""Run a notebook's cells without Jupyter; `python -m tests.notebooks NOTEBOOK` stores outputs."""

from __future__ import annotations

import ast
import io
import json
import sys
from base64 import b64encode
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

Document = dict[str, Any]


def run_notebook(path: Path) -> Document:
    """The notebook with the outputs of its cells: what they print, show last and draw."""
    import matplotlib as mpl

    mpl.use("Agg")
    notebook: Document = json.loads(path.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            cell["execution_count"] = number
            cell["outputs"] = run_cell("".join(cell["source"]), namespace, number)
    return notebook


def run_cell(source: str, namespace: dict[str, Any], number: int) -> list[Document]:
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
    outputs: list[Document] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    if value is not None:
        data = {"text/plain": repr(value)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_()
        outputs.append({"output_type": "execute_result", "execution_count": number,
                        "data": data, "metadata": {}})  # fmt: skip
    return outputs + [
        {"output_type": "display_data", "data": {"image/png": picture}, "metadata": {}}
        for picture in drawn_pictures()
    ]


def drawn_pictures() -> list[str]:
    """Figures that pyplot holds, which are closed."""
    from matplotlib import pyplot

    pictures = []
    for number in pyplot.get_fignums():
        content = io.BytesIO()
        pyplot.figure(number).savefig(content, format="png", dpi=72, metadata={"Software": None})
        pictures.append(b64encode(content.getvalue()).decode())
        pyplot.close(number)
    return pictures


if __name__ == "__main__":
    file = Path(sys.argv[1])
    text = json.dumps(run_notebook(file), indent=1, ensure_ascii=False)
    file.write_text(f"{text}\n", encoding="utf-8")
