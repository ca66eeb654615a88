#!/usr/bin/env python3
"""Writes what follows from other files in charts/: the definition of Ring in kvasir-crds from crds/, and each chart's
README.md from its Chart.yaml and values.yaml. `charts.py --check` compares, and names what is out of date."""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHARTS = ROOT / "charts"


def crd_template(crd: str) -> str:
    """The definition with the chart's annotations, and its braces safe from the template engine."""
    text = re.sub(r"\{\{|\}\}", lambda braces: '{{ "%s" }}' % braces.group(), crd)
    body = text.split("\n", 1)[1] if text.startswith("#") else text
    head = "# Written by scripts/charts.py from crds/: change that.\n"
    annotations = (
        "metadata:\n"
        "  {{- if or .Values.keep .Values.annotations }}\n"
        "  annotations:\n"
        "    {{- if .Values.keep }}\n"
        "    helm.sh/resource-policy: keep\n"
        "    {{- end }}\n"
        "    {{- with .Values.annotations }}{{ toYaml . | nindent 4 }}{{ end }}\n"
        "  {{- end }}\n"
    )
    assert body.count("\nmetadata:\n") == 1, "a definition has one metadata at the margin"
    return head + body.replace("\nmetadata:\n", "\n" + annotations)


def values(text: str):
    """Yields path, default and description of each value that has a `# --` comment; a comment goes on in the lines below."""
    path: list[str] = []
    comment: list[str] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        stripped = line.strip()
        if stripped.startswith("# --"):
            comment = [stripped[4:].strip()]
        elif stripped.startswith("#") and comment:
            comment.append(stripped[1:].strip())
        elif match := re.match(r"( *)([A-Za-z]\w*):(.*)$", line):
            depth = len(match.group(1)) // 2
            path = path[:depth] + [match.group(2)]
            if comment:
                below = [after for after in lines[number + 1 :] if after.strip()][:1]
                deeper = below and len(below[0]) - len(below[0].lstrip()) > len(match.group(1))
                default = "see values.yaml" if deeper else "`%s`" % match.group(3).strip()
                yield ".".join(path), default, " ".join(comment)
            comment = []


def readme(chart: Path) -> str:
    meta = (chart / "Chart.yaml").read_text()
    field = lambda name: re.search(r"^%s: (.*)$" % name, meta, re.M).group(1)
    rows = [
        "| `%s` | %s | %s |" % (path, default.replace("|", "\\|"), text.replace("|", "\\|"))
        for path, default, text in values((chart / "values.yaml").read_text())
    ]
    extra = chart / "README.head.md"
    return "\n".join(
        [
            "<!-- Written by scripts/charts.py from Chart.yaml and values.yaml: change those. -->",
            "# " + field("name"),
            "",
            field("description"),
            "",
            *([extra.read_text().strip("\n"), ""] if extra.exists() else []),
            "## Values",
            "",
            "| value | default | |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )


def undescribed(chart: Path):
    """Values of the schema that values.yaml doesn't describe. The other way round is helm's to say."""
    described = {path for path, _, _ in values((chart / "values.yaml").read_text())}

    def walk(schema, path):
        for name, inner in schema.get("properties", {}).items():
            here = path + [name]
            known = ".".join(here)
            if known in described or any(known.startswith(one + ".") for one in described):
                continue
            if inner.get("properties"):
                yield from walk(inner, here)
            else:
                yield known

    # `global` is every chart's, `enabled` that of a chart that others depend on
    schema = json.loads((chart / "values.schema.json").read_text())
    return [name for name in walk(schema, []) if name not in ("global", "enabled")]


def main() -> int:
    wanted = {}
    for crd in sorted((ROOT / "crds").glob("*.yaml")):
        wanted[CHARTS / "kvasir-crds" / "templates" / crd.name] = crd_template(crd.read_text())
    charts = sorted(file.parent for file in CHARTS.glob("*/Chart.yaml"))
    for chart in charts:
        wanted[chart / "README.md"] = readme(chart)
    wrong = []
    for chart in charts:
        wrong += ["%s: the schema's %s isn't in values.yaml" % (chart.name, name) for name in undescribed(chart)]
    for file, text in wanted.items():
        if "--check" not in sys.argv[1:]:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            wrong.append("%s is out of date: run scripts/charts.py" % file.relative_to(ROOT))
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
