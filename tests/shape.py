"""Counts how far the tree is from its target: `python tests/shape.py [CHECKOUT] [--list]`, by default this checkout."""

from __future__ import annotations

import ast
import io
import os
import sys
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

PACKAGES = {"probekit": "probekit", "probekit.cache": "cache", "probekit.cli": "cli"}
"""Where each package stands in a checkout; the links in `probekit/` to the last two are not followed."""

KIT = "probekit.testing"
"""Code for strangers' tests, which is not counted as lines of ours."""

KINDS = {"LinearHead", "NetworkHead"}
"""Classes that only one backend has: to ask for one is to ask for the backend. A backend's problem belongs here."""

FLAGS = {"whole"}
"""Attributes that are true for one backend only."""

BACKENDS = {"jvp"}
"""Names of backends that nothing but a registry should compare with."""

CLI = "probekit.cli"
CLI_LONGEST = 200
CLI_BANNED = ("linear", "jacobian", "models", "federated", "unlearning")
CLI_BANNED_LIBRARIES = ("numpy",)

QUIET = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


@dataclass(frozen=True)
class Module:
    """A file of the package."""

    name: str
    path: Path
    place: str

    @cached_property
    def text(self) -> str:
        """What stands in it."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """What it means to Python."""
        return ast.parse(self.text)

    @property
    def in_cli(self) -> bool:
        """Whether it belongs to the command line."""
        return self.name == CLI or self.name.startswith(f"{CLI}.")


@dataclass(frozen=True)
class Measure:
    """One line of the table: how many there are, how many there may be in the end, and where they are."""

    name: str
    count: int
    target: int
    found: tuple[str, ...] = field(default=(), repr=False)


def modules(root: Path) -> dict[str, Module]:
    """Every module of a checkout by its dotted name."""
    found = {}
    for package, folder in PACKAGES.items():
        for parent, _, names in os.walk(root / folder):  # does not follow links, so nothing is read twice
            for path in sorted(Path(parent) / name for name in names if name.endswith(".py")):
                inside = path.relative_to(root / folder).with_suffix("").parts
                dotted = ".".join((package, *(part for part in inside if part != "__init__")))
                found[dotted] = Module(dotted, path, path.relative_to(root).as_posix())
    return dict(sorted(found.items()))


def code_lines(module: Module) -> int:
    """Lines with code on them: no comments, no blank lines, no docstrings of anything, attributes included."""
    prose = {
        number
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in QUIET:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - prose)


def _names(node: ast.expr, aliases: dict[str, str]) -> set[str]:
    """The last parts of every dotted name in an expression, as they are called where they come from."""
    found = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    found |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    return {aliases.get(name, name) for name in found}


def _asks_type(node: ast.expr) -> bool:
    """Whether this is `type(x)` or `x.__class__`."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type"
    return called or (isinstance(node, ast.Attribute) and node.attr == "__class__")


def _asks_kind(node: ast.AST, parent: ast.AST | None, aliases: dict[str, str]) -> bool:
    """Whether this very node asks which backend a value belongs to."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
            return bool(_names(kinds, aliases) & KINDS)
        case ast.MatchClass(cls=kind):
            return bool(_names(kind, aliases) & KINDS)
        case ast.Compare(left=left, comparators=others):
            sides = [left, *others]
            return any(map(_asks_type, sides)) and any(_names(side, aliases) & KINDS for side in sides)
        case ast.Attribute(attr=name, ctx=ast.Load()) if name in FLAGS:
            # `x.whole.name`, `x.whole[0]` and `len(x.whole)` read something that is no flag
            inside = isinstance(parent, ast.Attribute | ast.Subscript)
            return not inside and not (isinstance(parent, ast.Call) and node in parent.args)
    return False


def asked_kinds(module: Module) -> Iterator[str]:
    """Every place that asks for the kind of a head by its class or by a flag that only one backend sets."""
    aliases = {
        alias.asname: alias.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    parents = {child: node for node in ast.walk(module.tree) for child in ast.iter_child_nodes(node)}
    yield from _places(module, lambda node: _asks_kind(node, parents.get(node), aliases))


def asked_backends(module: Module) -> Iterator[str]:
    """Every place that compares something with the name of a backend."""

    def asks(node: ast.AST) -> bool:
        return isinstance(node, ast.Compare) and any(
            isinstance(part, ast.Constant) and part.value in BACKENDS
            for side in (node.left, *node.comparators)
            for part in ast.walk(side)
        )

    yield from _places(module, asks)


def _places(module: Module, wanted: Callable[[ast.AST], bool]) -> Iterator[str]:
    """File, line and text of the wanted nodes."""
    texts = module.text.splitlines()
    lines = [getattr(node, "lineno", 0) for node in ast.walk(module.tree) if wanted(node)]
    yield from (f"{module.place}:{line}: {texts[line - 1].strip()}" for line in sorted(lines))


def imports(module: Module, known: dict[str, Module], *, typing: bool) -> set[str]:
    """The dotted names that a module imports, inside functions too; those for type checkers only if asked for."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(module.tree):
        if not typing and isinstance(node, ast.If) and "TYPE_CHECKING" in _names(node.test, {}):
            skipped |= {child for statement in node.body for child in ast.walk(statement)}
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else str(node.module) for name in full}
        elif isinstance(node, ast.ImportFrom):
            raise ValueError(f"{module.place}:{node.lineno}: relative imports are not counted; import by the full name")
    return found


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, by Tarjan's strongly connected components."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in order:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == order[name]:
            place = stack.index(name)
            group, stack[place:] = stack[place:], []
            if len(group) > 1 or name in graph[name]:
                groups.append(sorted(group))

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return sorted(groups)


def twice_named(known: dict[str, Module]) -> list[str]:
    """Public classes of one name that stand in several modules."""
    homes: dict[str, list[str]] = defaultdict(list)
    for module in known.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(f"{module.place}:{node.lineno}")
    return [f"{name}: {', '.join(places)}" for name, places in sorted(homes.items()) if len(places) > 1]


def banned_imports(module: Module, known: dict[str, Module]) -> Iterator[str]:
    """What a module of the command line imports and should not: one line per room or library."""
    names = imports(module, known, typing=True)
    for banned in (*(f"probekit.{room}" for room in CLI_BANNED), *CLI_BANNED_LIBRARIES):
        if any(name == banned or name.startswith(f"{banned}.") for name in names):
            yield f"{module.place} imports {banned}"


def measure(root: Path) -> dict[str, Measure]:
    """Every measure of a checkout, by a short key."""
    known = modules(root)
    cli = [module for module in known.values() if module.in_cli]
    graph = {name: imports(module, known, typing=False) & known.keys() for name, module in known.items()}
    circles = cycles(graph)
    long = [(module, len(module.text.splitlines())) for module in cli]
    flat = [path.name for path in sorted((root / "probekit").glob("*.py")) if not path.stem.startswith("__")]
    counted = [module for name, module in known.items() if name != KIT and not name.startswith(f"{KIT}.")]

    def listed(name: str, target: int, found: list[str]) -> Measure:
        return Measure(name, len(found), target, tuple(found))

    return {
        "lines": Measure("code lines", sum(map(code_lines, counted)), 17_000),
        "kinds": listed(
            "places that ask for the kind of head", 2, [p for module in known.values() for p in asked_kinds(module)]
        ),
        "backends": listed(
            "comparisons with a backend's name", 0, [p for module in known.values() for p in asked_backends(module)]
        ),
        "cycles": listed("import cycles, lazy ones included", 0, [" <-> ".join(group) for group in circles]),
        "circular": Measure("modules in import cycles", sum(map(len, circles)), 0),
        "flat": listed("modules flat in probekit/", 5, flat),
        "twice": listed("public class names that occur twice", 0, twice_named(known)),
        "long": listed(
            f"cli modules over {CLI_LONGEST} lines",
            0,
            [f"{module.place}: {lines}" for module, lines in long if lines > CLI_LONGEST],
        ),
        "banned": listed(
            "rooms below runs, or NumPy, imported by cli",
            0,
            [p for module in cli for p in banned_imports(module, known)],
        ),
    }


def main(arguments: list[str]) -> None:
    """Print the table, and with `--list` what was counted."""
    paths = [argument for argument in arguments if argument != "--list"]
    found = measure(Path(paths[0]) if paths else Path(__file__).parent.parent)
    print(f"{'':45}{'now':>8}{'target':>8}")
    for one in found.values():
        print(f"{one.name:45}{one.count:8,}{one.target:8,}")
    if "--list" in arguments:
        for one in (one for one in found.values() if one.found):
            print(f"\n{one.name}:", *one.found, sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1:])
