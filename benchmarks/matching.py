"""How long the matcher takes on large graphs, and which rules fire where (CPU seconds of this process).

python -m benchmarks.matching [--models FOLDER] [--json matching.json] [--table docs/fusion-rules.md]

--table writes the rules and where they fire, without times, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.architectures import bert, resnet
from benchmarks.corpus import GENERATED, trained
from edgefuse.fusion import find_matches, load_rules
from edgefuse.graph import Model
from edgefuse.report import print_table

REPEATS = 5


def measured(name: str, model: Model) -> dict[str, Any]:
    """Return the least CPU time of `REPEATS` runs, what was found, and the rules that fired."""
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        found = find_matches(model)
        seconds.append(time.process_time() - start)
    fired = Counter(match.rule.id for match in found.matches)
    return {
        "graph": name,
        "nodes": len(list(model.graph)),
        "rules": len(load_rules()),
        "cpu_s": round(min(seconds), 4),
        "steps": found.steps,
        "matches": len(found.matches),
        "refused": len(found.refused),
        "fired": dict(sorted(fired.items())),
    }


def rule_table(graphs: Mapping[str, Model]) -> str:
    """Return the page of all rules: by family what each one saves, and how often it fires in which graph."""
    places: dict[str, Counter[str]] = {rule.id: Counter() for rule in load_rules()}
    for name, model in graphs.items():
        for match in find_matches(model).matches:
            places[match.rule.id][name] += 1
    fired = sum(1 for found in places.values() if found)
    trained_only = {name for name in graphs if name not in GENERATED}
    on_trained = sum(1 for found in places.values() if trained_only & found.keys())
    lines = [
        "# The fusion rules, and where they fire",
        "",
        "Made by `python -m benchmarks.matching --table`; `edgefuse rules ID` shows a rule. Numbers are",
        "matches of the rule in a graph before anything is planned; overlapping ones count each.",
        "",
        f"{len(places)} rules, {fired} of which fire on {len(graphs)} graphs ({on_trained} on trained ones).",
    ]
    for family in dict.fromkeys(rule.family for rule in load_rules()):
        lines += ["", f"## {family}", "", "| rule | kind | why | fires in |", "|---|---|---|---|"]
        for rule in (rule for rule in load_rules() if rule.family == family):
            found = ", ".join(f"{name} {count}" for name, count in places[rule.id].items())
            why = rule.text.why.replace("|", "\\|")
            lines.append(f"| {rule.id} | {rule.text.kind} | {why} | {found or 'its examples only'} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table of times, or write the table of rules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    graphs = {name: make() for name, make in GENERATED.items()}
    graphs.update(trained(options.models) if options.models is not None else ())
    if options.table is not None:
        options.table.write_text(rule_table(graphs), encoding="utf-8")
        return
    graphs["resnet, 1761 nodes"] = resnet((50, 60, 90, 50))
    graphs["bert, 1741 nodes"] = bert(60)
    rows = [measured(name, model) for name, model in graphs.items()]
    keys = ("graph", "nodes", "rules", "cpu_s", "steps", "matches", "refused")
    print_table(list(keys), [[str(row[key]) for key in keys] for row in rows])
    fired = {rule for row in rows for rule in row["fired"]}
    print("never:", ", ".join(rule.id for rule in load_rules() if rule.id not in fired))
    print(f"{len(fired)} of {len(load_rules())} rules fire on these graphs")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
